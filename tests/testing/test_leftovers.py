"""Brokers come and go without a trace: threads, descriptors, temporary files, log handlers."""

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

BROKERS = 50
TRIO_CACHE = "Trio thread"
"""Idle worker threads, which end by themselves after some seconds; trio bounds their number."""


class Traces:
    """What there is of everything that a broker could leave behind."""

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
        """How many are open; 0 where the system does not tell."""
        directory = Path("/proc/self/fd")
        return len(list(directory.iterdir())) if directory.exists() else 0

    def new(self, before: Traces) -> dict[str, object]:
        """What there was not before."""
        return {
            "threads": self.threads - before.threads,
            "descriptors": self.descriptors - before.descriptors,
            "files": self.files - before.files,
            "handlers": len(self.handlers) - len(before.handlers),
        }


NOTHING = {"threads": set(), "descriptors": 0, "files": set(), "handlers": 0}


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The temporary files of other processes, which run other tests, are no traces."""
    with tempfile.TemporaryDirectory() as directory:  # with a short path, for sockets in it
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield


@pytest.fixture(autouse=True)
def _warmed_up(_alone: None) -> None:
    """What is made once in a process and stays is no trace of a broker."""
    with LocalBroker(topics={"orders": 1}) as broker:
        use(broker)


def use(broker: LocalBroker) -> None:
    client = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    client.send("orders", b"x").get(10)
    client.close()
    broker.wait_for("orders")


@pytest.mark.slow
def test_brokers_of_one_thread(tmp_path: Path) -> None:
    before = Traces()
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
    assert Traces().new(before) == NOTHING


def test_brokers_with_a_thread_of_their_own() -> None:
    before = Traces()
    for _ in range(5):
        with LocalBroker(topics={"orders": 1}) as broker:
            broker.produce("orders", "x")
    assert Traces().new(before) == NOTHING


def test_brokers_that_crash() -> None:
    before = Traces()
    with LocalBroker(topics={"orders": 1}, disk=True) as broker:
        for _ in range(3):
            broker.produce("orders", "x")
            broker.power_cut()
    assert Traces().new(before) == NOTHING


def test_a_broker_that_is_left_open_is_seen() -> None:
    before = Traces()
    broker = LocalBroker(topics={"orders": 1})
    found = Traces().new(before)
    broker.close()
    assert found["threads"]
    assert found["descriptors"]
    assert found["handlers"] == 1
