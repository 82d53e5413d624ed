"""Consumers without a group: read records or whole batches from partitions."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import trio

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.record_stream import batch_records, record_lists
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
# How long to retry while the cluster is unreachable, for example during a restart.
AWAY_SECONDS = 30
# Last Fetch version that identifies topics by name.
TOPIC_BY_NAME = 12
# Maximum number of records per item of the channel.
CHUNK_RECORDS = 512
# Maximum number of record lists (up to 512 records each) per item of the channel.
CHUNK_BATCHES = 32
# Decoding steps (each under 1 ms) between two checkpoints.
STEPS_PER_CHECKPOINT = 8
# How long to retry a storage error: a broker that shuts down reports one briefly.
STORAGE_ERROR_SECONDS = 3
# End offset that is never reached.
FOREVER = 1 << 62


class Read(NamedTuple):
    """A consumed record, with its batch header and the offsets of its partition."""

    partition: Partition
    record: Record
    batch: BatchHeader
    log_start: int
    high_watermark: int


@dataclass(slots=True)
class ReadBatch:
    """Consecutive consumed records of one batch, with its header and the offsets of its partition.

    Attributes:
        batch: Header of the batch, which may have further records.
    """

    partition: Partition
    batch: BatchHeader
    log_start: int
    high_watermark: int
    records: list[Record]

    def take(self, indexes: Sequence[int]) -> ReadBatch:
        """Return a copy with only the records at these indexes."""
        return replace(self, records=[self.records[index] for index in indexes])


class Fetched(NamedTuple):
    """Batches of one partition as the leader sent them; the last one may be incomplete.

    Attributes:
        aborted: Start offsets of aborted transactions by producer ID. Filled for read_committed only.
        next_offset: Offset after the last batch.
    """

    partition: Partition
    batches: bytes
    aborted: dict[int, list[int]]
    log_start: int
    next_offset: int


@dataclass(slots=True)
class Position:
    """Next offset to read in a partition, and the end offset (exclusive).

    Attributes:
        failing_since: Time (trio clock, s) of the first error after the last success, or None.
    """

    partition: Partition
    offset: int
    end: int = FOREVER
    failing_since: float | None = None

    @property
    def done(self) -> bool:
        return self.offset >= self.end

    def note_failure(self) -> float:
        """Return for how many seconds the partition has failed; 0 for the first error.

        Time before the first error does not count, because the reader may have waited for its
        receiver, or for a busy event loop.
        """
        now = trio.current_time()
        if self.failing_since is None:
            self.failing_since = now
        return now - self.failing_since

    def check_error(self, code: ErrorCode) -> None:
        """Raise ClientError if an error code is not retriable or has persisted for too long."""
        is_damage = code == ErrorCode.KAFKA_STORAGE_ERROR
        away = self.note_failure()
        if not code.retriable or away > (STORAGE_ERROR_SECONDS if is_damage else AWAY_SECONDS):
            name, index = self.partition
            raise CannotRead(
                code,
                f"partition {index} of {name}: cannot be read ({code.name})",
                hint="run `kbroker cluster health` for details",
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
    """Read ranges of offsets; yield a channel of records that closes when all are read.

    Records of a partition arrive in order, in chunks of at most `CHUNK_RECORDS`.

    Args:
        cluster: The cluster to read from.
        ranges: First offset and end offset (exclusive, or `FOREVER`) by partition.
        committed: Read with isolation level read_committed.
        control: Include control records.
        bytes_max: Maximum bytes per partition and Fetch request.

    Raises:
        ClientError: A partition cannot be read, or the cluster is unreachable.
        KafkaError: A broker rejects a request.
    """

    def take(position: Position, row: FetchResponse.Partition) -> Iterator[list[Read] | None]:
        return _in_chunks(_records(position, row, committed, control), CHUNK_RECORDS)

    async with _channel(cluster, ranges, committed, take, bytes_max) as channel:
        yield channel


@asynccontextmanager
async def reading_records(
    cluster: ClusterClient,
    ranges: Mapping[Partition, tuple[int, int]],
    *,
    committed: bool = False,
    control: bool = False,
) -> AsyncIterator[trio.MemoryReceiveChannel[list[ReadBatch]]]:
    """Read ranges of offsets as `reading` does, with less time per record.

    Args:
        cluster: The cluster to read from.
        ranges: First offset and end offset (exclusive, or `FOREVER`) by partition.
        committed: Read with isolation level read_committed.
        control: Include control records.

    Raises:
        ClientError: A partition cannot be read, or the cluster is unreachable.
        KafkaError: A broker rejects a request.
    """

    def take(position: Position, row: FetchResponse.Partition) -> Iterator[list[ReadBatch] | None]:
        return _in_chunks(_read_batches(position, row, committed, control), CHUNK_BATCHES)

    async with _channel(cluster, ranges, committed, take) as channel:
        yield channel


@asynccontextmanager
async def reading_batches(
    cluster: ClusterClient, ranges: Mapping[Partition, tuple[int, int]], *, committed: bool = False
) -> AsyncIterator[trio.MemoryReceiveChannel[Fetched]]:
    """Read the batches that cover ranges of offsets, including aborted and control batches.

    The first and the last batch of a range may contain records outside of it.

    Args:
        cluster: The cluster to read from.
        ranges: First offset and end offset (exclusive, or `FOREVER`) by partition.
        committed: Wait for open transactions to end, and fill `Fetched.aborted`.

    Raises:
        ClientError: A partition cannot be read, or the cluster is unreachable.
        KafkaError: A broker rejects a request.
    """
    async with _channel(cluster, ranges, committed, _batches) as channel:
        yield channel


T = TypeVar("T")
# Converts a fetched partition to channel items and advances the position; None is a checkpoint.
Take: TypeAlias = Callable[[Position, FetchResponse.Partition], Iterator[T | None]]


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
    except ExceptionGroup as group:  # hide the nursery from the caller
        raise first_error(group) from None


async def _read_all(
    cluster: ClusterClient,
    positions: list[Position],
    send: trio.MemorySendChannel[T],
    committed: bool,
    take: Take[T],
    bytes_max: int,
) -> None:
    """Run one task per leader; start over with the unread partitions when a leader changes."""
    # Not `async with`: its checkpoint would lose an error when the receiver closes the channel.
    with send:
        while left := [position for position in positions if not position.done]:
            try:
                leaders = await _connect(cluster, left)
            except (OSError, CannotConnect, NotReachable):
                if min([each.note_failure() for each in left]) > AWAY_SECONDS:
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
    """Return a connection to each leader, with the positions of its partitions."""
    at = {position.partition: position for position in positions}
    owners = await by_leader(cluster, at)
    for partition in owners.pop(NO_LEADER, ()):
        at[partition].check_error(ErrorCode.LEADER_NOT_AVAILABLE)
    leaders: list[tuple[Connection, list[Position]]] = []
    try:
        for node, owned in owners.items():
            leaders.append((await cluster.dial(node), [at[one] for one in owned]))
    except BaseException:
        with trio.CancelScope(shield=True):
            for connection, _ in leaders:
                await connection.aclose()
        raise
    return leaders


class _Reader(Generic[T]):
    """Reads the partitions of one leader until `stop`; sets `stop` when the leader changes."""

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
        """Read until all ends are reached, or until the leader moves or disconnects."""
        try:
            while not self._stop.is_set() and any(not each.done for each in self._positions):
                await self._read(connection)
        except OSError as error:
            logger.debug("a leader disconnected: %s", error)
            self._stop.set()
        finally:
            with trio.CancelScope(shield=True):
                await connection.aclose()

    async def _read(self, connection: Connection) -> None:
        # Rotate the order, because a broker fills its response from the first partition on.
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
        """Return True if the response has no error, False if leaders must be looked up again."""
        code = error_code(row.error_code)
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            name, index = position.partition
            raise CannotRead(
                code,
                f"partition {index} of {name} does not have offset {position.offset}",
                hint=f"use `-o start` for the oldest record, or see `kbroker topic describe {name}`",
            )
        if code:
            position.check_error(code)
            return False
        position.failing_since = None
        return True


def _batches(position: Position, row: FetchResponse.Partition) -> Iterator[Fetched]:
    """Yield the batches of one partition and advance its position; nothing if none is complete."""
    batches = bytes(row.records or b"")
    for _, header in iter_headers(batches):
        position.offset = max(position.offset, header.next_offset)
    if batches:
        yield Fetched(
            position.partition, batches, _aborted(row), row.log_start_offset, position.offset
        )


def _in_chunks(items: Iterator[T | None], size: int) -> Iterator[list[T] | None]:
    """Group items into channel items; yield None after many steps without an item."""
    some: list[T] = []
    steps = 0
    for item in items:
        if item is not None:
            some.append(item)
        else:
            steps += 1
        if len(some) == size or steps == STEPS_PER_CHECKPOINT:
            yield some or None
            some, steps = [], 0
    if some:
        yield some


def _records(
    position: Position, row: FetchResponse.Partition, committed: bool, control: bool
) -> Iterator[Read | None]:
    """Yield the requested records of one partition and advance its position; None after each step."""
    for found in _read_batches(position, row, committed, control):
        if found is not None:
            partition, header = found.partition, found.batch
            for record in found.records:
                yield Read(partition, record, header, found.log_start, found.high_watermark)
        yield None


def _read_batches(
    position: Position, row: FetchResponse.Partition, committed: bool, control: bool
) -> Iterator[ReadBatch | None]:
    """Yield the requested records of one partition and advance its position; None after each step.

    The records of a batch are yielded in lists of at most `RECORDS_PER_STEP`.
    """
    records = row.records or b""
    aborted = _aborted(row)
    for at, header in iter_headers(records):
        batch = memoryview(records)[at : at + header.size]
        is_aborted = is_aborted_batch(header, batch, aborted)
        if control if header.is_control else not (committed and is_aborted):
            for found in record_lists(batch, header, start_offset=position.offset):
                if found and found[-1].offset >= position.end:
                    found = [each for each in found if each.offset < position.end]
                yield _read_batch(position, header, row, found) if found else None
        position.offset = max(position.offset, header.next_offset)


def _read_batch(
    position: Position, header: BatchHeader, row: FetchResponse.Partition, records: list[Record]
) -> ReadBatch:
    return ReadBatch(position.partition, header, row.log_start_offset, row.high_watermark, records)


def _aborted(row: FetchResponse.Partition) -> dict[int, list[int]]:
    """Return the start offsets of aborted transactions by producer ID."""
    aborted: dict[int, list[int]] = {}
    for each in row.aborted_transactions or ():
        aborted.setdefault(each.producer_id, []).append(each.first_offset)
    return aborted


def is_aborted_batch(header: BatchHeader, batch: memoryview, aborted: dict[int, list[int]]) -> bool:
    """Return True if a batch belongs to an aborted transaction.

    Call it for the batches in order: an abort marker removes its transaction from `aborted`.

    Args:
        header: Header of the batch.
        batch: The whole batch.
        aborted: `Fetched.aborted`.

    Raises:
        KafkaError: A control marker is malformed.
    """
    begun = [first for first in aborted.get(header.producer_id, ()) if first <= header.base_offset]
    if header.is_control and begun:
        marker = next(map(read_marker, batch_records(batch, header)), None)
        if marker is not None and not marker.commit:
            aborted[header.producer_id].remove(min(begun))
    return header.is_transactional and bool(begun)
