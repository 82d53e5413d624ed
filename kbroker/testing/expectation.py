"""A sentence about a record to come."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .kit import WAIT_SECONDS, KafkaRecord, Value, to_bytes

if TYPE_CHECKING:
    from .local import KafkaHandle

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0}


class Expectation:
    """What a record must be like: each call narrows it down; `within` waits for it."""

    def __init__(self, kafka: KafkaHandle, topic: str) -> None:
        self._kafka = kafka
        self._topic = topic
        self._criteria: list[Callable[[KafkaRecord], bool]] = []

    def key(self, key: Value) -> Expectation:
        """It has this key."""
        return self.that(lambda record: record.key == to_bytes(key))

    def value(self, value: Value) -> Expectation:
        """It has this value."""
        return self.that(lambda record: record.value == to_bytes(value))

    def header(self, name: str, value: Value) -> Expectation:
        """It has this header."""
        return self.that(lambda record: (name, to_bytes(value)) in record.headers)

    def json(self, **fields: Any) -> Expectation:
        """Its value is a JSON object with these fields, among others."""
        return self.that(lambda record: fields.items() <= _object(record).items())

    def that(self, criterion: Callable[[KafkaRecord], bool]) -> Expectation:
        """Something else is true of it."""
        self._criteria.append(criterion)
        return self

    def within(self, time: str | float = WAIT_SECONDS) -> KafkaRecord:
        """Wait for it, at most `time`: seconds, or "200ms", "2s", "1m". Raises WaitTimeout."""
        (found, *_) = self._kafka.wait_for(
            self._topic,
            match=lambda record: all(criterion(record) for criterion in self._criteria),
            timeout=seconds(time),
        )
        return found


def _object(record: KafkaRecord) -> dict[str, Any]:
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
