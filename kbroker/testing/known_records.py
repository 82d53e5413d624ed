"""Records that a test knows, so that other records are unexpected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbroker.client.topics import Partition

from .kafka_record import KafkaRecord

# Topic, partition, offset, key and value of a record.
RecordIdentity = tuple[str, int, int, bytes | None, bytes | None]


class KnownRecords:
    """Records that a test has produced or waited for, or that existed before the test."""

    def __init__(self) -> None:
        self._starts: dict[Partition, int] = {}
        self._identities: set[RecordIdentity] = set()

    def begin(self, ends: Mapping[Partition, int]) -> None:
        """Begin a test. Records before the log end offsets `ends` are known."""
        self._starts = dict(ends)
        self._identities.clear()

    def add(self, records: Iterable[KafkaRecord]) -> None:
        """Add records that the test knows."""
        self._identities.update(map(_identity, records))

    def forget(self, topic: str) -> None:
        """Remove the records of a deleted topic."""
        self._starts = {each: end for each, end in self._starts.items() if each[0] != topic}
        self._identities = {identity for identity in self._identities if identity[0] != topic}

    def unknown(self, records: Iterable[KafkaRecord]) -> list[KafkaRecord]:
        """Return the records among `records` that the test does not know."""
        return [each for each in records if not self._knows(each)]

    def _knows(self, record: KafkaRecord) -> bool:
        start = self._starts.get((record.topic, record.partition), 0)
        return record.offset < start or _identity(record) in self._identities


def _identity(record: KafkaRecord) -> RecordIdentity:
    """Return the identity of a record.

    Key and value are part of the identity, because the offset of a record that a power cut has lost
    can be assigned again.
    """
    return record.topic, record.partition, record.offset, record.key, record.value
