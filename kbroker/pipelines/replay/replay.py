"""One replay: records come from a source, wait until they are due, and are written."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import trio

from kbroker.client.errors import ClientError, first_error
from kbroker.client.record_filter import RecordPredicate
from kbroker.protocol.records import NO_TIMESTAMP, TIMESTAMP_MAX, TIMESTAMP_MIN, Record

from .pace import Pace
from .partitioners import Partitioner, RecordsByPartition
from .sources import Chunk, Source
from .values import Encode, as_they_are

RECORDS_MAX = 10_000
BYTES_MAX = 8 * 1024 * 1024
"""How much is written at once."""
TICK_SECONDS = 0.01
"""Records that are due within this are written together."""
LINGER_SECONDS = 0.05
"""How long records wait for others when the source is slower than the target."""
CHUNKS_AHEAD = 8

Write = Callable[[RecordsByPartition], Awaitable[None]]
"""Writes records by partition; when it returns they are written."""


@dataclass(slots=True)
class Tally:
    """What went to one partition: sizes are bytes of keys, values and headers, times ms.

    Times are None before there is a record that has one.
    """

    records: int = 0
    size: int = 0
    first_ms: int | None = None
    latest_ms: int | None = None

    def add(self, records: Sequence[Record]) -> int:
        """Count records; returns their size."""
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
    """What is added to timestamps: `ms`; None until the first record, which is then of `now_ms`.

    `found` is told what came out of that.
    """

    ms: int | None
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    found: Callable[[int], None] = lambda ms: None

    def apply(self, records: list[Record]) -> list[Record]:
        """The records with their new timestamps; one that has none gets none.

        Raises ClientError for a timestamp that leaves the 64 bits.
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
        raise ClientError(f"the timestamp {at} cannot be moved by {by} ms: it has 64 bits")
    return 0 if moved == NO_TIMESTAMP else moved  # a millisecond later: it has a time


@dataclass(slots=True)
class Begun:
    """How far an earlier run came, for one that goes on.

    `there` has how many of the next records each partition of the target has already.
    """

    positions: Mapping[str, int] = field(default_factory=dict)
    there: dict[int, int] = field(default_factory=dict)


class Replay:
    """Reads a source once and writes what is wanted of it; see `run`.

    `positions` says how far each stream of the source is written; `tallies` what went to each
    partition of the target.

    Parameters: `encode` gives records the values that are written; `partitioner` says where a record goes; `in_order` whether records of several partitions
    must come in the order of time; `written` is called whenever something is written.
    """

    def __init__(
        self,
        source: Source,
        write: Write,
        partitioner: Partitioner,
        pace: Pace,
        shift: Shift,
        *,
        wanted: RecordPredicate | None = None,
        encode: Encode = as_they_are,
        in_order: bool = False,
        begun: Begun | None = None,
        written: Callable[[], None] = lambda: None,
    ) -> None:
        begun = begun or Begun()
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
        self._there = dict(begun.there)
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
        """Whether the target still has records of an earlier run that come again."""
        return any(self._there.values())

    def stop(self) -> None:
        """Let `run` write what it has and return."""
        self._stopped = True
        if self._idle is not None:
            self._idle.cancel()

    async def run(self) -> bool:
        """Replay; returns whether all of it is done, and not stopped.

        Raises what reading and writing raise; then `positions` is how far it was sure.
        """
        send, receive = trio.open_memory_channel[Chunk](CHUNKS_AHEAD)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read, send)
                await self._play_all(receive)
                nursery.cancel_scope.cancel()
        except ExceptionGroup as group:  # the caller need not know that there are tasks
            raise first_error(group) from None
        return not self._stopped

    async def _read(self, send: trio.MemorySendChannel[Chunk]) -> None:
        # Not `async with`: its checkpoint would lose an error when the channel is not read any more.
        with send:
            async with self._source.reading(
                self.positions, self._wanted, in_order=self._in_order
            ) as chunks:
                async for chunk in chunks:
                    await send.send(await self._encode(chunk))

    async def _play_all(self, receive: trio.MemoryReceiveChannel[Chunk]) -> None:
        while not self._stopped and (chunk := await self._next(receive)) is not None:
            await self._play(chunk)
        await self._flush()

    async def _next(self, receive: trio.MemoryReceiveChannel[Chunk]) -> Chunk | None:
        """The next chunk; None at the end, and when the replay is stopped."""
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

    async def _play(self, chunk: Chunk) -> None:
        """Write a chunk, each record when it is due."""
        rest = chunk
        while rest.records and not self._stopped:
            due = self._pace.due(rest.records, trio.current_time())
            if due:
                part, rest = rest.cut(due)
                self._take(part)
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

    def _take(self, chunk: Chunk) -> None:
        """Put records to those that are written next."""
        placed: RecordsByPartition = {}
        partitioner = self._partitioner
        for partition, record in zip(
            chunk.partitions, self._shift.apply(chunk.records), strict=True
        ):
            placed.setdefault(partitioner(partition, record), []).append(record)
        for index, records in placed.items():
            new = self._not_there(index, records)
            if new:
                self._placed_bytes += self.tallies.setdefault(index, Tally()).add(new)
                self._placed_count += len(new)
                self._placed.setdefault(index, []).extend(new)
        self._seen |= self._source.positions(chunk)

    def _not_there(self, index: int, records: list[Record]) -> list[Record]:
        """Without those that an earlier run has written."""
        there = self._there.get(index, 0)
        if there:
            self._there[index] = max(there - len(records), 0)
        return records[there:]

    async def _flush(self) -> None:
        """Write what was taken. Then it counts, and the source is done up to here."""
        if self._placed:
            await self._write(self._placed)
        self.count += self._placed_count
        self._placed = {}
        self._placed_count = self._placed_bytes = 0
        self.positions = dict(self._seen)
        self._flushed_at = trio.current_time()
        self._written()
