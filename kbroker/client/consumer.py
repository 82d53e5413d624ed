"""Read records from partitions, without a group."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple

import trio

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.records import BatchHeader, Record, iter_headers, read_marker, read_records

from .cluster import ClusterClient
from .connection import Connection
from .errors import CannotConnect, ClientError, NotReachable, check, error_code
from .topics import Partition, by_leader

logger = logging.getLogger(__name__)

FETCH_BYTES_MAX = 16 * 1024 * 1024
PARTITION_BYTES_MAX = 4 * 1024 * 1024
WAIT_MS = 500
RETRY_SECONDS = 0.1
AWAY_SECONDS = 30
"""How long a cluster may be away, to be restarted for example."""
TOPIC_BY_NAME = 12
"""The last version of Fetch that names topics."""
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


@dataclass(slots=True)
class Position:
    """Where reading goes on in one partition, and the offset at which it ends."""

    partition: Partition
    offset: int
    end: int = FOREVER

    @property
    def done(self) -> bool:
        return self.offset >= self.end


@asynccontextmanager
async def reading(
    cluster: ClusterClient,
    ranges: Mapping[Partition, tuple[int, int]],
    *,
    committed: bool = False,
    control: bool = False,
) -> AsyncIterator[trio.MemoryReceiveChannel[list[Read]]]:
    """Read ranges of offsets; yields a channel of records, which ends when all are read.

    Parameters: `ranges` has the first offset and the one to stop before (or `FOREVER`) of each
    partition; `committed` leaves out aborted transactions and waits for open ones; `control` also
    gives control records. Within a partition records come in order. Raises ClientError or KafkaError.
    """
    positions = [Position(partition, *bounds) for partition, bounds in ranges.items()]
    send, receive = trio.open_memory_channel[list[Read]](1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_read_all, cluster, positions, send, committed, control)
        yield receive
        nursery.cancel_scope.cancel()


async def _read_all(
    cluster: ClusterClient,
    positions: list[Position],
    send: trio.MemorySendChannel[list[Read]],
    committed: bool,
    control: bool,
) -> None:
    """One task per leader; when leaders change or go away, begin again with what is left."""
    # Not `async with`: its checkpoint would lose an error when the reader of the channel leaves.
    with send:
        good_at = trio.current_time()
        while left := {each.partition: each for each in positions if not each.done}:
            try:
                leaders = await _connect(cluster, left)
            except (OSError, CannotConnect, NotReachable):
                if trio.current_time() > good_at + AWAY_SECONDS:
                    raise
                leaders = []
            readers = []
            async with trio.open_nursery() as nursery:
                for connection, owned in leaders:
                    reader = _Reader([left[one] for one in owned], send, committed, control)
                    readers.append(reader)
                    nursery.start_soon(reader.run, connection)
            good_at = max([good_at, *(reader.good_at for reader in readers)])
            for reader in readers:
                reader.check_refusal(good_at)
            if not all(each.done for each in left.values()):
                await trio.sleep(RETRY_SECONDS)


async def _connect(
    cluster: ClusterClient, partitions: Iterable[Partition]
) -> list[tuple[Connection, list[Partition]]]:
    """A connection to each leader, with its partitions; those without a leader are left out."""
    owners = await by_leader(cluster, partitions)
    return [(await cluster.dial(node), owned) for node, owned in owners.items() if node >= 0]


class _Reader:
    """Reads the partitions of one leader."""

    def __init__(
        self,
        positions: list[Position],
        send: trio.MemorySendChannel[list[Read]],
        committed: bool,
        control: bool,
    ) -> None:
        self._positions = positions
        self._send = send
        self._committed = committed
        self._control = control
        self._refusal: tuple[Partition, ErrorCode] | None = None
        self.good_at = -math.inf
        """When the last answer came that had no error."""

    async def run(self, connection: Connection) -> None:
        """Read until the ends are reached, or the leader says that it is none or goes away."""
        try:
            await self._read(connection)
        except OSError as error:
            logger.debug("a leader went away: %s", error)
        finally:
            with trio.CancelScope(shield=True):
                await connection.aclose()

    async def _read(self, connection: Connection) -> None:
        while any(not position.done for position in self._positions):
            # In turn, because a broker fills its answer from the front.
            self._positions.append(self._positions.pop(0))
            answer = await connection.ask(self._request(), oldest=4, newest=TOPIC_BY_NAME)
            check(answer.error_code)
            at = {position.partition: position for position in self._positions}
            for topic in answer.responses:
                for row in topic.partitions:
                    position = at[topic.topic, row.partition_index]
                    if not self._is_readable(position, row):
                        return
                    self.good_at = trio.current_time()
                    found = list(self._records(position, row))
                    if found:
                        await self._send.send(found)

    def _request(self) -> FetchRequest:
        rows: dict[str, list[FetchRequest.Partition]] = {}
        for position in self._positions:
            if not position.done:
                name, index = position.partition
                row = FetchRequest.Partition(
                    partition=index,
                    fetch_offset=position.offset,
                    partition_max_bytes=PARTITION_BYTES_MAX,
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
        if not code:
            return True
        name, index = position.partition
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise ClientError(
                f"partition {index} of {name} does not have offset {position.offset}; `-o start` "
                f"begins with what there is, `kbroker topic describe {name}` shows it"
            )
        if not code.retriable:
            raise _unreadable(position.partition, code)
        self._refusal = position.partition, code
        return False

    def check_refusal(self, good_at: float) -> None:
        """Raise ClientError for an error that has not passed since `good_at`."""
        if self._refusal is None:
            return
        partition, code = self._refusal
        is_damage = code == ErrorCode.KAFKA_STORAGE_ERROR
        if trio.current_time() > good_at + (DAMAGE_SECONDS if is_damage else AWAY_SECONDS):
            raise _unreadable(partition, code)

    def _records(self, position: Position, row: FetchResponse.Partition) -> Iterator[Read]:
        """The records of one partition that are due, moving its position."""
        records = row.records or b""
        aborted: dict[int, list[int]] = {}
        for each in row.aborted_transactions or ():
            aborted.setdefault(each.producer_id, []).append(each.first_offset)
        for at, header in iter_headers(records):
            batch = memoryview(records)[at : at + header.size]
            if self._is_wanted(header, batch, aborted.get(header.producer_id, [])):
                for record in read_records(batch):
                    if position.offset <= record.offset < position.end:
                        yield Read(
                            position.partition,
                            record,
                            header,
                            row.log_start_offset,
                            row.high_watermark,
                        )
            position.offset = max(position.offset, header.next_offset)

    def _is_wanted(self, header: BatchHeader, batch: memoryview, aborted: list[int]) -> bool:
        """Whether to give out a batch; `aborted` has where its producer's aborted transactions
        begin, and loses one at each abort marker."""
        if header.is_control:
            marker = next(map(read_marker, read_records(batch)), None)
            if aborted and marker is not None and not marker.commit:
                aborted.remove(min(aborted))
            return self._control
        is_aborted = bool(aborted) and min(aborted) <= header.base_offset
        return not (self._committed and header.is_transactional and is_aborted)


def _unreadable(partition: Partition, code: ErrorCode) -> ClientError:
    name, index = partition
    return ClientError(
        f"partition {index} of {name} cannot be read ({code.name}); "
        "`kbroker cluster health` says more"
    )
