"""Where records are replayed from: what a source must be able to do."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

from kbroker.client.record_filter import RecordPredicate
from kbroker.protocol.records import Record


class Chunk(NamedTuple):
    """Records that follow each other, at least one, and the partition of each.

    A partition is None where the source does not say. The `offset` of a record is its place in its
    stream, which is a partition, or a file.
    """

    partitions: list[int | None]
    records: list[Record]

    def cut(self, count: int) -> tuple[Chunk, Chunk]:
        """The first `count` records, and the others; here either may be empty."""
        return (
            Chunk(self.partitions[:count], self.records[:count]),
            Chunk(self.partitions[count:], self.records[count:]),
        )


Chunks = AsyncGenerator[Chunk, None]


class Source(Protocol):
    """Somewhere to read records from.

    `name` is how messages call it. `partitions` is how many it has, and `total` about how many
    records there are to read; None where only reading tells.
    """

    name: str
    partitions: int | None
    total: int | None

    def remembered(self) -> dict[str, object]:
        """What was found out when the replay began, for JSON: a later run goes on with the same."""

    def where(self, partition: int | None, record: Record) -> str:
        """How messages call the place of a record."""

    def positions(self, chunk: Chunk) -> dict[str, int]:
        """Where reading goes on in each stream after these records."""

    def left(self, positions: Mapping[str, int]) -> list[str]:
        """For each stream that is not done, in words what goes on with it."""

    def reading(
        self, positions: Mapping[str, int], wanted: RecordPredicate | None, *, in_order: bool
    ) -> AbstractAsyncContextManager[Chunks]:
        """Read what is wanted, on from where streams stand; one that is not named begins at its start.

        With `in_order` the records of several partitions come in the order of their timestamps, as
        far as each partition's own order allows, and each time in the same order.
        """


def by_partition(chunk: Chunk) -> dict[str, int]:
    """The positions of a source whose streams are its partitions."""
    offsets = [record.offset for record in chunk.records]
    last = dict(zip(chunk.partitions, offsets, strict=True))
    return {str(partition): offset + 1 for partition, offset in last.items()}


def in_partition(name: str, partition: int | None, record: Record) -> str:
    """The place of a record in a source of that name whose streams are its partitions."""
    return f"offset {record.offset} of partition {partition} of {name}"


def of_partition(index: int, records: Iterable[Record], wanted: RecordPredicate | None) -> Chunk:
    """What is wanted of some records of one partition; it may be empty."""
    left = [each for each in records if wanted(each)] if wanted else list(records)
    return Chunk([index] * len(left), left)
