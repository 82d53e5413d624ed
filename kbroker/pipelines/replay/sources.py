"""Protocol of the sources of a replay."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

from kbroker.client.record_filter import Select
from kbroker.protocol.records import Record


class Chunk(NamedTuple):
    """Consecutive records, at least one, with the partition of each.

    A partition is None if unknown. The `offset` of a record is its position in its stream, which is
    a partition or a file.
    """

    partitions: list[int | None]
    records: list[Record]

    def cut(self, count: int) -> tuple[Chunk, Chunk]:
        """Split after `count` records; either part may be empty."""
        return (
            Chunk(self.partitions[:count], self.records[:count]),
            Chunk(self.partitions[count:], self.records[count:]),
        )


Chunks = AsyncGenerator[Chunk, None]


class Source(Protocol):
    """Source of records.

    Attributes:
        name: Name for messages.
        partitions: Number of partitions; None if unknown before reading.
        total: Approximate number of records; None if unknown before reading.
    """

    name: str
    partitions: int | None
    total: int | None

    def remembered(self) -> dict[str, object]:
        """Return the properties (as JSON) that a resumed run must reuse."""

    def position_of(self, partition: int | None, record: Record) -> str:
        """Return the position of a record, for messages."""

    def positions(self, chunk: Chunk) -> dict[str, int]:
        """Return the position after these records in each stream."""

    def resume_hints(self, positions: Mapping[str, int]) -> list[str]:
        """Return, for each unfinished stream, how to resume it."""

    def reading(
        self, positions: Mapping[str, int], wanted: Select | None, *, in_order: bool
    ) -> AbstractAsyncContextManager[Chunks]:
        """Read the selected records.

        Args:
            positions: Position at which each stream resumes; a missing stream starts at its
                beginning.
            wanted: Selects records; None for all.
            in_order: Return records of several partitions in timestamp order, keeping the order
                within each partition. The order is deterministic.

        Returns:
            A context manager of the chunks.
        """


def by_partition(chunk: Chunk) -> dict[str, int]:
    """Return the positions of a source whose streams are partitions."""
    offsets = [record.offset for record in chunk.records]
    last = dict(zip(chunk.partitions, offsets, strict=True))
    return {str(partition): offset + 1 for partition, offset in last.items()}


def in_partition(name: str, partition: int | None, record: Record) -> str:
    """Return the position of a record in a partition, for messages."""
    return f"offset {record.offset} of partition {partition} of {name}"


def of_partition(topic: str, index: int, records: Iterable[Record], wanted: Select | None) -> Chunk:
    """Return the selected records of one partition; the chunk may be empty."""
    left = [each for each in records if wanted is None or wanted(topic, index, each)]
    return Chunk([index] * len(left), left)
