"""Execution of Fetch requests: read partitions, and wait for records."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import NamedTuple, TypeAlias
from uuid import UUID

import trio

from kbroker.cluster import Topic
from kbroker.cluster.topics import find_topic
from kbroker.node.client_quota_manager import QuotaCharge
from kbroker.node.fetch_sessions import FetchPlan, Target, TargetKey
from kbroker.node.node import Node
from kbroker.node.request_metrics import NO_TOPIC
from kbroker.partitions.replica import Replica
from kbroker.partitions.waiters import FetchWait, Waiting
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.schema import ZERO_UUID
from kbroker.runtime.time_slices import Wanted
from kbroker.security.acls import CLUSTER, AclOperation
from kbroker.storage.cached import Reading, must_not_wait
from kbroker.storage.errors import StorageError
from kbroker.storage.files import FileRange
from kbroker.storage.log import Log
from kbroker.storage.lookups import aborted_transactions
from kbroker.storage.segment import Slice

from .context import Context
from .current_leader import WRONG_LEADER, add_current_leaders
from .down_conversion import CONTENT_BYTES_MAX, DownConversion
from .followers import fetching_follower

FIRST_VERSION_OF_BATCHES = 4
FIRST_VERSION_OF_MAGIC_1 = 2
FIRST_VERSION_WITH_MAX_BYTES = 3
# First version whose responses name the current leader (KIP-951).
FIRST_VERSION_WITH_LEADERS = 16
# First version whose consumers can fetch from followers (KIP-392).
FIRST_VERSION_AT_FOLLOWERS = 11
READ_COMMITTED = 1
# Errors whose rows have an empty list of aborted transactions instead of null, as in Kafka.
NOT_READ = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
# Maximum throttle time in milliseconds of a client whose fetch may not wait.
THROTTLE_MS_MAX = 500
# Replica ID of a client.
NO_REPLICA = -1
NOTHING = Slice(b"", -1, -1, 0)
# Number of partitions, most of them idle, between two checks of the time slice.
ROWS_AT_ONCE = 64
# Number of read partitions between two checks of the time slice.
READS_AT_ONCE = 8
# Maximum number of stored bytes that are read into memory instead of being sent from their file.
SMALL_BYTES = 4096
# Maximum number of stored bytes that one request reads into memory, over all its partitions.
SMALL_BYTES_PER_REQUEST = 64 * 1024

Answer: TypeAlias = FetchResponse | Waiting[FetchResponse]


class _Row(NamedTuple):
    """Response row of one partition.

    Attributes:
        target: Fetch parameters of the partition.
        name: Topic name, empty if the request names topics by ID.
        response: Row to send.
        found: Batches that were read.
        replica: Local replica; None if the partition was not found.
        log_end: Log end offset at the time of the read.
        available: Readable bytes, limited to the partition's part of the response.
    """

    target: Target
    name: str
    response: FetchResponse.Partition
    found: Slice
    replica: Replica | None
    log_end: int = -1
    available: int = 0

    @property
    def size(self) -> int:
        return self.found.size

    def is_current(self, *, to_log_end: bool) -> bool:
        """Return True if another read would have the same result."""
        replica, answer = self.replica, self.response
        if replica is None or replica.closed or answer.error_code:
            return False
        log = replica.log
        return (
            log.high_watermark == answer.high_watermark
            and log.last_stable_offset == answer.last_stable_offset
            and log.log_start_offset == answer.log_start_offset
            and self.target.was_read_as(replica)
            and (not to_log_end or log.log_end_offset == self.target.fetch_offset)
        )

    def has_changed(self, *, to_log_end: bool) -> bool:
        """Return True if a pending fetch would have been woken since this row was read."""
        replica, answer = self.replica, self.response
        if replica is None:
            return False
        log = replica.log
        return (
            replica.closed
            or not self.target.was_read_as(replica)
            or log.high_watermark != answer.high_watermark
            or log.last_stable_offset != answer.last_stable_offset
            or log.log_start_offset != answer.log_start_offset
            or (to_log_end and log.log_end_offset != self.log_end)
        )

    def is_due(self) -> bool:
        """Return True if the row has an error, a diverging epoch or a preferred read replica."""
        answer = self.response
        return bool(
            answer.error_code
            or answer.diverging_epoch
            or answer.preferred_read_replica != NO_REPLICA
        )

    def has_changed_for_follower(self, *, in_session: bool) -> bool:
        """Return True if the follower does not know the high watermark or log start offset yet.

        Without a session, the high watermark of the request is compared (KIP-1166).
        """
        answer, target = self.response, self.target
        if not in_session:
            return answer.high_watermark > target.high_watermark
        return (
            answer.high_watermark != target.sent_high_watermark
            or answer.log_start_offset != target.sent_log_start_offset
        )


def _require_cached(found: Slice, limit: int, small: int) -> Slice:
    """Return a read result whose older records are in the page cache or in memory.

    A disk error after the response header was sent would end the connection, so disk errors must
    be found before the response. The newest records are in the page cache already. Small results
    are read into memory, because a check of the page cache takes as long.

    Args:
        found: Result of reading the log.
        limit: Offset after the newest record that the client may read.
        small: Maximum number of bytes to read at once.

    Raises:
        NotCached: The records are not in the page cache, and the caller must not block.
    """
    records = found.records
    if found.next_offset >= limit or not isinstance(records, FileRange) or not must_not_wait():
        return found
    if len(records) <= small and records.fd is not None:
        data = records.read()
        if len(data) == len(records):
            return Slice(data, found.first_offset, found.next_offset, found.size)
    absent = records.uncached_range(len(records))
    if absent is not None:
        raise absent
    return found


def _read_cached(
    log: Log, offset: int, max_bytes: int, limit: int, at_least_one: bool, small: int
) -> Slice:
    found = log.read(offset, max_bytes, limit=limit, at_least_one=at_least_one)
    return _require_cached(found, limit, small)


def _size_of(rows: list[_Row]) -> int:
    return sum(row.size for row in rows)


def _available_of(rows: list[_Row]) -> int:
    return sum(row.available for row in rows)


class FetchOperation:
    """Execution of one Fetch request."""

    __slots__ = (
        "_counted",
        "_empty",
        "_idle",
        "_max_wait_ms",
        "_may_follow",
        "_missing",
        "_rack",
        "_small_left",
        "_was_read",
        "by_id",
        "committed_only",
        "ctx",
        "deadline",
        "follower",
        "max_bytes",
        "min_bytes",
        "node",
        "plan",
        "version",
    )

    plan: FetchPlan

    def __init__(self, ctx: Context, request: FetchRequest) -> None:
        self.ctx = ctx
        self.node: Node = ctx.node
        # Keep no reference to the request: its rows would take memory during the wait.
        self._max_wait_ms = request.max_wait_ms
        self._rack = request.rack_id
        self.version = ctx.version
        self.by_id = ctx.version >= 13
        self.committed_only = request.isolation_level == READ_COMMITTED
        self.max_bytes = min(request.max_bytes, ctx.node.config.fetch_max_bytes)
        if ctx.version < FIRST_VERSION_OF_BATCHES:
            self.max_bytes = min(self.max_bytes, CONTENT_BYTES_MAX)
        self.min_bytes = request.min_bytes
        self.deadline = trio.current_time() + request.max_wait_ms / 1000
        self.follower = fetching_follower(request)
        self._may_follow = self.follower is not None and ctx.allows(
            AclOperation.CLUSTER_ACTION, CLUSTER
        )
        if ctx.quota_charge is not None:
            self._limit_by_quota(ctx.quota_charge)
        # A response cannot have more than `max_bytes`, so do not wait for more.
        self.min_bytes = min(self.min_bytes, self.max_bytes)
        # True after the first read: later reads of this request have no new follower offsets.
        self._was_read = False
        # Number of partitions that `PendingFetches` counts for this fetch.
        self._counted = 0
        # Partitions that were unknown or not authorized when the request arrived.
        self._missing: set[TargetKey] = set()
        self._small_left = SMALL_BYTES_PER_REQUEST
        # Partitions that the last read skipped, because the incremental response omits them.
        self._idle: list[tuple[Target, Replica]] = []
        # Rows without records, to use again while their partition has not changed.
        self._empty: dict[TargetKey, _Row] = {}

    def _limit_by_quota(self, quota_charge: QuotaCharge) -> None:
        """Limit the response size to the fetch quota. Followers are exempt."""
        if self._may_follow:
            quota_charge.exempt()
            return
        bytes_max = quota_charge.fetch_bytes_max()
        if bytes_max is not None and bytes_max < self.max_bytes:
            self.max_bytes = int(bytes_max)

    def begin(self, request: FetchRequest) -> Generator[Wanted, None, Answer]:
        """Read all partitions, and return the response or a pending one."""
        try:
            yield from self._open_plan(request)
        except KafkaError as error:
            return FetchResponse(error_code=error.code)
        if self.version < FIRST_VERSION_OF_BATCHES:
            if self._may_wait():
                return Waiting(self.wait_for_converted_records, self._stop_counting)
            return self._throttled(self._without_records())
        rows = yield from self._read_all()
        if self._is_enough(rows):
            return (yield from self._respond(rows))
        if self._may_wait():
            return Waiting(self.wait_for_records, self._stop_counting)
        return self._throttled((yield from self._respond(rows)))

    def _open_plan(self, request: FetchRequest) -> Generator[None, None, None]:
        """Set `plan`. If the request names a partition several times, the last row counts."""
        targets: dict[TargetKey, Target] = {}
        rows = 0
        for topic in request.topics:
            topic_key = topic.topic_id if self.by_id else topic.topic
            for row in topic.partitions:
                key = topic_key, row.partition
                targets[key] = Target(
                    key,
                    row.fetch_offset,
                    row.partition_max_bytes,
                    row.current_leader_epoch,
                    row.last_fetched_epoch,
                    row.log_start_offset,
                    row.high_watermark,
                )
                rows += 1
                if not rows % ROWS_AT_ONCE:
                    yield
        forgotten: list[TargetKey] = [
            (topic.topic_id if self.by_id else topic.topic, index)
            for topic in request.forgotten_topics_data
            for index in topic.partitions
        ]
        self.plan = self.node.fetch_sessions.plan(
            request.session_id,
            request.session_epoch,
            list(targets.values()),
            forgotten,
            by_topic_id=self.by_id,
            of_follower=self.follower is not None,
            user=self.ctx.peer,
            now_ms=self.node.clock.coordinator_ms(),
        )

    # -- reading

    def _read_all(self) -> Generator[Wanted, None, list[_Row]]:
        """Read all partitions of the plan within the byte limits (KIP-74).

        The first partition with records returns at least one batch of any size. Older clients do
        not rotate their partitions, so for them every partition returns at least one batch. Idle
        partitions that an incremental response omits get no row.
        """
        left = self.max_bytes
        anything = False
        every_one = self.version < FIRST_VERSION_WITH_MAX_BYTES
        rows = []
        to_log_end = self.follower is not None
        self._idle.clear()
        for count, target in enumerate(self.plan.targets, 1):
            if not count % ROWS_AT_ONCE:
                yield None
            idle = target.idle_replica(to_log_end=to_log_end) if self.plan.incremental else None
            if idle is not None and self._skip_idle(target, idle):
                self._idle.append((target, idle))
                continue
            row = self._empty.get(target.key)
            if row is None or not row.is_current(to_log_end=to_log_end):
                at_least_one = not anything or (every_one and left > 0)
                most = min(left, target.max_bytes)
                read = partial(self._read, target, most, at_least_one)
                row = yield from self.node.context.disk_reads.in_pieces(read)
                if not row.size:
                    self._empty[target.key] = row
            error = row.response.error_code
            if error and not self._was_read and error in NOT_READ:
                self._missing.add(target.key)
            left -= row.size
            anything = anything or row.size > 0
            rows.append(row)
            if not len(rows) % READS_AT_ONCE:
                yield None
        self._was_read = True
        return rows

    def _skip_idle(self, target: Target, replica: Replica) -> bool:
        """Record the follower's fetch offset, and return True if an idle partition needs no row."""
        if self.follower is None:
            return True
        if not self.follower.is_registered(self.node.cluster):
            return False
        self._record_follower_fetch(target, replica)
        return replica.log.high_watermark == target.sent_high_watermark

    def _record_follower_fetch(self, target: Target, replica: Replica) -> None:
        if self.follower is not None and not self._was_read:
            self.follower.note_fetch(self.node, target, replica)

    def _read(self, target: Target, max_bytes: int, at_least_one: bool, reading: Reading) -> _Row:
        key, index = target.key
        name = key if isinstance(key, str) else ""
        replica = None
        target.record_read(None)
        try:
            replica = self._replica(self._topic(target), index)
            return self._read_replica(target, name, replica, max_bytes, at_least_one, reading)
        except KafkaError as error:
            if isinstance(error, StorageError) and replica is not None and not replica.closed:
                self.node.partitions.report_storage_error(replica.topic, index, error)
            return self._error_row(target, name, error, replica)

    def _replica(self, topic: Topic, index: int) -> Replica:
        """Return the replica to read: the leader, or any replica if the client may read followers."""
        if self.by_id:
            self._check_may_read(topic.name)
        if self.follower is not None:
            self.follower.check_registered(self.node.cluster)
            replica = self.node.partitions.replica(topic, index)
            replica.check_is_replica(self.follower.node_id)
            return replica
        if self.version < FIRST_VERSION_AT_FOLLOWERS:
            return self.node.partitions.replica(topic, index)
        return self.node.partitions.hosted(topic, index)

    def _check_may_read(self, name: str) -> None:
        if self.follower is None:
            self.ctx.require_topic(AclOperation.READ, name)
        elif not self._may_follow:
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    def _error_row(
        self, target: Target, name: str, error: KafkaError, replica: Replica | None
    ) -> _Row:
        row = FetchResponse.Partition(
            partition_index=target.key[1],
            error_code=error.code,
            high_watermark=-1,
            aborted_transactions=[] if self.committed_only or error.code in NOT_READ else None,
            records=b"",
        )
        return _Row(target, name, row, NOTHING, replica)

    def _topic(self, target: Target) -> Topic:
        """Return the topic of a target.

        Raises:
            KafkaError: The topic is unknown or the client may not read it. If a topic ID was known
                before, the error is INCONSISTENT_TOPIC_ID or UNKNOWN_TOPIC_OR_PARTITION.
        """
        cluster, key = self.node.cluster, target.key[0]
        if isinstance(key, str):
            self._check_may_read(key)  # first, so that the error does not reveal whether it exists
            return find_topic(cluster, key, ZERO_UUID, by_id=False)
        known = target.topic_name
        if known is not None and key not in cluster.topics_by_id:
            raise KafkaError(
                ErrorCode.INCONSISTENT_TOPIC_ID
                if known in cluster.topics
                else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
        topic = find_topic(cluster, "", key, by_id=True)
        target.topic_name = topic.name
        return topic

    def _read_replica(
        self,
        target: Target,
        name: str,
        replica: Replica,
        max_bytes: int,
        at_least_one: bool,
        reading: Reading,
    ) -> _Row:
        replica.check_epoch(target.current_leader_epoch)
        diverged = replica.diverging_epoch(target.last_fetched_epoch, target.fetch_offset)
        if diverged is not None:
            epoch, end_offset = diverged
            response = self._row_without_records(replica)
            response.diverging_epoch = FetchResponse.EpochEnd(epoch=epoch, end_offset=end_offset)
            return _Row(target, name, response, NOTHING, replica)
        target.record_read(replica)
        preferred = self._preferred_replica(target, replica)
        if preferred != NO_REPLICA:
            response = self._row_without_records(replica)
            response.preferred_read_replica = preferred
            return _Row(target, name, response, NOTHING, replica)
        limit = self._read_limit(replica)
        found = self._found(target, replica, max_bytes, limit, at_least_one, reading)
        self._record_follower_fetch(target, replica)
        response = self._row_without_records(replica)
        response.records = found.records
        if self.committed_only and found.size:
            response.aborted_transactions = [
                FetchResponse.AbortedTransaction(producer_id=producer_id, first_offset=offset)
                for producer_id, offset in reading(
                    aborted_transactions, replica.log, found.first_offset, found.next_offset
                )
            ]
        log_end = replica.log.log_end_offset
        available = found.size
        if found.next_offset < limit:  # only whole batches are sent
            available = max(available, max_bytes)
        return _Row(target, name, response, found, replica, log_end, available)

    def _row_without_records(self, replica: Replica) -> FetchResponse.Partition:
        """Return the row of a partition without records."""
        log = replica.log
        return FetchResponse.Partition(
            partition_index=replica.index,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            aborted_transactions=[] if self.committed_only else None,
            records=b"",
        )

    def _preferred_replica(self, target: Target, replica: Replica) -> int:
        """Return the preferred read replica in the consumer's rack, or -1 for this node."""
        rack = self._rack
        if not rack or self.follower is not None or not self.node.config.uses_rack_aware_selector:
            return NO_REPLICA
        return self.node.partitions.nearer_replica(replica, rack, target.fetch_offset)

    def _found(
        self,
        target: Target,
        replica: Replica,
        max_bytes: int,
        limit: int,
        at_least_one: bool,
        reading: Reading,
    ) -> Slice:
        log, small = replica.log, min(SMALL_BYTES, self._small_left)
        if self.follower is not None:
            found = self.follower.read(
                self.node, target, replica, max(max_bytes, 0), at_least_one, reading
            )
            found = reading(_require_cached, found, limit, small)
        elif target.fetch_offset > log.log_end_offset and not replica.is_leader:
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
        else:
            found = reading(
                _read_cached,
                log,
                target.fetch_offset,
                max(max_bytes, 0),
                limit,
                at_least_one,
                small,
            )
        if found.size <= small:
            self._small_left -= found.size
        return found

    def _read_limit(self, replica: Replica) -> int:
        """Return the offset after the last record that the client may read."""
        log = replica.log
        if self.follower is not None:
            return log.log_end_offset
        return log.last_stable_offset if self.committed_only else log.high_watermark

    def _is_enough(self, rows: list[_Row]) -> bool:
        """Return True if the response is due: enough bytes, an error, or nothing to wait for."""
        if self._max_wait_ms <= 0 or not self.plan.targets or self.node.stopping:
            return True
        if _available_of(rows) >= self.min_bytes:
            return True
        # As in Kafka, partitions that were unknown from the beginning do not end the wait.
        known = [row for row in rows if row.target.key not in self._missing]
        if not known and not self._idle:
            return True
        return any(row.is_due() for row in known)

    def _follower_needs_response(self, rows: list[_Row]) -> bool:
        """Return True if a follower needs a response even without records."""
        in_session = self.plan.session is not None
        return self.follower is not None and any(
            row.has_changed_for_follower(in_session=in_session) for row in rows
        )

    # -- waiting

    def _may_wait(self) -> bool:
        """Return True if memory is left for a pending fetch, and count its partitions.

        Fetches of followers wait without a limit, because no client sent them.
        """
        partitions = len(self.plan.targets)
        if self._may_follow:
            return True
        if not self.node.limits.pending_fetches.try_add(self.ctx.peer.host, partitions):
            return False
        self._counted = partitions
        return True

    def _stop_counting(self) -> None:
        """Stop counting the partitions, because the fetch is answered or dropped."""
        counted, self._counted = self._counted, 0
        self.node.limits.pending_fetches.remove(self.ctx.peer.host, counted)

    def _throttled(self, response: FetchResponse) -> FetchResponse:
        """Throttle the client, which would fetch again immediately."""
        response.throttle_time_ms = min(self._max_wait_ms, THROTTLE_MS_MAX)
        self.ctx.throttle(response.throttle_time_ms)
        return response

    async def wait_for_records(self) -> FetchResponse:
        """Read and wait until enough bytes are available, the response is due, or the deadline."""
        try:
            while True:
                # Read again even the first time: earlier responses may have delayed this one.
                rows, paused = await self._read_in_time_slices()
                if self._is_enough(rows) or trio.current_time() >= self.deadline:
                    return await self.ctx.time_slice.finish(self._respond(rows))
                await self._wait_for_change(rows, paused=paused)
        finally:
            self._stop_counting()

    async def _read_in_time_slices(self) -> tuple[list[_Row], bool]:
        """Read all partitions in time slices.

        Returns:
            The rows, and True if other tasks ran in the meantime and may have appended records.
        """
        time_slice, reading = self.ctx.time_slice, self._read_all()
        time_slice.begin(trio.current_time())  # the time slice does not include the wait
        paused = False
        while True:
            try:
                wanted = next(reading)
            except StopIteration as end:
                return end.value, paused
            if wanted is not None or time_slice.is_over:
                paused = True
                await time_slice.await_or_pause(wanted)

    async def wait_for_converted_records(self) -> FetchResponse:
        """Do the work of `wait_for_records` for a client that reads message sets.

        If all available batches convert to nothing (control batches), wait for more.
        """
        try:
            while True:
                rows, paused = await self._read_in_time_slices()
                over = trio.current_time() >= self.deadline
                if over or self._is_enough(rows):
                    converted = await self._down_convert(rows)
                    is_empty = _size_of(rows) and not _size_of(converted)
                    if over or not is_empty or self._is_enough(converted):
                        return await self.ctx.time_slice.finish(self._respond(converted))
                    paused = True
                await self._wait_for_change(rows, paused=paused)
        finally:
            self._stop_counting()

    async def _down_convert(self, rows: list[_Row]) -> list[_Row]:
        magic = 0 if self.version < FIRST_VERSION_OF_MAGIC_1 else 1
        conversion = DownConversion(self.ctx, magic, self.max_bytes)
        return [
            await self._down_convert_row(conversion, row)
            async for row in self.ctx.time_slice.each(rows)
        ]

    async def _down_convert_row(self, conversion: DownConversion, row: _Row) -> _Row:
        target, found, replica = row.target, row.found, row.replica
        if replica is None or not found.size:
            return row
        try:
            with self.node.partitions.storage_errors_reported(replica):
                data = await conversion.convert(
                    replica.log, found, target.fetch_offset, target.max_bytes
                )
        except KafkaError as error:
            return self._error_row(target, row.name, error, replica)
        row.response.records = data
        available = row.available if data else 0
        return row._replace(found=found._replace(records=data, size=len(data)), available=available)

    async def _wait_for_change(self, rows: list[_Row], *, paused: bool) -> None:
        """Wait until another read may have a different result.

        Args:
            rows: Result of the last read.
            paused: Other tasks ran since that read, so the rows may have changed already.
        """
        wait = FetchWait(self.min_bytes - _available_of(rows), self.deadline)
        if self._follower_needs_response(rows):
            wait.hurry()
        replicas = [row.replica for row in rows if row.replica is not None]
        replicas += [replica for _, replica in self._idle]
        of_follower = self.follower is not None
        for replica in replicas:
            replica.add_fetch(wait, of_follower=of_follower)
        try:
            if not paused or not await self._anything_changed(rows):
                await wait.wait()
        finally:
            self.deadline = wait.deadline
            for replica in replicas:
                replica.remove_fetch(wait)

    async def _anything_changed(self, rows: list[_Row]) -> bool:
        """Return True if a partition changed between its read and the start of the wait."""
        to_log_end = self.follower is not None
        async for row in self.ctx.time_slice.each(rows):
            if row.has_changed(to_log_end=to_log_end):
                return True
        async for target, _ in self.ctx.time_slice.each(self._idle):
            if target.idle_replica(to_log_end=to_log_end) is None:
                return True
        return False

    # -- responding

    def _respond(self, rows: list[_Row]) -> Generator[Wanted, None, FetchResponse]:
        quota_charge = self.ctx.quota_charge
        if quota_charge is not None and not quota_charge.try_charge_records(_size_of(rows)):
            return self._without_records()
        session = self.plan.session
        response = FetchResponse(session_id=self.plan.session_id)
        rejected: list[tuple[str | UUID, int, FetchResponse.Partition]] = []
        of_client = self.follower is None
        last: tuple[str | UUID, str] | None = None
        for count, row in enumerate(rows, 1):
            if not count % ROWS_AT_ONCE:
                yield None
            if session is not None:
                if not self._must_include(row):
                    continue
                if row.size and self.plan.incremental:
                    session.move_back(row.target.key)
            key, index = row.target.key
            if last != (key, row.name):
                last = key, row.name
                topic = FetchResponse.Topic(topic=row.name)
                if not isinstance(key, str):
                    topic.topic_id = key
                response.responses.append(topic)
            topic.partitions.append(row.response)
            code = row.response.error_code
            if code:
                self.node.request_metrics.count_rejected(ApiKey.FETCH, self._name_of(row), code)
                if code in WRONG_LEADER:
                    rejected.append((key, index, row.response))
            elif of_client and row.replica is not None:
                row.replica.traffic.reads += 1
                row.replica.traffic.read_bytes += row.size
        if rejected and self.version >= FIRST_VERSION_WITH_LEADERS:
            add_current_leaders(self.ctx, response, rejected)
        return response

    def _name_of(self, row: _Row) -> str:
        """Return the topic name of a row, or `NO_TOPIC` if the topic is unknown."""
        if row.replica is not None:
            return row.replica.topic.name
        cluster, key = self.node.cluster, row.target.key[0]
        found = cluster.topics.get(key) if isinstance(key, str) else cluster.topics_by_id.get(key)
        return NO_TOPIC if found is None else found.name

    def _without_records(self) -> FetchResponse:
        """Return the response to a client above its quota, which fetches again later (KIP-219).

        A full fetch gets no session, because the response contains none of its partitions.
        """
        if not self.plan.incremental:
            self.node.fetch_sessions.forget(self.plan)
        return FetchResponse(session_id=self.plan.session_id)

    def _must_include(self, row: _Row) -> bool:
        answer = row.response
        included = row.target.must_include(
            answer.error_code or int(row.is_due()),
            row.size,
            answer.high_watermark,
            answer.log_start_offset,
        )
        return included or not self.plan.incremental
