"""Loading of coordinators from the logs of their partitions.

Replaying a large log takes a while. It is divided into short steps, so that clients of other
coordinators are served in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeAlias

import trio

from kbroker.cluster.node_context import NodeContext
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.primitives import DecodeError
from kbroker.protocol.record_stream import OversizedRecord, stream_records
from kbroker.protocol.records import BatchHeader, Record, iter_headers
from kbroker.runtime.time_slices import DutyCycle, Wanted
from kbroker.storage.cached import Reading

from .partition_writer import LeaderLog, PartitionWriter
from .shard import C, Shard

# Bytes of a log to read at once.
LOAD_BYTES = 1 << 16
# Records to replay per step in the background.
RECORDS_PER_STEP = 10
# Records to replay while clients wait (a few milliseconds).
RECORDS_AT_ONCE = 100
# Maximum number of `RECORDS_AT_ONCE` replays before a node starts serving.
REPLAYS_AT_START = 100
# Idle time after a slice of background work, as a multiple of the slice.
IDLE_FACTOR = 1

Batches: TypeAlias = Iterator[tuple[BatchHeader, Iterator[Record | OversizedRecord | None]]]


@dataclass(slots=True, eq=False)
class Load(Generic[C]):
    """A coordinator that is being loaded.

    Attributes:
        steps: Each step replays a few records and yields their number, or an awaitable.
        wanted: Must be awaited before the load continues.
        waits_for_commit: True until the log is committed.
        missed_topics: True if topics were deleted during the load.
        ended_transactions: Producer ID of each transaction that ended during the load, and True if
            it was committed. The load may have read the log before the marker was appended.
    """

    shard: Shard[C]
    steps: Iterator[int | Wanted]
    wanted: Wanted = None
    waits_for_commit: bool = False
    missed_topics: bool = False
    ended_transactions: list[tuple[int, bool]] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Size of the log to replay, in bytes."""
        return self.shard.replica.log.segments.size


