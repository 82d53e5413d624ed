"""What a broker held: to go back to, to begin from, to keep."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from kbroker.storage.files import MemFiles
from kbroker.testing import LocalBroker, Snapshot

SERVE = [
    sys.executable,
    *["-m", "kbroker", "serve", "--port", "0", "--idle-timeout", "100ms", "--json"],
]

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(topics={"orders": 2}) as broker:
        yield broker


def values(broker: LocalBroker, topic: str = "orders") -> list[str]:
    return [record.text for record in broker.records(topic)]


def commit(broker: LocalBroker, offset: int) -> None:
    """As an application that reads by itself commits."""
    from kafka.structs import OffsetAndMetadata

    client = KafkaConsumer(
        bootstrap_servers=broker.bootstrap_servers, group_id="g", enable_auto_commit=False
    )
    client.assign([TopicPartition("orders", 0)])
    client.commit({TopicPartition("orders", 0): OffsetAndMetadata(offset, "", -1)})
    client.close()


def test_back_to_where_it_was(broker: LocalBroker) -> None:
    broker.produce("orders", "1", partition=0)
    commit(broker, 1)
    snapshot = broker.snapshot()
    broker.produce("orders", "2", partition=0)
    commit(broker, 2)
    broker.create_topic("other")
    broker.restore(snapshot)
    assert values(broker) == ["1"]
    assert broker.committed("g") == {("orders", 0): 1}
    assert list(broker.topics()) == ["orders"]
    assert broker.produce("orders", "two", partition=0).offset == 1
    broker.restore(snapshot)
    assert values(broker) == ["1"], "a snapshot can be used again"


def test_clients_go_on_by_themselves(broker: LocalBroker) -> None:
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, reconnect_backoff_ms=10, retry_backoff_ms=10
    )
    producer.send("orders", b"1", partition=0).get(10)
    snapshot = broker.snapshot()
    address = broker.bootstrap_servers
    broker.restore(snapshot)
    assert broker.bootstrap_servers == address
    assert producer.send("orders", b"2", partition=0).get(10).offset == 1
    producer.close()


def test_a_fork_goes_its_own_way(broker: LocalBroker) -> None:
    broker.produce("orders", "1", partition=0)
    with broker.fork() as fork:
        fork.produce("orders", "theirs", partition=0)
        broker.produce("orders", "ours", partition=0)
        assert values(fork) == ["1", "theirs"]
        assert values(broker) == ["1", "ours"]


def test_a_saved_snapshot_can_be_loaded_and_served(broker: LocalBroker, tmp_path: Path) -> None:
    broker.produce("orders", "kept")
    broker.snapshot().save(tmp_path / "saved")
    with pytest.raises(FileExistsError):
        broker.snapshot().save(tmp_path / "saved")
    with LocalBroker(load=Snapshot.load(tmp_path / "saved")) as other:
        assert values(other) == ["kept"]
    dump = subprocess.run(
        [*SERVE, "--data-dir", str(tmp_path / "saved")],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert '"event": "ready"' in dump.stdout


def test_a_broker_on_disk_says_what_to_do_instead(tmp_path: Path) -> None:
    with (
        LocalBroker(data_dir=str(tmp_path / "data")) as broker,
        pytest.raises(ValueError, match="copy the data folder"),
    ):
        broker.snapshot()


def test_files_that_are_forked_share_what_there_is() -> None:
    files = MemFiles()
    files.mkdir("d")
    file = files.open("d/f", create=True)
    file.append([b"abc"])
    other = files.fork()
    file.append([b"ours"])
    other.open("d/f").append([b"theirs"])
    files.write_atomic("d/g", b"new")
    assert files.read_bytes("d/f") == b"abcours"
    assert other.read_bytes("d/f") == b"abctheirs"
    assert (other.exists("d/g"), other.used, files.used) == (False, 9, 10)
    other.open("d/f").truncate(2)
    other.open("d/f").append([b"-"])
    assert (files.read_bytes("d/f"), other.read_bytes("d/f")) == (b"abcours", b"ab-")
