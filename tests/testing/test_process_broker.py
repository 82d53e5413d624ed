"""A cluster of several processes, as tests of users start it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from kbroker.client.errors import CannotConnect
from kbroker.config import ConfigError
from kbroker.testing import ProcessBroker, process_broker

PROCESSES = 2

pytestmark = pytest.mark.slow


def test_nodes_run_in_processes_behind_one_address() -> None:
    with ProcessBroker(PROCESSES, topics={"orders": 4}) as kafka:
        assert "," not in kafka.bootstrap_servers
        client = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        metadata = client.list_topics(timeout=10)
        assert len(metadata.brokers) == PROCESSES
        leaders = {each.leader for each in metadata.topics["orders"].partitions.values()}
        assert len(leaders) == PROCESSES
        kafka.produce("orders", {"id": 1}, key="a")
        assert [each.value for each in kafka.wait_for("orders")] == [b'{"id": 1}']


def test_temporary_data_is_deleted_and_given_directory_kept(tmp_path: Path) -> None:
    kafka = ProcessBroker(PROCESSES)
    assert kafka._directory is not None
    temporary = kafka._directory.name
    assert os.path.exists(temporary)
    kafka.close()
    assert not os.path.exists(temporary)
    with ProcessBroker(PROCESSES, data_dir=tmp_path / "data", topics=["orders"]) as kafka:
        kafka.produce("orders", b"kept")
    with ProcessBroker(PROCESSES, data_dir=tmp_path / "data") as kafka:
        assert [each.value for each in kafka.records("orders")] == [b"kept"]


def test_invalid_arguments_are_rejected_before_a_start() -> None:
    with pytest.raises(ValueError, match="use LocalBroker for one node"):
        ProcessBroker(1)
    with pytest.raises(ConfigError, match=r"num\.partition"):
        ProcessBroker(config={"num.partition": 1})
    with pytest.raises(ValueError, match="invalid topics"):
        ProcessBroker(topics="orders")


def test_features_of_local_brokers_name_the_alternative() -> None:
    with ProcessBroker() as kafka, pytest.raises(AttributeError, match="LocalBroker"):
        kafka.fault("Produce", error="NOT_LEADER_OR_FOLLOWER")


def test_failed_start_stops_nodes_and_deletes_their_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes have started, but cannot be reached."""
    stopped: list[object] = []
    directories: list[str] = []

    def start(options: list[str]) -> tuple[object, str]:
        directories.append(options[options.index("--data-dir") + 1])
        return "process", "127.0.0.1:1"

    monkeypatch.setattr(process_broker, "start_server", start)
    monkeypatch.setattr(process_broker, "stop_server", stopped.append)
    with pytest.raises(CannotConnect):
        ProcessBroker()
    assert stopped == ["process"]
    assert not os.path.exists(directories[0])
    assert not any(each.name == "kbroker" for each in threading.enumerate())