class CoordinatorLoader(Generic[C]):
    """Loads the coordinators of one type on this node from their logs.

    Args:
        context: The node.
        partitions: Partitions of the node.
        replay: Replays records of one batch in a coordinator, and yields the cost of other work.
        begin: Starts a coordinator whose log was replayed, and yields the cost of each piece.
        serve: Called when a coordinator is loaded; its load was already removed.
        report: Called with the partition number and the error of a coordinator that cannot be
            loaded.
    """

    def __init__(
        self,
        context: NodeContext,
        partitions: PartitionWriter,
        *,
        replay: Callable[[C, BatchHeader, Iterable[Record]], Iterator[int]],
        begin: Callable[[Shard[C]], Iterator[int]],
        serve: Callable[[Load[C]], None],
        report: Callable[[int, BaseException], None],
    ) -> None:
        self._disk_reads = context.disk_reads
        self._partitions = partitions
        self._replay = replay
        self._begin = begin
        self._serve = serve
        self._report = report
        self._loads: dict[int, Load[C]] = {}
        self._more_loads = trio.Event()

    def __len__(self) -> int:
        return len(self._loads)

    def __iter__(self) -> Iterator[Load[C]]:
        """Iterate over the loads as they are now."""
        return iter(tuple(self._loads.values()))

    def get(self, index: int) -> Load[C] | None:
        """Return the load for a partition."""
        return self._loads.get(index)

    def add(self, shard: Shard[C], *, is_replicated: bool) -> Load[C]:
        """Begin to load a coordinator.

        Args:
            shard: The empty coordinator.
            is_replicated: True if other replicas are in sync, so that uncommitted records may be
                lost.
        """
        replica = shard.replica
        load = self._loads[replica.index] = Load(shard, self._steps(shard))
        end_offset = replica.log.log_end_offset
        if replica.log.high_watermark < end_offset and is_replicated:
            load.waits_for_commit = True
            replica.commits.add(end_offset, partial(self._on_commit, load))
        self._more_loads.set()
        return load

    def _on_commit(self, load: Load[C], committed: bool) -> None:
        """Continue a load whose log is committed, or drop it if leadership was lost."""
        load.waits_for_commit = False
        if not committed:
            self.drop(load.shard)
        self._more_loads.set()

    def drop(self, shard: Shard[C]) -> None:
        """Drop the load of a coordinator, if any. The coordinator has no pending requests yet."""
        load = self._loads.get(shard.replica.index)
        if load is not None and load.shard is shard:
            del self._loads[shard.replica.index]
            shard.coordinator.on_unloaded()

    def drop_all(self) -> None:
        """Drop all loads."""
        for load in self:
            self.drop(load.shard)

    def record_deleted_topics(self) -> None:
        """Record in each load that topics were deleted during the load."""
        for load in self._loads.values():
            load.missed_topics = True

    # -- steps

    def _steps(self, shard: Shard[C]) -> Iterator[int | Wanted]:
        """Replay the log of a coordinator to its end and start the coordinator.

        Yields:
            The number of records after each step, or an awaitable that must complete first.
        """
        log = shard.replica.log
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            read = partial(_stored_batches, log, offset)
            offset, batches = yield from self._disk_reads.in_pieces(read)
            for header, records in batches:
                for some in _in_steps(records):
                    yield from self._replay(shard.coordinator, header, some)
                    yield max(len(some), 1)
        yield from self._begin(shard)

    def finish_now(self, load: Load[C]) -> bool:
        """Return True if a coordinator could be loaded immediately, as small ones can.

        Raises:
            KafkaError: NOT_COORDINATOR, if the log cannot be read.
        """
        return not load.waits_for_commit and self._replay_some(load, RECORDS_AT_ONCE)

    def _replay_some(self, load: Load[C], records: int) -> bool:
        """Continue a load for about `records` records, and return True if it is complete.

        Raises:
            KafkaError: NOT_COORDINATOR, if the log cannot be read or the load was dropped.
        """
        shard = load.shard
        try:
            with self._partitions.storage_errors_reported(shard.replica):
                while records > 0 and load.wanted is None:
                    step = next(load.steps)
                    if isinstance(step, int):
                        records -= step
                    else:
                        load.wanted = step
        except StopIteration:
            if self._loads.get(shard.replica.index) is not load:
                # A failed append of its first records dropped the coordinator.
                raise KafkaError(ErrorCode.NOT_COORDINATOR) from None
            del self._loads[shard.replica.index]
            self._serve(load)
            return True
        except (KafkaError, DecodeError) as error:
            self.drop(shard)
            self._report(shard.replica.index, error)
            message = error.message if isinstance(error, KafkaError) else str(error)
            raise KafkaError(ErrorCode.NOT_COORDINATOR, message) from error
        return False

    # -- in the background

    async def run_some(self) -> None:
        """Load coordinators for a limited time, the smallest first; `run` loads the rest.

        Coordinators of damaged partitions are skipped.
        """
        replays = REPLAYS_AT_START
        for load in sorted(self, key=lambda load: load.bytes):
            while replays and self._is_ready(load):
                await self._try_to_replay(load, RECORDS_AT_ONCE)
                replays -= 1
                await trio.lowlevel.checkpoint()  # lets requests of other nodes run

    async def run(self) -> None:
        """Load the coordinators of partitions that this node begins to lead, until cancelled."""
        while True:
            self._more_loads = trio.Event()  # reset first, so that no load is missed
            await self._finish()
            await self._more_loads.wait()

    async def _finish(self) -> None:
        """Load one coordinator after another in the background."""
        duty_cycle = DutyCycle(rest=IDLE_FACTOR)
        while load := next(filter(self._is_ready, self._loads.values()), None):
            while self._is_ready(load):
                await self._try_to_replay(load, RECORDS_PER_STEP)
                await duty_cycle.pause()

    def _is_ready(self, load: Load[C]) -> bool:
        """Return True if a load is unfinished, its leadership holds and its log is committed."""
        return self._loads.get(load.shard.replica.index) is load and not load.waits_for_commit

    async def _try_to_replay(self, load: Load[C], records: int) -> None:
        if load.wanted is not None:
            await load.wanted()
            load.wanted = None
            if not self._is_ready(load):  # leadership may have been lost in the meantime
                return
        with suppress(KafkaError):  # the error was logged
            self._replay_some(load, records)


def _stored_batches(log: LeaderLog, offset: int, reading: Reading) -> tuple[int, Batches]:
    """Return the next offset and the batches from `offset` on, limited to `LOAD_BYTES`."""
    found = reading(log.read, offset, LOAD_BYTES, limit=log.log_end_offset)
    if not found.size:
        return log.log_end_offset, iter(())
    data = found.records if isinstance(found.records, bytes) else reading(found.records.read)
    batches = memoryview(data)
    return found.next_offset, (
        (header, stream_records(batches[position : position + header.size], header))
        for position, header in iter_headers(batches)
    )


def _in_steps(records: Iterator[Record | OversizedRecord | None]) -> Iterator[list[Record]]:
    """Yield the records of a batch in lists of at most `RECORDS_PER_STEP`."""
    some: list[Record] = []
    for record in records:
        if isinstance(record, Record):
            some.append(record)
        if record is None or len(some) == RECORDS_PER_STEP:
            yield some
            some = []
    if some:
        yield some
