"""Expectations of records, written as a chain of method calls."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import NamedTuple

from kbroker.text.durations import parse_duration

from .kafka_record import KafkaRecord
from .kit import WAIT_SECONDS, Value, to_bytes


class Criterion(NamedTuple):
    """A condition that a record must meet, and its description."""

    text: str
    holds: Callable[[KafkaRecord], bool]


class Expectation:
    """Criteria of an expected record: each call adds one, and `within` waits for the record.

    Args:
        topic: Topic name.
        wait: Waits for a record that meets the expectation, for at most a number of seconds.
    """

    def __init__(self, topic: str, wait: Callable[[Expectation, float], KafkaRecord]) -> None:
        self.topic = topic
        self._wait = wait
        self._criteria: list[Criterion] = []

    def key(self, key: Value) -> Expectation:
        """Expect a key.

        Args:
            key: Key: bytes as they are, a string as UTF-8, everything else as JSON.

        Returns:
            This expectation.
        """
        return self._add_criterion(f"key {key!r}", lambda record: record.key == to_bytes(key))

    def value(self, value: Value) -> Expectation:
        """Expect a value.

        Args:
            value: Value: bytes as they are, a string as UTF-8, everything else as JSON.

        Returns:
            This expectation.
        """
        return self._add_criterion(
            f"value {value!r}", lambda record: record.value == to_bytes(value)
        )

    def header(self, name: str, value: Value) -> Expectation:
        """Expect a header.

        Args:
            name: Header name.
            value: Header value, converted like a record value.

        Returns:
            This expectation.
        """
        header = (name, to_bytes(value))
        return self._add_criterion(f"header {name}={value!r}", lambda each: header in each.headers)

    def json(self, **fields: object) -> Expectation:
        """Expect a JSON object that has these fields; it may have others.

        Args:
            fields: Expected fields.

        Returns:
            This expectation.
        """
        return self._add_criterion(
            f"JSON {fields}", lambda each: fields.items() <= _object(each).items()
        )

    def that(self, criterion: Callable[[KafkaRecord], bool]) -> Expectation:
        """Expect that a function returns True for the record.

        Args:
            criterion: Gets a record, and returns True if the record meets the expectation.

        Returns:
            This expectation.
        """
        return self._add_criterion("a custom criterion", criterion)

    def _add_criterion(self, text: str, holds: Callable[[KafkaRecord], bool]) -> Expectation:
        self._criteria.append(Criterion(text, holds))
        return self

    def within(self, time: str | float = WAIT_SECONDS) -> KafkaRecord:
        """Wait until a record meets all criteria.

        Args:
            time: Maximum time to wait: seconds, or "200ms", "2s", "1m".

        Returns:
            The first such record.

        Raises:
            ValueError: `time` is a string, but not a valid duration.
            WaitTimeout: No record meets all criteria; the message lists the most similar records.
        """
        return self._wait(self, seconds(time))

    def nearness(self, record: KafkaRecord) -> int:
        """Return the number of criteria that a record meets before the first unmet one."""
        return sum(1 for _ in takewhile(lambda each: each.holds(record), self._criteria))

    def matches(self, record: KafkaRecord) -> bool:
        """Return True if a record meets all criteria."""
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
    """Convert a time to seconds.

    Raises:
        ValueError: `time` is a string, but not a valid duration.
    """
    return parse_duration(time) if isinstance(time, str) else time
