"""Source that reads a lake; needs pyarrow."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

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

NOTHING: Mapping[str, Any] = MappingProxyType({})


class LakeSource:
    """Records of a topic in a lake, without unreadable records and aborted transactions.

    Args:
        lake: Directory of the lake.
        topic: Name of the topic.
        first: Start of each partition.
        last: End of each partition.
        only: Partitions to read; empty for all.
        remembered: Properties that an earlier run has determined; empty for the first run.

    Raises:
        ClientError: The lake does not contain the topic, or not that of the earlier run.
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
        remembered: Mapping[str, Any] = NOTHING,
    ) -> None:
        self.name = f"{topic} in {lake}"
        self._lake = lake
        self._topic = topic
        self._bounds = first, last
        there = _ranges(lake, topic)
        self._topic_id = _topic_id(lake, topic)
        known = {
            int(index): (begin, end) for index, (begin, end) in remembered.get("ranges", {}).items()
        }
        self.partitions: int | None = remembered.get("partitions", max(there) + 1)
        self._ranges = known or {
            index: part for index, part in sorted(there.items()) if not only or index in only
        }
        if remembered:
            self._check_earlier_run(remembered, there)
        for spec in self._bounds:
            if spec.kind == Kind.OFFSET:
                ends = {(topic, index): end for index, (_, end) in self._ranges.items()}
                check_offsets(dict.fromkeys(ends, spec.value), ends)
        self.total: int | None = sum(end - begin for begin, end in self._ranges.values())

    def _check_earlier_run(
        self, remembered: Mapping[str, Any], there: Mapping[int, tuple[int, int]]
    ) -> None:
        """Raise ClientError if the records of an earlier run are no longer in the lake."""
        expected = remembered.get("topic_id", self._topic_id)
        if expected != self._topic_id:
            raise ClientError(
                f"{self.name} has records of the topic with ID {self._topic_id}, but the earlier run "
                f"has read those of the topic with ID {expected}; to start over, delete the "
                "--progress file"
            )
        for index, (begin, end) in self._ranges.items():
            found = there.get(index, (0, 0))
            if not found[0] <= begin < end <= found[1]:
                raise ClientError(
                    f"partition {index} of {self.name} has the offsets {found[0]} to {found[1]}, but "
                    f"had {begin} to {end} in the earlier run: the lake has lost records"
                )

    def remembered(self) -> dict[str, object]:
        return {
            "ranges": {str(index): list(part) for index, part in self._ranges.items()},
            "partitions": self.partitions,
            "topic_id": self._topic_id,
        }

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
        """Implement `Source`. Raises ClientError, and pyarrow's errors for unreadable files."""
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
        end = self._ranges[index][1]
        batches = _lake_reading().records(self._lake, self._topic, index)
        while records := await trio.to_thread.run_sync(_next_records, batches):
            inside = [
                each
                for each in records
                if each.offset < end and window.has(each.offset, each.timestamp)
            ]
            chunk = of_partition(self._topic, index, inside, wanted)
            if chunk.records:
                yield chunk
            if window.is_over or records[-1].offset >= end:
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


def _ranges(lake: Path, topic: str) -> dict[int, tuple[int, int]]:
    """Return the first and the end offset of each partition in a lake. Raises ClientError."""
    reading = _lake_reading()
    try:
        files = reading.files(lake, topic)
    except reading.LakeError as error:
        raise ClientError(str(error)) from None
    found: dict[int, tuple[int, int]] = {}
    for file in files:
        begin, end = found.get(file.partition, (file.first, 0))
        found[file.partition] = min(begin, file.first), max(end, file.last + 1)
    if not found:
        raise ClientError(f"{lake} has no records of {topic}; list its topics with `ls {lake}`")
    return found


def _topic_id(lake: Path, topic: str) -> str:
    """Return the ID of the topic that the lake contains; empty if it is unknown."""
    from kbroker.pipelines.lake.commits import LakeError
    from kbroker.pipelines.lake.settings import Settings

    try:
        settings = Settings.read(lake, topic)
    except LakeError:  # a lake without the archiver's state
        return ""
    return settings.topic_id if settings is not None else ""


def _next_records(batches: Iterator[RecordBatch]) -> list[Record]:
    """Return the records of the next batch; empty at the end."""
    reading = _lake_reading()
    try:
        batch = next((each for each in batches if each.num_rows), None)
    except reading.LakeError as error:
        raise ClientError(str(error)) from None
    if batch is None:
        return []
    import pyarrow.compute as pc

    where = batch.column("record")
    times = pc.cast(pc.cast(pc.struct_field(where, "timestamp"), "timestamp[ms]"), "int64")
    columns = [pc.struct_field(where, name).to_pylist() for name in ("key", "headers", "offset")]
    values = reading.payload(batch)
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
