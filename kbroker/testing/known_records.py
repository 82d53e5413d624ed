"""The records that a test expects, to find those that it does not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbroker.client.topics import Partition

from .kit import KafkaRecord

Place = tuple[str, int, int, bytes | None, bytes | None]


class KnownRecords:
    """Records that a test has produced or waited for, or that existed before the test."""

    def __init__(self) -> None:
        self._starts: dict[Partition, int] = {}
        self._places: set[Place] = set()

    def begin(self, ends: Mapping[Partition, int]) -> None:
        """Begin a test: records below `ends` existed before it."""
        self._starts = dict(ends)
        self._places.clear()

    def add(self, records: Iterable[KafkaRecord]) -> None:
        """Add records that the test knows."""
        self._places.update(map(_place, records))

    def forget(self, topic: str) -> None:
        """Forget the records of a deleted topic."""
        self._starts = {each: end for each, end in self._starts.items() if each[0] != topic}
        self._places = {place for place in self._places if place[0] != topic}

    def others(self, records: Iterable[KafkaRecord]) -> list[KafkaRecord]:
        """Return the records that the test does not know."""
        return [each for each in records if not self._knows(each)]

    def _knows(self, record: KafkaRecord) -> bool:
        start = self._starts.get((record.topic, record.partition), 0)
        return record.offset < start or _place(record) in self._places


def _place(record: KafkaRecord) -> Place:
    """Return the identity of a record, with key and value.

    After a power cut another record can have the offset of a lost one.
    """
    return record.topic, record.partition, record.offset, record.key, record.value
