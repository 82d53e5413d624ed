"""Source that reads a lake; needs pyarrow."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import trio

from kbroker.client.errors import ClientError
from kbroker.client.offset_spec import Kind, OffsetSpec, check_offsets
from kbroker.client.record_filter import Select
from kbroker.protocol.records import NO_TIMESTAMP, Record

from .merging import merge
from .sources import Chunk, Chunks, by_partition, in_partition, of_partition
from .window import Window

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from kbroker.spark.source.arrow import HeaderRow


class LakeSource:
    """Records of a topic in a lake, without unreadable records and aborted transactions.

    Args:
        lake: Directory of the lake.
        topic: Name of the topic.
        first: Start of each partition.
        last: End of each partition.
        only: Partitions to read; empty for all.

    Raises:
        ClientError: The lake does not contain the topic.
        LooksLikeTime: An offset is after the end of all partitions, and probably a time.
    """

    def __init__(
        self,
        lake: Path,
        topic: str,
        first: OffsetSpec,
        last: OffsetSpec,
        *,
        only: Sequence[int] = (),
    ) -> None:
        reading = _lake_reading()
        self.name = f"{topic} in {lake}"
        self._lake = lake
        self._topic = topic
        self._bounds = first, last
        self._ranges: dict[int, tuple[int, int]] = {}
        for file in reading.files(lake, topic):
            begin, end = self._ranges.get(file.partition, (file.first, 0))
            self._ranges[file.partition] = min(begin, file.first), max(end, file.last + 1)
        if not self._ranges:
            raise ClientError(f"{lake} has no records of {topic}; list its topics with `ls {lake}`")
        self.partitions: int | None = max(self._ranges) + 1
        self._ranges = {
            index: part for index, part in sorted(self._ranges.items()) if not only or index in only
        }
        for spec in self._bounds:
            if spec.kind == Kind.OFFSET:
                ends = {(topic, index): end for index, (_, end) in self._ranges.items()}
                check_offsets(dict.fromkeys(ends, spec.value), ends)
        self.total: int | None = sum(end - begin for begin, end in self._ranges.values())

    def remembered(self) -> dict[str, object]:
        return {}

    def position_of(self, partition: int | None, record: Record) -> str:
        return in_partition(self.name, partition, record)

    def positions(self, chunk: Chunk) -> dict[str, int]:
        return by_partition(chunk)

    def resume_hints(self, positions: Mapping[str, int]) -> list[str]:
        return [
            f"-p {index} --from {max(positions.get(str(index), begin), begin)}"
            for index, (begin, end) in self._ranges.items()
            if positions.get(str(index), begin) < end
        ]

    @asynccontextmanager
    async def reading(
        self, positions: Mapping[str, int], wanted: Select | None, *, in_order: bool
    ) -> AsyncIterator[Chunks]:
        """Implement `Source`. Raises pyarrow's errors for unreadable files."""
        async with AsyncExitStack() as stack:
            streams = [
                await stack.enter_async_context(
                    aclosing(self._partition(index, positions.get(str(index)), wanted))
                )
                for index in self._ranges
            ]
            joined = merge(streams) if in_order else _one_after_the_other(streams)
            yield await stack.enter_async_context(aclosing(joined))

    async def _partition(self, index: int, position: int | None, wanted: Select | None) -> Chunks:
        window = self._window(index, position)
        batches = _lake_reading().records(self._lake, self._topic, index)
        while records := await trio.to_thread.run_sync(_next_records, batches):
            inside = [each for each in records if window.has(each.offset, each.timestamp)]
            chunk = of_partition(self._topic, index, inside, wanted)
            if chunk.records:
                yield chunk
            if window.is_over:
                return

    def _window(self, index: int, position: int | None) -> Window:
        """Return the selected part of a partition; a resumed one starts at `position`."""
        begin, end = self._ranges[index]
        first, last = (
            OffsetSpec(Kind.OFFSET, (begin if spec.kind == Kind.START else end) + spec.value)
            if spec.kind in (Kind.START, Kind.END)
            else spec
            for spec in self._bounds
        )
        return Window(first if position is None else OffsetSpec(Kind.OFFSET, position), last)


def _next_records(batches: Iterator[RecordBatch]) -> list[Record]:
    """Return the records of the next batch; empty at the end."""
    batch = next((each for each in batches if each.num_rows), None)
    if batch is None:
        return []
    import pyarrow.compute as pc

    where = batch.column("record")
    times = pc.cast(pc.cast(pc.struct_field(where, "timestamp"), "timestamp[ms]"), "int64")
    columns = [pc.struct_field(where, name).to_pylist() for name in ("key", "headers", "offset")]
    values = _lake_reading().payload(batch)
    return [
        Record(
            key, value, NO_TIMESTAMP if time is None else time, [_pair(row) for row in headers or ()],
            offset,
        )
        for key, headers, offset, value, time in zip(
            *columns, values, times.to_pylist(), strict=True
        )
    ]  # fmt: skip


def _pair(row: HeaderRow) -> tuple[str, bytes | None]:
    return row["key"], row["value"]


async def _one_after_the_other(streams: Sequence[Chunks]) -> Chunks:
    for stream in streams:
        async for chunk in stream:
            yield chunk


def _lake_reading() -> ModuleType:
    try:
        from kbroker.pipelines.lake import reading
    except ImportError as error:
        raise ClientError(
            f"reading a lake needs {error.name}: pip install 'kbroker[spark]'"
        ) from None
    return reading
