"""A sentence about a record to come."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import takewhile
from typing import NamedTuple

from .kit import WAIT_SECONDS, KafkaRecord, Value, to_bytes

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0}


class Criterion(NamedTuple):
    """Something that must be true of a record, and how to say it."""

    text: str
    holds: Callable[[KafkaRecord], bool]


class Expectation:
    """What a record must be like: each call narrows it down; `within` waits for it.

    Parameters: `wait` waits for a record that matches, so many seconds.
    """

    def __init__(self, topic: str, wait: Callable[[Expectation, float], KafkaRecord]) -> None:
        self.topic = topic
        self._wait = wait
        self._criteria: list[Criterion] = []

    def key(self, key: Value) -> Expectation:
        """It has this key."""
        return self._with(f"key {key!r}", lambda record: record.key == to_bytes(key))

    def value(self, value: Value) -> Expectation:
        """It has this value."""
        return self._with(f"value {value!r}", lambda record: record.value == to_bytes(value))

    def header(self, name: str, value: Value) -> Expectation:
        """It has this header."""
        header = (name, to_bytes(value))
        return self._with(f"header {name}={value!r}", lambda each: header in each.headers)

    def json(self, **fields: object) -> Expectation:
        """Its value is a JSON object with these fields, among others."""
        return self._with(f"JSON {fields}", lambda each: fields.items() <= _object(each).items())

    def that(self, criterion: Callable[[KafkaRecord], bool]) -> Expectation:
        """Something else is true of it."""
        return self._with("something of its own", criterion)

    def _with(self, text: str, holds: Callable[[KafkaRecord], bool]) -> Expectation:
        self._criteria.append(Criterion(text, holds))
        return self

    def within(self, time: str | float = WAIT_SECONDS) -> KafkaRecord:
        """Wait for it, at most `time`: seconds, or "200ms", "2s", "1m". Raises WaitTimeout."""
        return self._wait(self, seconds(time))

    def nearness(self, record: KafkaRecord) -> int:
        """How much of what is expected is true of a record, up to the first thing that is not."""
        return sum(1 for _ in takewhile(lambda each: each.holds(record), self._criteria))

    def matches(self, record: KafkaRecord) -> bool:
        """Whether it is one that is expected."""
        return all(criterion.holds(record) for criterion in self._criteria)

    def __str__(self) -> str:
        words = ", ".join(criterion.text for criterion in self._criteria)
        return f"a record in {self.topic!r}" + (f" with {words}" if words else "")


def _object(record: KafkaRecord) -> dict[str, object]:
    try:
        value = record.json
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def seconds(time: str | float) -> float:
    """A span of time in seconds. Raises ValueError."""
    if not isinstance(time, str):
        return time
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m)", time.strip())
    if match is None:
        raise ValueError(f"{time!r} is no span of time; write 200ms, 2s or 1m")
    return float(match[1]) * UNITS[match[2]]
