"""Replay loop: reads records from a source, waits until they are due, and writes them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import trio

from kbroker.client.errors import ClientError, first_error
from kbroker.client.record_filter import Select
from kbroker.protocol.records import NO_TIMESTAMP, TIMESTAMP_MAX, TIMESTAMP_MIN, Record

from .pace import Pace
from .partitioners import Partitioner, RecordsByPartition
from .sources import Chunk, Source
from .values import Encode, unchanged

# Maximum number of records and bytes per write.
RECORDS_MAX = 10_000
BYTES_MAX = 8 * 1024 * 1024
# Records due within this interval are written together.
TICK_SECONDS = 0.01
# Maximum time that records wait for more records to be written with them, if the source is slow.
LINGER_SECONDS = 0.05
CHUNKS_AHEAD = 8

# Writes records by partition; returns when they are acknowledged.
Write = Callable[[RecordsByPartition], Awaitable[None]]


@dataclass(slots=True)
class Tally:
    """Totals of one partition: sizes in bytes of keys, values and headers, times in ms.

    Times are None until a record has one.
    """

    records: int = 0
    size: int = 0
    first_ms: int | None = None
    latest_ms: int | None = None

    def add(self, records: Sequence[Record]) -> int:
        """Add records to the totals, and return their size in bytes."""
        size = sum(map(_size, records))
        times = [record.timestamp for record in records if record.timestamp != NO_TIMESTAMP]
        if times:
            low, high = min(times), max(times)
            self.first_ms = low if self.first_ms is None else min(self.first_ms, low)
            self.latest_ms = high if self.latest_ms is None else max(self.latest_ms, high)
        self.records += len(records)
        self.size += size
        return size


def _size(record: Record) -> int:
    size = len(record.key or b"") + len(record.value or b"")
    for key, value in record.headers:
        size += len(key) + len(value or b"")
    return size


@dataclass(slots=True)
class Shift:
    """Milliseconds added to timestamps.

    Attributes:
        ms: The shift. If None, the first record's timestamp becomes `now_ms`.
        now_ms: Returns the current time.
        found: Called with the shift when it has been determined.
    """

    ms: int | None
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    found: Callable[[int], None] = lambda ms: None

    def apply(self, records: list[Record]) -> list[Record]:
        """Return the records with shifted timestamps; records without a timestamp are unchanged.

        Raises:
            ClientError: A timestamp exceeds 64 bits.
        """
        if self.ms is None:
            first = next((each for each in records if each.timestamp != NO_TIMESTAMP), None)
            if first is None:
                return records
            self.ms = self.now_ms() - first.timestamp
            self.found(self.ms)
        by = self.ms
        if not by:
            return records
        return [
            Record(key, value, _shifted(at, by), headers, offset)
            for key, value, at, headers, offset in records
        ]


def _shifted(at: int, by: int) -> int:
    if at == NO_TIMESTAMP:
        return at
    moved = at + by
    if not TIMESTAMP_MIN <= moved <= TIMESTAMP_MAX:
        raise ClientError(f"timestamp {at} shifted by {by} ms exceeds 64 bits")
    return 0 if moved == NO_TIMESTAMP else moved  # -1 means no timestamp: use 0


@dataclass(slots=True)
class ResumeState:
    """Progress of an earlier run.

    Attributes:
        positions: Position of each source stream.
        already_written: Number of the next records that are already written, by target partition.
    """

    positions: Mapping[str, int] = field(default_factory=dict)
    already_written: dict[int, int] = field(default_factory=dict)


class Replay:
    """One pass over a source that writes the selected records; see `run`.

    Args:
        source: Source of the records.
        write: Writes records by partition.
        partitioner: Returns the target partition of a record.
        pace: Determines when records are due.
        shift: Shift of timestamps.
        wanted: Selects records; by default all.
        encode: Returns records with the values to write.
        in_order: Read records of several partitions in timestamp order.
        begun: Progress of an earlier run.
        written: Called after each write.

    Attributes:
        positions: Position of each source stream up to which everything is written.
        tallies: Totals of each target partition.
        count: Number of records written.
    """

    def __init__(
        self,
        source: Source,
        write: Write,
        partitioner: Partitioner,
        pace: Pace,
        shift: Shift,
        *,
        wanted: Select | None = None,
        encode: Encode = unchanged,
        in_order: bool = False,
        begun: ResumeState | None = None,
        written: Callable[[], None] = lambda: None,
    ) -> None:
        begun = begun or ResumeState()
        self.positions = dict(begun.positions)
        self.tallies: dict[int, Tally] = {}
        self.count = 0
        self._source = source
        self._encode = encode
        self._write = write
        self._partitioner = partitioner
        self._pace = pace
        self._shift = shift
        self._wanted = wanted
        self._in_order = in_order or pace.in_order or shift.ms is None
        self._left_to_skip = dict(begun.already_written)
        self._written = written
        self._seen = dict(begun.positions)
        self._placed: RecordsByPartition = {}
        self._placed_count = 0
        self._placed_bytes = 0
        self._flushed_at = float("-inf")
        self._stopped = False
        self._idle: trio.CancelScope | None = None

    @property
    def is_behind(self) -> bool:
        """True if records that an earlier run has written are still being skipped."""
        return any(self._left_to_skip.values())

    def stop(self) -> None:
        """Make `run` write the pending records and return."""
        self._stopped = True
        if self._idle is not None:
            self._idle.cancel()

    async def run(self) -> bool:
        """Replay; return True if all records are written, False after `stop`.

        Raises ClientError if the source has changed since an earlier run, and the errors of source
        and target; `positions` is then the last confirmed progress.
        """
        send, receive = trio.open_memory_channel[Chunk](CHUNKS_AHEAD)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read, send)
                await self._write_all(receive)
                nursery.cancel_scope.cancel()
        except ExceptionGroup as group:  # hide the nursery from the caller
            raise first_error(group) from None
        if self.is_behind and not self._stopped:
            raise ClientError(
                "the source ends before the records that an earlier run has written: it has changed "
                "since then; to start over, delete the --progress file"
            )
        return not self._stopped

    async def _read(self, send: trio.MemorySendChannel[Chunk]) -> None:
        # Not `async with`: its checkpoint would lose an error once the channel is no longer read.
        with send:
            async with self._source.reading(
                self.positions, self._wanted, in_order=self._in_order
            ) as chunks:
                async for chunk in chunks:
                    await send.send(await self._encode(chunk))

    async def _write_all(self, receive: trio.MemoryReceiveChannel[Chunk]) -> None:
        while not self._stopped and (chunk := await self._next(receive)) is not None:
            await self._write_chunk(chunk)
        await self._flush()

    async def _next(self, receive: trio.MemoryReceiveChannel[Chunk]) -> Chunk | None:
        """Return the next chunk; None at the end or after `stop`."""
        try:
            return receive.receive_nowait()
        except trio.EndOfChannel:
            return None
        except trio.WouldBlock:
            pass
        try:
            with trio.move_on_after(LINGER_SECONDS):
                return await receive.receive()
            await self._flush()
            with trio.CancelScope() as self._idle:
                return None if self._stopped else await receive.receive()
        except trio.EndOfChannel:
            pass
        return None

    async def _write_chunk(self, chunk: Chunk) -> None:
        """Write a chunk, each record when it is due."""
        rest = chunk
        while rest.records and not self._stopped:
            due = self._pace.due(rest.records, trio.current_time())
            if due:
                part, rest = rest.cut(due)
                self._place(part)
            if self._placed_count >= RECORDS_MAX or self._placed_bytes >= BYTES_MAX:
                await self._flush()
            elif rest.records:
                await self._flush()
                await self._pause(self._pace.next_at(rest.records[0]))

    async def _pause(self, until: float) -> None:
        """Sleep until a record is due, or the replay is stopped."""
        with trio.CancelScope() as self._idle:
            if not self._stopped:
                await trio.sleep_until(max(until, self._flushed_at + TICK_SECONDS))

    def _place(self, chunk: Chunk) -> None:
        """Add records to the next write, by target partition."""
        placed: RecordsByPartition = {}
        partitioner = self._partitioner
        for partition, record in zip(
            chunk.partitions, self._shift.apply(chunk.records), strict=True
        ):
            placed.setdefault(partitioner(partition, record), []).append(record)
        for index, records in placed.items():
            new = self._without_written(index, records)
            if new:
                self._placed_bytes += self.tallies.setdefault(index, Tally()).add(new)
                self._placed_count += len(new)
                self._placed.setdefault(index, []).extend(new)
        self._seen |= self._source.positions(chunk)

    def _without_written(self, index: int, records: list[Record]) -> list[Record]:
        """Return the records without those that an earlier run has written."""
        already_written = self._left_to_skip.get(index, 0)
        if already_written:
            self._left_to_skip[index] = max(already_written - len(records), 0)
        return records[already_written:]

    async def _flush(self) -> None:
        """Write the pending records and update the progress."""
        if self._placed:
            await self._write(self._placed)
        self.count += self._placed_count
        self._placed = {}
        self._placed_count = self._placed_bytes = 0
        self.positions = dict(self._seen)
        self._flushed_at = trio.current_time()
        self._written()
