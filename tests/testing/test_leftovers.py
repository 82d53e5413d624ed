"""Leftovers of brokers: threads, descriptors, temporary files and log handlers."""

from __future__ import annotations

import gc
import logging
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaProducer

from kbroker.testing import BrokerThread, LocalBroker

# Number of brokers in one thread.
BROKERS = 50
# Name prefix of the idle worker threads that trio keeps for some seconds.
TRIO_CACHE = "Trio thread"


class Resources:
    """Resources of this process that a broker could leave behind."""

    def __init__(self) -> None:
        gc.collect()
        self.threads = {
            thread for thread in threading.enumerate() if not thread.name.startswith(TRIO_CACHE)
        }
        self.descriptors = self._descriptors()
        self.files = set(Path(tempfile.gettempdir()).glob("*kbroker*"))
        self.handlers = list(logging.getLogger("kbroker").handlers)

    @staticmethod
    def _descriptors() -> int:
        """Return the number of open descriptors; 0 without /proc."""
        directory = Path("/proc/self/fd")
        return len(list(directory.iterdir())) if directory.exists() else 0

    def new(self, before: Resources) -> dict[str, object]:
        """Return the resources that are not in `before`."""
        return {
            "threads": self.threads - before.threads,
            "descriptors": self.descriptors - before.descriptors,
            "files": self.files - before.files,
            "handlers": len(self.handlers) - len(before.handlers),
        }


NO_RESOURCES = {"threads": set(), "descriptors": 0, "files": set(), "handlers": 0}


@pytest.fixture(autouse=True)
def _separate_temporary_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use a separate directory for temporary files, because other processes run other tests."""
    with tempfile.TemporaryDirectory() as directory:  # a short path, because it has sockets
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield


@pytest.fixture(autouse=True)
def _warm_up(_separate_temporary_directory: None) -> None:
    """Create the resources that exist once per process."""
    with LocalBroker(topics={"orders": 1}) as broker:
        use(broker)


def use(broker: LocalBroker) -> None:
    client = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    client.send("orders", b"x").get(10)
    client.close()
    broker.wait_for("orders")


@pytest.mark.slow
def test_brokers_of_one_thread_leave_nothing_behind(tmp_path: Path) -> None:
    before = Resources()
    thread = BrokerThread()
    for number in range(BROKERS):
        directory = str(tmp_path / str(number)) if number % 10 == 0 else None
        with LocalBroker(
            topics={"orders": 1}, thread=thread, data_dir=directory, disk=number % 10 == 1
        ) as broker:
            broker.produce("orders", "x")
            if number % 10 == 2:
                use(broker)
            if number % 10 == 3:
                broker.restart()
    thread.close()
    assert Resources().new(before) == NO_RESOURCES


def test_brokers_with_own_threads_leave_nothing_behind() -> None:
    before = Resources()
    for _ in range(5):
        with LocalBroker(topics={"orders": 1}) as broker:
            broker.produce("orders", "x")
    assert Resources().new(before) == NO_RESOURCES


def test_crashed_brokers_leave_nothing_behind() -> None:
    before = Resources()
    with LocalBroker(topics={"orders": 1}, disk=True) as broker:
        for _ in range(3):
            broker.produce("orders", "x")
            broker.power_cut()
    assert Resources().new(before) == NO_RESOURCES


def test_open_broker_is_detected_as_leftover() -> None:
    before = Resources()
    broker = LocalBroker(topics={"orders": 1})
    found = Resources().new(before)
    broker.close()
    assert found["threads"]
    assert found["descriptors"]
    assert found["handlers"] == 1
