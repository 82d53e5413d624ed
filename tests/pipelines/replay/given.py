"""Sources and targets that are lists."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

import trio

from kbroker.client.record_filter import Select
from kbroker.pipelines.replay.merging import merge
from kbroker.pipelines.replay.partitioners import RecordsByPartition
from kbroker.pipelines.replay.sources import Chunk, Chunks, by_partition, of_partition
from kbroker.protocol.records import Record


def records(*times: int, begin: int = 0) -> list[Record]:
    """Return records with these timestamps. The value is the timestamp."""
    return [
        Record(b"k%d" % (at % 5), b"%d" % time, time, [("h", b"v")], at)
        for at, time in enumerate(times, begin)
    ]


async def in_chunks(index: int, listed: Sequence[Record], size: int = 2) -> Chunks:
    """Yield the records of a partition in chunks."""
    for at in range(0, len(listed), size):
        yield of_partition("t", index, listed[at : at + size], None)


class ListSource:
    """A source with records by partition."""

    name = "a list"
    total: int | None = None

    def __init__(self, *partitions: Sequence[Record]) -> None:
        self.partitions: int | None = len(partitions)
        self._records = partitions

    def remembered(self) -> dict[str, object]:
        return {}

    def position_of(self, partition: int | None, record: Record) -> str:
        return f"record {record.offset} of {partition}"

    def positions(self, chunk: Chunk) -> dict[str, int]:
        return by_partition(chunk)

    def resume_hints(self, positions: Mapping[str, int]) -> list[str]:
        return []

    @asynccontextmanager
    async def reading(
        self, positions: Mapping[str, int], wanted: Select | None, *, in_order: bool
    ) -> AsyncIterator[Chunks]:
        streams = []
        for index, listed in enumerate(self._records):
            left = [one for one in listed if one.offset >= positions.get(str(index), 0)]
            streams.append(
                in_chunks(index, [one for one in left if wanted is None or wanted("t", index, one)])
            )
        async with AsyncExitStack() as stack:
            for stream in streams:
                await stack.enter_async_context(aclosing(stream))
            joined = merge(streams) if in_order else _chained(streams)
            yield await stack.enter_async_context(aclosing(joined))


async def _chained(streams: Sequence[Chunks]) -> Chunks:
    for stream in streams:
        async for chunk in stream:
            yield chunk


class ListTarget:
    """A target that stores (time, partition, value) of each record."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, int, bytes | None]] = []
        self.began_at = trio.current_time()

    async def write(self, placed: RecordsByPartition) -> None:
        now = trio.current_time() - self.began_at
        for index, listed in placed.items():
            self.rows += [(now, index, record.value) for record in listed]
