"""Which records a test knows of: any other one is a surprise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbroker.client.topics import Partition

from .kit import KafkaRecord

Place = tuple[str, int, int, bytes | None, bytes | None]


class KnownRecords:
    """The records that a test has produced, expected or awaited, and those of before it began."""

    def __init__(self) -> None:
        self._starts: dict[Partition, int] = {}
        self._places: set[Place] = set()

    def begin(self, ends: Mapping[Partition, int]) -> None:
        """Begin anew: the records below `ends` were there before."""
        self._starts = dict(ends)
        self._places.clear()

    def add(self, records: Iterable[KafkaRecord]) -> None:
        """The test knows of these."""
        self._places.update(map(_place, records))

    def forget(self, topic: str) -> None:
        """The topic is gone; one of the same name begins at 0."""
        self._starts = {each: end for each, end in self._starts.items() if each[0] != topic}
        self._places = {place for place in self._places if place[0] != topic}

    def others(self, records: Iterable[KafkaRecord]) -> list[KafkaRecord]:
        """Those of which the test does not know."""
        return [each for each in records if not self._knows(each)]

    def _knows(self, record: KafkaRecord) -> bool:
        start = self._starts.get((record.topic, record.partition), 0)
        return record.offset < start or _place(record) in self._places


def _place(record: KafkaRecord) -> Place:
    """With what lies there: another record may take the place of one that a power cut has lost."""
    return record.topic, record.partition, record.offset, record.key, record.value
