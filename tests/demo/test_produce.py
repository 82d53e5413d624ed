"""Tests of the producer process: counts of acknowledged and bounds of unacknowledged records."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.demo import produce
from kbroker.demo.data import Message

MESSAGE = Message(b"k", b"v", 5)


class Future:
    """A delivery that the test completes or fails."""

    def __init__(self) -> None:
        self.is_done = False
        self.error: Exception | None = None

    def get(self) -> None:
        """Complete the delivery at once, unlike the real method, which waits."""
        self.is_done = True
        if self.error:
            raise self.error


class Producer:
    """A stand-in for the producer of kafka-python."""

    def __init__(self) -> None:
        self.sent: list[Future] = []
        self.most_in_flight = 0
        self.flushes = 0

    def send(self, topic: str, **record: Any) -> Future:
        assert (topic, record) == ("t", {"key": b"k", "value": b"v", "timestamp_ms": 5})
        self.sent.append(Future())
        in_flight = sum(not future.is_done for future in self.sent)
        self.most_in_flight = max(self.most_in_flight, in_flight)
        return self.sent[-1]

    def flush(self) -> None:
        self.flushes += 1


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "_CHUNK_RECORDS", 10)
    monkeypatch.setattr(produce, "_CHUNKS_IN_FLIGHT", 3)


def messages(count: int) -> Iterator[Message]:
    return iter([MESSAGE] * count)


def test_all_records_are_sent_and_counted() -> None:
    producer = Producer()
    counts = list(produce._acknowledged(producer, "t", messages(95)))
    assert len(producer.sent) == 95
    assert counts == sorted(counts)
    assert counts[-1] == 95
    assert producer.flushes == 1


def test_unacknowledged_records_are_bounded() -> None:
    producer = Producer()
    list(produce._acknowledged(producer, "t", messages(200)))
    assert producer.most_in_flight == 40


def test_undeliverable_record_ends_producer() -> None:
    producer = Producer()
    counts = produce._acknowledged(producer, "t", messages(200))
    next(counts)
    producer.sent[25].error = TimeoutError("expired")
    with pytest.raises(TimeoutError):
        list(counts)


class Parent:
    """A parent that sends "hurry" at the n-th query."""

    def __init__(self, hurry_at: int) -> None:
        self.hurry_at = hurry_at
        self.queries = 0

    def received(self, command: str) -> bool:
        assert command == "hurry"
        self.queries += 1
        return self.queries >= self.hurry_at


def test_rate_is_limited_until_parent_sends_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    monkeypatch.setattr(time, "sleep", slept.append)
    parent: Any = Parent(hurry_at=4)
    assert len(list(produce._paced(messages(1000), 100, parent))) == 1000
    assert slept == [0.0, 1.0, 2.0, 3.0]
