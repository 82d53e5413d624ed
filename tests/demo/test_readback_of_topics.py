"""Topics that are read back: only time without records counts as silence."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import pytest

from kbroker.demo import DemoError, readback


class Poll(NamedTuple):
    """One poll of `Consumer`: its duration in seconds, and the number of records that it returns."""

    seconds: float
    records: int


class Partition(NamedTuple):
    topic: str
    partition: int


class Message(NamedTuple):
    offset: int
    timestamp: int = 0
    key: bytes | None = None
    value: bytes | None = None


class Consumer:
    """Stands in for KafkaConsumer, with one partition and planned polls, of which the last one repeats."""

    def __init__(self, clock: list[float], *polls: Poll) -> None:
        self._clock = clock
        self._polls = list(polls)
        self._next = 0

    def position(self, partition: Partition) -> int:
        return self._next

    def poll(self, timeout_ms: int) -> dict[Partition, list[Message]]:
        poll = self._polls.pop(0) if len(self._polls) > 1 else self._polls[0]
        self._clock[0] += poll.seconds
        first, self._next = self._next, self._next + poll.records
        found = [Message(at) for at in range(first, self._next)]
        return {Partition("t", 0): found} if found else {}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The current time, which only tests advance."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def read(consumer: Any, clock: list[float], *, seconds_per_record: float) -> int:
    """Read the topic to its end at offset 3, and return the number of records."""
    count = 0
    for _ in readback._until(consumer, {Partition("t", 0): 3}):
        clock[0] += seconds_per_record
        count += 1
    return count


def test_time_of_caller_is_no_silence(clock: list[float]) -> None:
    consumer = Consumer(clock, Poll(0.5, 2), Poll(0.5, 0), Poll(0.5, 1))
    assert read(consumer, clock, seconds_per_record=100) == 3


def test_suspended_process_does_not_end_read(clock: list[float]) -> None:
    consumer = Consumer(clock, Poll(0.5, 2), Poll(3600, 0), Poll(0.5, 1))
    assert read(consumer, clock, seconds_per_record=0) == 3


def test_topic_without_records_ends_read(clock: list[float]) -> None:
    began = clock[0]
    with pytest.raises(DemoError, match="No records of topic t for 60 s: partition 0 at 2 of 3"):
        read(Consumer(clock, Poll(0.5, 2), Poll(0.5, 0)), clock, seconds_per_record=0)
    assert 60 < clock[0] - began < 70
