"""Source that reads NDJSON, as printed by `kbroker topic consume`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import BinaryIO

from kbroker.client.errors import ClientError
from kbroker.client.lines import lines_of
from kbroker.client.ndjson import BadLine, Line, parse_line
from kbroker.client.offset_spec import Kind, OffsetSpec
from kbroker.client.record_filter import Select
from kbroker.protocol.records import Record

from .sources import Chunk, Chunks
from .window import Window

# Name of a file's only stream; its positions are line numbers from 0.
STREAM = "lines"


class NdjsonSource:
    """Records of a file or of standard input, in line order.

    Args:
        name: Name of the stream, for messages.
        stream: Stream of lines.
        first: Start of each partition, by the offsets or timestamps in the lines. It cannot be
            relative to a partition's start or end.
        last: End of each partition, with the same restriction.
        topic: Skip lines of other topics.
        only: Skip lines of other partitions; empty for all.

    Raises:
        ClientError: A bound is relative to a partition's start or end.
    """

    def __init__(
        self,
        name: str,
        stream: BinaryIO,
        first: OffsetSpec,
        last: OffsetSpec,
        *,
        topic: str | None = None,
        only: Collection[int] = (),
    ) -> None:
        self.name = name
        self.partitions: int | None = None
        self.total: int | None = None
        self._stream = stream
        self._topic = topic
        self._only = only
        self._first = first
        self._last = last
        self._windows: dict[tuple[str | None, int | None], Window] = {}
        for spec in (first, last):
            if spec.kind in (Kind.START, Kind.END) and spec.value:
                raise ClientError(
                    f"{name} is read line by line: bounds cannot be relative to its start or end"
                )

    def remembered(self) -> dict[str, object]:
        return {}

    def position_of(self, partition: int | None, record: Record) -> str:
        return self._line(record.offset)

    def positions(self, chunk: Chunk) -> dict[str, int]:
        return {STREAM: chunk.records[-1].offset + 1}

    def resume_hints(self, positions: Mapping[str, int]) -> list[str]:
        return [f"skip the first {positions.get(STREAM, 0)} lines"]

    @asynccontextmanager
    async def reading(
        self, positions: Mapping[str, int], wanted: Select | None, *, in_order: bool
    ) -> AsyncIterator[Chunks]:
        """Implement `Source`; the order is always that of the lines. Raises ClientError."""
        async with aclosing(self._chunks(positions.get(STREAM, 0), wanted)) as chunks:
            yield chunks

    async def _chunks(self, begin: int, wanted: Select | None) -> Chunks:
        number = 0
        async with aclosing(lines_of(self._stream)) as lines:
            async for texts in lines:
                lines_left = self._parsed(texts, number)
                found = [
                    line._replace(record=_with_position(line.record, at))
                    for at, line in lines_left
                    if at >= begin
                    and (wanted is None or wanted(line.topic, line.partition, line.record))
                ]
                if found:
                    yield Chunk([line.partition for line in found], [line.record for line in found])
                number += len(texts)
        if number < begin:
            raise ClientError(
                f"{self.name} has {number} lines, but an earlier run has read {begin}: pass the "
                "same lines again"
            )

    def _parsed(self, texts: Sequence[bytes], number: int) -> Iterable[tuple[int, Line]]:
        """Yield the selected lines, numbered from `number`; record offsets are line numbers."""
        now_ms = time.time_ns() // 1_000_000
        for at, text in enumerate(texts, number):
            if not text.strip():
                continue
            try:
                line = parse_line(text, now_ms)
                wanted = self._is_wanted(line)
            except BadLine as error:
                raise ClientError(f"{self._line(at)}: {error}") from None
            if wanted:
                yield at, line._replace(topic=line.topic or self._topic)

    def _line(self, number: int) -> str:
        return f"line {number + 1} of {self.name}"

    def _is_wanted(self, line: Line) -> bool:
        if self._topic is not None and line.topic not in (None, self._topic):
            return False
        if self._only and line.partition not in self._only:
            return False
        at = line.topic, line.partition
        if at not in self._windows:
            self._windows[at] = Window(self._first, self._last)
        record = line.record
        if record.offset < 0 and Kind.OFFSET in (self._first.kind, self._last.kind):
            raise BadLine("line has no offset, so it cannot be selected by offset")
        return self._windows[at].has(record.offset, record.timestamp)


def _with_position(record: Record, at: int) -> Record:
    """Return a record whose offset is its position in the stream."""
    key, value, timestamp, headers, _ = record
    return Record(key, value, timestamp, headers, at)
