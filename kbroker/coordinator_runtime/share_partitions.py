"""Share partitions that this node leads (KIP-932).

The first fetch of a share group creates the share partition and reads its state from the share
coordinator. From then on, this node writes the state. The share partition is dropped if the node
loses leadership, if the share coordinator has seen a later leader, or if the last session of the
group on this node ends.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple
from uuid import UUID

import trio

from kbroker.cluster import ConfigResource, ResourceType, Topic, TopicsChanged
from kbroker.cluster.features import SHARE_VERSION
from kbroker.cluster.node_context import NodeContext
from kbroker.config import GroupConfig
from kbroker.coordinator import (
    Acknowledgement,
    Change,
    DeadLetters,
    DeliverySettings,
    PersisterStateBatch,
    PersisterStateBatches,
    ShareDelivery,
)
from kbroker.partitions.replica import Replica
from kbroker.partitions.time_lookups import TimeLookup
from kbroker.partitions.waiters import FetchWait, Pending
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.share_state import (
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
)
from kbroker.protocol.records import FoundRecord
from kbroker.protocol.share_state_log import SharePartitionKey
from kbroker.runtime.batch_reads import ignore_cpu_time
from kbroker.runtime.time_slices import DutyCycle

from .leader_replicas import LeaderReplicas
from .share_group_dlq import DeadLetterWriter, ShareGroupDLQManager
from .share_persister import SharePersister

NO_OFFSET = -1
READ_COMMITTED = "read_committed"
# Level of `share.version` from which on groups have dead-letter queues.
DEAD_LETTER_QUEUE_VERSION = 2
# Share partitions whose expired locks are released per event-loop iteration.
EXPIRED_AT_ONCE = 10
# Number of cached group settings beyond the number of share partitions.
SPARE_SETTINGS = 100

# Errors after which the share partition is dropped and loaded again: its state is outdated.
FENCING = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
# Errors of the share coordinator that are returned to clients unchanged.
RETURNED_ERRORS = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
# Maximum look-back of `by_duration`, in ms.
BACK_MS_MAX = 2**62
MS_PER_UNIT = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1000}
_DURATION = re.compile(
    r"by_duration:P(?:(?P<days>\d+)D)?"
    r"(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)


class Outcome(NamedTuple):
    """Error code and message of an acknowledgement for the client."""

    code: int = ErrorCode.NONE
    message: str | None = None


@dataclass(frozen=True, slots=True)
class ShareSettings:
    """Settings of one share group.

    Attributes:
        delivery: Settings of the delivery state.
        committed_only: True to deliver only records of committed transactions
            (`share.isolation.level`).
        initial_offset: Initial offset of a group (`share.auto.offset.reset`).
    """

    delivery: DeliverySettings
    committed_only: bool
    initial_offset: str


class _Write(NamedTuple):
    """A change to persist.

    Attributes:
        is_final: True if the states stay if they cannot be persisted: locks that have expired, and
            records whose write to the dead-letter queue has ended.
    """

    change: Change
    is_final: bool
    done: Pending[Outcome]


class SharePartition:
    """A share partition that this node leads: one topic partition for one share group.

    Attributes:
        delivery: Delivery state, None until the share coordinator has returned it.
        failure: Error of the share coordinator, if the state could not be loaded.
        waits: Pending fetches, longest wait first.
        dead_letters: Records that wait for the dead-letter queue.
        is_unused: True if no member has a session on this node. The share partition is dropped when
            its pending writes are persisted and no record waits for the dead-letter queue.
    """

    __slots__ = (
        "armed_ms",
        "closed",
        "dead_letters",
        "delivery",
        "failure",
        "is_unused",
        "is_writing",
        "key",
        "leader_epoch",
        "replica",
        "settings",
        "state_epoch",
        "waits",
        "writes",
    )

    def __init__(
        self,
        key: SharePartitionKey,
        replica: Replica,
        settings: Callable[[], ShareSettings],
        dead_letters: DeadLetterWriter,
    ) -> None:
        self.key = key
        self.replica = replica
        self.settings = settings
        self.dead_letters = dead_letters
        self.leader_epoch = replica.leader_epoch
        self.state_epoch = 0
        self.delivery: ShareDelivery | None = None
        self.failure: KafkaError | None = None
        self.waits: dict[FetchWait, None] = {}
        self.writes: list[_Write] = []
        self.is_writing = False
        self.is_unused = False
        self.closed = False
        self.armed_ms: float = math.inf

    # -- notifications of the replica

    def grow(self, size: int) -> None:
        """Count new readable bytes for all pending fetches, and wake one of them."""
        for wait in self.waits:
            wait.count(size)
        self.wake_next()

    def on_transactions_ended(self) -> None:
        """Wake a pending fetch after transactions have ended."""
        self.offer()

    def wake(self) -> None:
        """Wake all pending fetches, because they will get an error or be redirected."""
        for wait in self.waits:
            wait.wake()

    # -- pending fetches

    def offer(self) -> None:
        """Wake a pending fetch, because records of unknown size may be available."""
        self.grow(sys.maxsize)

    def wake_next(self) -> None:
        """Wake the longest-waiting fetch that is due, if there are records.

        The fetch takes records and calls this method again.
        """
        if not self.waits or not self.has_records:
            return
        for wait in self.waits:
            if wait.is_woken:
                return
            if wait.is_due:
                wait.wake()
                return

    @property
    def readable_end(self) -> int:
        """End offset of the records that members can acquire."""
        log = self.replica.log
        return log.last_stable_offset if self.settings().committed_only else log.high_watermark

    @property
    def has_records(self) -> bool:
        """True if there are records that a member can acquire."""
        delivery = self.delivery
        return (
            delivery is not None
            and delivery.can_acquire()
            and delivery.next_offset() < self.readable_end
        )

    @property
    def is_busy(self) -> bool:
        return self.is_writing or bool(self.writes) or self.dead_letters.is_running


class SharePartitionManager:
    """The share partitions of this node: creation, state writes, and lock timeouts."""

    def __init__(
        self,
        context: NodeContext,
        partitions: LeaderReplicas,
        persister: SharePersister,
        dlq: ShareGroupDLQManager,
    ) -> None:
        self._context = context
        self._partitions = partitions
        self._persister = persister
        self._dlq = dlq
        self._share_partitions: dict[SharePartitionKey, SharePartition] = {}
        self._by_topic_partition: dict[tuple[UUID, int], dict[SharePartition, None]] = {}
        self._settings: dict[str, ShareSettings] = {}
        # Level of `share.version` for which the settings are cached.
        self._share_version = 0
        self._to_load: list[SharePartition] = []
        self._to_write: dict[SharePartition, None] = {}
        self._more_work = trio.Event()
        self._timers: list[tuple[int, int, SharePartition]] = []
        self._numbers = count()
        self._rearm = trio.Event()
        self._retired = False

    def __iter__(self) -> Iterator[SharePartition]:
        return iter(tuple(self._share_partitions.values()))

    def __len__(self) -> int:
        return len(self._share_partitions)

    # -- look-ups

    def settings(self, group_id: str) -> ShareSettings:
        """Return the current settings of a share group."""
        cluster = self._context.cluster
        share_version = cluster.features.get(SHARE_VERSION, 0)
        if share_version != self._share_version:
            self._share_version = share_version
            self._settings.clear()
        known = self._settings.get(group_id)
        if known is not None:
            return known
        own = cluster.own_configs(ConfigResource(ResourceType.GROUP, group_id))
        config = GroupConfig.stored(own, self._context.config)
        if len(self._settings) >= len(self._share_partitions) + SPARE_SETTINGS:
            self._settings.clear()
        found = self._settings[group_id] = ShareSettings(
            DeliverySettings(
                lock_ms=config.share_record_lock_duration_ms,
                deliveries_max=config.share_delivery_count_limit,
                locks_max=config.share_partition_max_record_locks,
                renews=config.share_renew_acknowledge_enable,
                has_dead_letter_queue=share_version >= DEAD_LETTER_QUEUE_VERSION
                and bool(config.errors_deadletterqueue_topic_name),
            ),
            committed_only=config.share_isolation_level.lower() == READ_COMMITTED,
            initial_offset=config.share_auto_offset_reset,
        )
        return found

    def settings_changed(self) -> None:
        """Drop cached settings after a change of group or broker configs."""
        self._settings.clear()

    def get_or_create(self, topic: Topic, index: int, group_id: str) -> SharePartition:
        """Return the share partition of a group; create and load it if it is unknown.

        Raises:
            KafkaError: This node does not lead the partition.
        """
        replica = self._partitions.replica(topic, index)
        if self._retired:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        share = SharePartitionKey(group_id, topic.id, index)
        known = self._share_partitions.get(share)
        if known is not None:
            known.is_unused = False
            return known
        dead_letters = DeadLetterWriter(share, replica, partial(self._archive_dead_letters, share))
        settings = partial(self.settings, group_id)
        share_partition = SharePartition(share, replica, settings, dead_letters)
        self._share_partitions[share] = share_partition
        replica.add_listener(share_partition)
        self._by_topic_partition.setdefault((topic.id, index), {})[share_partition] = None
        self._to_load.append(share_partition)
        self._more_work.set()
        return share_partition

    def known(self, share: SharePartitionKey) -> SharePartition | None:
        """Return the share partition with this key, or None if it is unknown here."""
        return self._share_partitions.get(share)

    def drop(self, share_partition: SharePartition) -> None:
        """Forget a share partition, and wake its pending fetches."""
        if share_partition.closed:
            return
        share_partition.closed = share_partition.dead_letters.closed = True
        share_partition.replica.remove_listener(share_partition)
        del self._share_partitions[share_partition.key]
        key = share_partition.key.topic_id, share_partition.key.partition
        others = self._by_topic_partition[key]
        del others[share_partition]
        if not others:
            del self._by_topic_partition[key]
        writes, share_partition.writes = share_partition.writes, []
        for write in writes:
            write.done.resolve(Outcome(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        self._to_write.pop(share_partition, None)
        share_partition.wake()

    def drop_group(self, group_id: str) -> None:
        """Drop the share partitions of a group without sessions once their writes are persisted."""
        for share_partition in [
            each for each in self._share_partitions.values() if each.key.group_id == group_id
        ]:
            if share_partition.is_busy:
                share_partition.is_unused = True
            else:
                self.drop(share_partition)

    # -- leadership

    def topics_changed(self, event: TopicsChanged) -> None:
        """Drop share partitions whose leadership changed, after the replicas were updated."""
        changed = [(change.topic.id, change.after.index) for change in event.partitions]
        changed += [
            (topic.id, index) for topic in event.deleted for index in range(len(topic.partitions))
        ]
        for key in changed:
            self._drop_lost(tuple(self._by_topic_partition.get(key, ())))

    def drop_not_led(self) -> None:
        """Drop all share partitions that this node no longer leads."""
        self._drop_lost(tuple(self._share_partitions.values()))

    def _drop_lost(self, several: Collection[SharePartition]) -> None:
        for share_partition in several:
            replica = share_partition.replica
            leads = replica.is_leader and not replica.closed
            if not leads or replica.leader_epoch != share_partition.leader_epoch:
                self.drop(share_partition)

    def retire(self) -> None:
        """Drop all share partitions, and reject new ones from now on."""
        self._retired = True
        for share_partition in tuple(self._share_partitions.values()):
            self.drop(share_partition)

    # -- acknowledgements

    def acknowledge(
        self, share_partition: SharePartition, member_id: str, rows: Iterable[Acknowledgement]
    ) -> Pending[Outcome] | Outcome:
        """Apply a member's acknowledgements; the outcome is available when they are persisted.

        Raises:
            KafkaError: The errors of `ShareDelivery.acknowledge`.
        """
        if share_partition.delivery is None:
            raise KafkaError(
                ErrorCode.INVALID_RECORD_STATE,
                "Batch record not found. The request batch offsets are not found in the cache.",
            )
        change = share_partition.delivery.acknowledge(member_id, rows, self._now_ms())
        self.arm(share_partition)
        return self._store(share_partition, change) if change.states else Outcome()

    def release(self, share_partition: SharePartition, member_id: str) -> None:
        """Release the records of a member that leaves."""
        if share_partition.delivery is None:
            return
        change = share_partition.delivery.release(member_id)
        if change.states:
            self._store(share_partition, change)

    def _archive_dead_letters(self, share: SharePartitionKey, letters: DeadLetters) -> None:
        """Archive records after their write to the dead-letter queue has ended."""
        share_partition = self._share_partitions.get(share)
        if share_partition is None or share_partition.delivery is None:
            return
        delivery = share_partition.delivery
        was_full = not delivery.can_acquire()
        archived = delivery.archive_dead_letters(letters)
        if archived.states:
            self._store(share_partition, archived, is_final=True)
            if was_full:
                share_partition.offer()  # fewer records are in flight

    def _store(
        self, share_partition: SharePartition, change: Change, *, is_final: bool = False
    ) -> Pending[Outcome]:
        done: Pending[Outcome] = Pending()
        share_partition.writes.append(_Write(change, is_final, done))
        if not share_partition.is_writing:
            self._to_write[share_partition] = None
            self._more_work.set()
        return done

    # -- background work

    async def run(self) -> None:
        """Load states, persist changes and expire locks, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.run_timers)
            while True:
                self._more_work = trio.Event()  # reset first, so that no work is missed
                for work in (*self._loads(), *self._writes()):
                    nursery.start_soon(work)
                await self._more_work.wait()

    def _loads(self) -> list[Callable[[], Awaitable[None]]]:
        loads, self._to_load = self._to_load, []
        return [partial(self._load, some) for some in self._by_coordinator(loads)]

    def _writes(self) -> list[Callable[[], Awaitable[None]]]:
        share_partitions, self._to_write = self._to_write, {}
        for share_partition in share_partitions:
            share_partition.is_writing = True
        return [partial(self._write, some) for some in self._by_coordinator(share_partitions)]

    def _by_coordinator(
        self, share_partitions: Iterable[SharePartition]
    ) -> list[list[SharePartition]]:
        """Group share partitions by group and coordinator, so that no node delays another."""
        found: dict[tuple[str, int], list[SharePartition]] = {}
        for share_partition in share_partitions:
            place = (
                share_partition.key.group_id,
                self._persister.coordinator_id(share_partition.key),
            )
            found.setdefault(place, []).append(share_partition)
        return list(found.values())

    async def _load(self, share_partitions: Sequence[SharePartition]) -> None:
        asked = ReadShareGroupStateRequest.Partition
        rows = await self._persister.read(
            {
                share_partition.key: asked(leader_epoch=share_partition.leader_epoch)
                for share_partition in share_partitions
                if not share_partition.closed
            }
        )
        async with trio.open_nursery() as nursery:
            for share_partition in share_partitions:
                if not share_partition.closed:
                    nursery.start_soon(
                        self._finish_load, share_partition, rows[share_partition.key]
                    )

    async def _finish_load(
        self, share_partition: SharePartition, row: ReadShareGroupStateResponse.Partition
    ) -> None:
        settings = share_partition.settings  # avoids a reference cycle through `share_partition`
        try:
            _check(row)
            start = row.start_offset
            if start == NO_OFFSET:
                start = await self._initial_offset(share_partition)
                if share_partition.closed:
                    return
            share_partition.delivery = ShareDelivery(
                start,
                [
                    PersisterStateBatch(
                        b.first_offset, b.last_offset, b.delivery_state, b.delivery_count
                    )
                    for b in row.state_batches
                ],
                lambda: settings().delivery,
            )
            share_partition.state_epoch = row.state_epoch
            self._dlq.enqueue(
                share_partition.dead_letters, share_partition.delivery.unwritten_dead_letters()
            )
        except KafkaError as error:
            # Drop the traceback: its frames reference `share_partition` (reference cycle).
            share_partition.failure = error.with_traceback(None)
            self.drop(share_partition)
        share_partition.offer()

    async def _initial_offset(self, share_partition: SharePartition) -> int:
        """Return the initial offset of a group without a start offset.

        Raises:
            KafkaError: OFFSET_NOT_AVAILABLE.
        """
        replica, initial_offset = share_partition.replica, share_partition.settings().initial_offset
        log = replica.log
        if initial_offset == "earliest":
            return log.log_start_offset
        if initial_offset == "latest":
            if not replica.is_high_watermark_current:
                raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
            return log.high_watermark
        matched = _DURATION.fullmatch(initial_offset)
        assert matched is not None, "configs are validated when they are set"
        back_ms = sum(
            float(text) * MS_PER_UNIT[name] for name, text in matched.groupdict("0").items()
        )
        since_ms = self._context.clock.log_ms() - int(min(back_ms, BACK_MS_MAX))
        found = await self._record_since(share_partition, since_ms)
        if found is None:
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
        return found.offset

    async def _record_since(
        self, share_partition: SharePartition, since_ms: int
    ) -> FoundRecord | None:
        replica = share_partition.replica

        def check() -> None:
            if replica.closed:
                raise KafkaError(replica.failure())

        context, log = self._context, replica.log
        lookup = TimeLookup(
            context.disk_reads, context.batch_reads, share_partition.key, ignore_cpu_time, check
        )
        search = lookup.record_since(log, since_ms, log.high_watermark)
        with self._partitions.storage_errors_reported(replica):
            return await DutyCycle().finish(search)

    async def _write(self, share_partitions: Sequence[SharePartition]) -> None:
        taken: dict[SharePartition, list[_Write]] = {}
        rows = {}
        for share_partition in share_partitions:
            assert share_partition.delivery is not None
            taken[share_partition], share_partition.writes = share_partition.writes, []
            rows[share_partition.key] = _row(
                share_partition, share_partition.delivery, taken[share_partition]
            )
        answers = await self._persister.write(rows)
        for share_partition in share_partitions:
            self._finish_write(
                share_partition,
                share_partition.delivery,
                taken[share_partition],
                answers[share_partition.key],
            )

    def _finish_write(
        self,
        share_partition: SharePartition,
        delivery: ShareDelivery | None,
        writes: Sequence[_Write],
        row: WriteShareGroupStateResponse.Partition,
    ) -> None:
        assert delivery is not None
        share_partition.is_writing = False
        outcome = Outcome()
        was_full = not delivery.can_acquire()
        try:
            _check(row)
        except KafkaError as error:
            outcome = Outcome(error.code, error.message)
        for write in writes:
            if write.is_final:
                delivery.move_start()
            elif outcome.code:
                delivery.undo_change(write.change, self._now_ms())
            else:
                delivery.confirm_change(write.change)
            write.done.resolve(outcome)
            if not outcome.code or (write.is_final and outcome.code not in FENCING):
                self._dlq.enqueue(share_partition.dead_letters, write.change.dead_letters)
        if outcome.code in FENCING or (share_partition.is_unused and not share_partition.is_busy):
            self.drop(share_partition)
        elif share_partition.writes:
            self._to_write[share_partition] = None
            self._more_work.set()
        self.arm(share_partition)
        if delivery.has_free() or (was_full and delivery.can_acquire()):
            share_partition.offer()  # released or following records are available
        self._context.changes.notify()

    # -- time

    def _now_ms(self) -> int:
        return self._context.clock.coordinator_ms()

    def arm(self, share_partition: SharePartition) -> None:
        """Schedule a timer if the next lock expiry is earlier than the scheduled one."""
        wake_at = share_partition.delivery.wake_at if share_partition.delivery is not None else None
        if (
            wake_at is not None
            and wake_at < share_partition.armed_ms
            and not share_partition.closed
        ):
            share_partition.armed_ms = wake_at
            heappush(self._timers, (wake_at, next(self._numbers), share_partition))
            if self._timers[0][2] is share_partition:
                self._rearm.set()

    async def run_timers(self) -> None:
        """Release records whose locks expire, until cancelled."""
        while True:
            self._rearm = trio.Event()
            now_ms = self._now_ms()
            while self._expire_some(now_ms):
                await trio.lowlevel.checkpoint()
            wait_ms = max(self._timers[0][0] - self._now_ms(), 0) if self._timers else math.inf
            with trio.move_on_after(wait_ms / 1000):
                await self._rearm.wait()

    def run_due(self) -> None:
        """Release all records whose locks have expired."""
        now_ms = self._now_ms()
        while self._expire_some(now_ms):
            pass

    def _expire_some(self, now_ms: int) -> bool:
        """Release expired records of some share partitions, and return True if more may follow.

        The locks of thousands of share partitions may expire together.
        """
        for _ in range(EXPIRED_AT_ONCE):
            if not self._timers or self._timers[0][0] > now_ms:
                return False
            _, _, share_partition = heappop(self._timers)
            share_partition.armed_ms = math.inf
            if share_partition.closed or share_partition.delivery is None:
                continue
            expired = share_partition.delivery.expire(now_ms)
            self.arm(share_partition)
            if expired.states:
                self._store(share_partition, expired, is_final=True)
                share_partition.offer()
        return True

    def clock_moved(self) -> None:
        """Process expired locks and reschedule, after the clock has jumped."""
        self.run_due()
        self._rearm.set()


def _row(
    share_partition: SharePartition, delivery: ShareDelivery, writes: Sequence[_Write]
) -> WriteShareGroupStateRequest.Partition:
    """Merge several writes into one request row.

    If two writes contain the same record, the later state wins, because it has greater progress.
    """
    states = PersisterStateBatches(each for write in writes for each in write.change.states)
    return WriteShareGroupStateRequest.Partition(
        state_epoch=share_partition.state_epoch,
        leader_epoch=share_partition.leader_epoch,
        start_offset=delivery.start_offset,
        delivery_complete_count=delivery.complete_count,
        state_batches=[
            WriteShareGroupStateRequest.StateBatch(
                first_offset=each.first,
                last_offset=each.last,
                delivery_state=each.state,
                delivery_count=each.deliveries,
            )
            for each in states
        ],
    )


def _check(
    row: ReadShareGroupStateResponse.Partition | WriteShareGroupStateResponse.Partition,
) -> None:
    """Check a response row of a share coordinator.

    Raises:
        KafkaError: The error that clients get.
    """
    code = ErrorCode(row.error_code)
    if code in (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH):
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, row.error_message)
    if code and code not in RETURNED_ERRORS:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, row.error_message)
    if code:
        raise KafkaError(code, row.error_message)
