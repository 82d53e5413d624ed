"""Read records, or batches as they lie in the log, from partitions and without a group."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import trio

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.record_stream import batch_records, stream_records
from kbroker.protocol.records import BatchHeader, Record, iter_headers, read_marker

from .cluster import RETRY_BACKOFF_SECONDS, ClusterClient
from .connection import Connection
from .errors import CannotConnect, CannotRead, NotReachable, check, error_code, first_error
from .list_offsets import NO_LEADER
from .topics import Partition, by_leader

logger = logging.getLogger(__name__)

FETCH_BYTES_MAX = 16 * 1024 * 1024
PARTITION_BYTES_MAX = 4 * 1024 * 1024
WAIT_MS = 500
AWAY_SECONDS = 30
"""How long a cluster may be away, to be restarted for example."""
TOPIC_BY_NAME = 12
"""The last version of Fetch that names topics."""
READS_AT_ONCE = 512
"""Records that go into the channel together."""
STEPS_AT_ONCE = 8
"""Steps of a batch (each below 1 ms) between two pauses."""
DAMAGE_SECONDS = 3
"""How long a partition may have a storage error: one that stops has it for a moment."""
FOREVER = 1 << 62
"""An end offset that is never reached."""


class Read(NamedTuple):
    """A record that was read, with its batch and the marks of its partition."""

    partition: Partition
    record: Record
    batch: BatchHeader
    log_start: int
    high_watermark: int


class Fetched(NamedTuple):
    """Batches of one partition as its leader sent them; the last one may be cut off.

    `aborted` has the offsets at which aborted transactions begin, by producer id; it is empty
    unless only committed records were asked for.
    """

    partition: Partition
    batches: bytes
    aborted: dict[int, list[int]]
    log_start: int
    next_offset: int
    """Where the next ones begin."""


@dataclass(slots=True)
class Position:
    """Where reading goes on in one partition, and the offset at which it ends.

    `good_at` is when its leader last answered without an error.
    """

    partition: Partition
    offset: int
    end: int = FOREVER
    good_at: float = field(default_factory=trio.current_time)

    @property
    def done(self) -> bool:
        return self.offset >= self.end

    def refused(self, code: ErrorCode) -> None:
        """Take note of an error. Raises ClientError when it does not pass, or not for long."""
        is_damage = code == ErrorCode.KAFKA_STORAGE_ERROR
        away = trio.current_time() - self.good_at
        if not code.retriable or away > (DAMAGE_SECONDS if is_damage else AWAY_SECONDS):
            name, index = self.partition
            raise CannotRead(
                code,
                f"partition {index} of {name} cannot be read ({code.name}); "
                "`kbroker cluster health` says more",
            )


@asynccontextmanager
async def reading(
    cluster: ClusterClient,
    ranges: Mapping[Partition, tuple[int, int]],
    *,
    committed: bool = False,
    control: bool = False,
    bytes_max: int = PARTITION_BYTES_MAX,
) -> AsyncIterator[trio.MemoryReceiveChannel[list[Read]]]:
    """Read ranges of offsets; yields a channel of records, which ends when all are read.

    Parameters: `ranges` has the first offset and the one to stop before (or `FOREVER`) of each
    partition; `committed` leaves out aborted transactions and waits for open ones; `control` also
    gives control records; `bytes_max` is what is asked of a partition at a time. Within a partition
    records come in order, and at most `READS_AT_ONCE` together. Raises ClientError or KafkaError.
    """

    def take(position: Position, row: FetchResponse.Partition) -> Iterator[list[Read] | None]:
        return _in_pieces(_records(position, row, committed, control))

    async with _channel(cluster, ranges, committed, take, bytes_max) as channel:
        yield channel


@asynccontextmanager
async def reading_batches(
    cluster: ClusterClient, ranges: Mapping[Partition, tuple[int, int]], *, committed: bool = False
) -> AsyncIterator[trio.MemoryReceiveChannel[Fetched]]:
    """Read the batches in which ranges of offsets lie, aborted and control batches among them.

    The first and the last batch of a range may hold records beyond it. Parameters: `ranges` as for
    `reading`; with `committed` it waits for open transactions and is told which ones were aborted.
    Raises ClientError or KafkaError.
    """
    async with _channel(cluster, ranges, committed, _batches) as channel:
        yield channel


T = TypeVar("T")
Take: TypeAlias = Callable[[Position, FetchResponse.Partition], Iterator[T | None]]
"""Makes of an answer what goes into the channel, and moves the position; None is a pause."""


@asynccontextmanager
async def _channel(
    cluster: ClusterClient,
    ranges: Mapping[Partition, tuple[int, int]],
    committed: bool,
    take: Take[T],
    bytes_max: int = PARTITION_BYTES_MAX,
) -> AsyncIterator[trio.MemoryReceiveChannel[T]]:
    positions = [Position(partition, *bounds) for partition, bounds in ranges.items()]
    send, receive = trio.open_memory_channel[T](1)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_read_all, cluster, positions, send, committed, take, bytes_max)
            yield receive
            nursery.cancel_scope.cancel()
    except ExceptionGroup as group:  # a reader of records need not know that there are tasks
        raise first_error(group) from None


async def _read_all(
    cluster: ClusterClient,
    positions: list[Position],
    send: trio.MemorySendChannel[T],
    committed: bool,
    take: Take[T],
    bytes_max: int,
) -> None:
    """One task per leader; when leaders change or go away, begin again with what is left."""
    # Not `async with`: its checkpoint would lose an error when the reader of the channel leaves.
    with send:
        while left := [position for position in positions if not position.done]:
            try:
                leaders = await _connect(cluster, left)
            except (OSError, CannotConnect, NotReachable):
                if trio.current_time() > max(each.good_at for each in left) + AWAY_SECONDS:
                    raise
                leaders = []
            stop = trio.Event()
            async with trio.open_nursery() as nursery:
                for connection, owned in leaders:
                    reader = _Reader(owned, send, stop, committed, take, bytes_max)
                    nursery.start_soon(reader.run, connection)
            if not all(position.done for position in left):
                await trio.sleep(RETRY_BACKOFF_SECONDS)


async def _connect(
    cluster: ClusterClient, positions: Iterable[Position]
) -> list[tuple[Connection, list[Position]]]:
    """A connection to each leader, with its partitions. Raises ClientError where there is none."""
    at = {position.partition: position for position in positions}
    owners = await by_leader(cluster, at)
    for partition in owners.pop(NO_LEADER, ()):
        at[partition].refused(ErrorCode.LEADER_NOT_AVAILABLE)
    return [
        (await cluster.dial(node), [at[one] for one in owned]) for node, owned in owners.items()
    ]


class _Reader(Generic[T]):
    """Reads the partitions of one leader, until `stop`, which it sets when it cannot go on."""

    def __init__(
        self,
        positions: list[Position],
        send: trio.MemorySendChannel[T],
        stop: trio.Event,
        committed: bool,
        take: Take[T],
        bytes_max: int = PARTITION_BYTES_MAX,
    ) -> None:
        self._bytes_max = bytes_max
        self._positions = positions
        self._send = send
        self._stop = stop
        self._committed = committed
        self._take = take

    async def run(self, connection: Connection) -> None:
        """Read until the ends are reached, or a leader says that it is none or goes away."""
        try:
            while not self._stop.is_set() and any(not each.done for each in self._positions):
                await self._read(connection)
        except OSError as error:
            logger.debug("a leader went away: %s", error)
            self._stop.set()
        finally:
            with trio.CancelScope(shield=True):
                await connection.aclose()

    async def _read(self, connection: Connection) -> None:
        # In turn, because a broker fills its answer from the front.
        self._positions.append(self._positions.pop(0))
        answer = await connection.ask(self._request(), oldest=4, newest=TOPIC_BY_NAME)
        check(answer.error_code)
        at = {position.partition: position for position in self._positions}
        for topic in answer.responses:
            for row in topic.partitions:
                position = at[topic.topic, row.partition_index]
                if not self._is_readable(position, row):
                    self._stop.set()
                    continue
                for found in self._take(position, row):
                    if found is None:
                        await trio.lowlevel.checkpoint()
                    else:
                        await self._send.send(found)

    def _request(self) -> FetchRequest:
        rows: dict[str, list[FetchRequest.Partition]] = {}
        for position in self._positions:
            if not position.done:
                name, index = position.partition
                row = FetchRequest.Partition(
                    partition=index,
                    fetch_offset=position.offset,
                    partition_max_bytes=self._bytes_max,
                )
                rows.setdefault(name, []).append(row)
        return FetchRequest(
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=FETCH_BYTES_MAX,
            isolation_level=int(self._committed),
            topics=[FetchRequest.Topic(topic=k, partitions=v) for k, v in rows.items()],
        )

    def _is_readable(self, position: Position, row: FetchResponse.Partition) -> bool:
        """Whether the answer has records; False when leaders must be looked up anew."""
        code = error_code(row.error_code)
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            name, index = position.partition
            raise CannotRead(
                code,
                f"partition {index} of {name} does not have offset {position.offset}; `-o start` "
                f"begins with what there is, `kbroker topic describe {name}` shows it",
            )
        if code:
            position.refused(code)
            return False
        position.good_at = trio.current_time()
        return True


def _batches(position: Position, row: FetchResponse.Partition) -> Iterator[Fetched]:
    """The batches of one partition, moving its position; nothing when there is no whole one."""
    batches = bytes(row.records or b"")
    for _, header in iter_headers(batches):
        position.offset = max(position.offset, header.next_offset)
    if batches:
        yield Fetched(
            position.partition, batches, _aborted(row), row.log_start_offset, position.offset
        )


def _in_pieces(records: Iterator[Read | None]) -> Iterator[list[Read] | None]:
    """Records as they go into the channel; None where many steps came to none."""
    some: list[Read] = []
    steps = 0
    for record in records:
        if record is not None:
            some.append(record)
        else:
            steps += 1
        if len(some) == READS_AT_ONCE or steps == STEPS_AT_ONCE:
            yield some or None
            some, steps = [], 0
    if some:
        yield some


def _records(
    position: Position, row: FetchResponse.Partition, committed: bool, control: bool
) -> Iterator[Read | None]:
    """The records of one partition that are due, moving its position; None after each step."""
    records = row.records or b""
    aborted = _aborted(row)
    for at, header in iter_headers(records):
        batch = memoryview(records)[at : at + header.size]
        is_aborted = is_aborted_batch(header, batch, aborted)
        if control if header.is_control else not (committed and is_aborted):
            for record in stream_records(batch, header, start_offset=position.offset):
                if not isinstance(record, Record):
                    yield None
                elif record.offset < position.end:
                    yield Read(
                        position.partition, record, header, row.log_start_offset, row.high_watermark
                    )
        position.offset = max(position.offset, header.next_offset)


def _aborted(row: FetchResponse.Partition) -> dict[int, list[int]]:
    """Where aborted transactions begin, by producer id."""
    aborted: dict[int, list[int]] = {}
    for each in row.aborted_transactions or ():
        aborted.setdefault(each.producer_id, []).append(each.first_offset)
    return aborted


def is_aborted_batch(header: BatchHeader, batch: memoryview, aborted: dict[int, list[int]]) -> bool:
    """Whether a batch belongs to an aborted transaction.

    Parameters: `aborted` is that of `Fetched`; it loses the transaction that an abort marker ends, so
    batches must be asked about in order. Raises KafkaError for a marker that cannot be read.
    """
    begun = [first for first in aborted.get(header.producer_id, ()) if first <= header.base_offset]
    if header.is_control and begun:
        marker = next(map(read_marker, batch_records(batch, header)), None)
        if marker is not None and not marker.commit:
            aborted[header.producer_id].remove(min(begun))
    return header.is_transactional and bool(begun)
