"""ShareFetch: acquisition of records by members of share groups (KIP-932)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import trio

from kbroker.cluster import Topic
from kbroker.coordinator import (
    Acquired,
    Acquirer,
    LogBatch,
    ShareDelivery,
    acquire,
    without_aborted,
)
from kbroker.coordinator_runtime.share_partitions import Outcome, SharePartition
from kbroker.node.share_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    ShareSession,
    ShareTarget,
    TargetKey,
)
from kbroker.partitions.waiters import FetchWait, Waiting
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.share_groups import ShareFetchRequest, ShareFetchResponse
from kbroker.protocol.record_stream import batch_records
from kbroker.protocol.records import BatchHeader
from kbroker.security.acls import AclOperation
from kbroker.storage.cached import Reading, must_not_wait, waiting
from kbroker.storage.errors import StorageError
from kbroker.storage.files import FileRange
from kbroker.storage.log import Log
from kbroker.storage.lookups import aborted_transactions
from kbroker.storage.segment import Slice
from kbroker.storage.slice_batches import part_of, slice_headers

from .context import Context
from .current_leader import WRONG_LEADER, add_current_leaders
from .registry import handles
from .share_acknowledgements import (
    FIRST_VERSION_WITH_RENEWAL,
    acknowledge,
    check_member,
)

# Acquire modes (KIP-1206).
BATCH_OPTIMIZED, RECORD_LIMIT = 0, 1
NOTHING = Slice(b"", -1, -1, 0)

Row: TypeAlias = ShareFetchResponse.Partition
Answer: TypeAlias = ShareFetchResponse | Waiting[ShareFetchResponse]


@handles(ApiKey.SHARE_FETCH, versions="1-2")
async def share_fetch(ctx: Context, request: ShareFetchRequest) -> Answer:
    """Process acknowledgements as in ShareAcknowledge, then acquire available records.

    The request waits for `min_bytes`, for at most `max_wait_ms`. The response has whole batches,
    and the offsets of the records that the member acquired.

    Versions: 2 can renew acquisition locks (KIP-1222) and acquire an exact number of records
    (KIP-1206).

    Differs from Kafka: a pending fetch completes if leadership is lost. If the log start offset
    advanced, the fetch continues there at once.
    """
    try:
        work = _ShareFetchOperation(ctx, request)
        await work.read_request()
        work.open_session()
    except KafkaError as error:
        rejection = ShareFetchResponse(error_code=error.code)
        if error.code == ErrorCode.SHARE_SESSION_LIMIT_REACHED:
            return Waiting(lambda: _respond_later(request.max_wait_ms, rejection))
        return rejection
    await work.acknowledge()
    if work.is_final or work.is_renewal:
        return await work.respond_without_records()
    if request.share_acquire_mode not in (BATCH_OPTIMIZED, RECORD_LIMIT):
        return ShareFetchResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
    return Waiting(work.wait_and_respond)


async def _respond_later(wait_ms: int, rejection: ShareFetchResponse) -> ShareFetchResponse:
    """Return an error response after a delay, so that the member does not retry at once."""
    await trio.sleep(max(wait_ms, 0) / 1000)
    return rejection


class _Found(NamedTuple):
    """A partition of the request with its share partition."""

    target: ShareTarget
    share_partition: SharePartition


class _Read(NamedTuple):
    """Batches from the first available offset on, or the error of the read."""

    found: _Found
    delivery: ShareDelivery
    offset: int
    slice: Slice
    error: KafkaError | None = None


class _Part(NamedTuple):
    """A partition with its response row."""

    target: ShareTarget
    row: Row

    @property
    def key(self) -> tuple[UUID, int]:
        return self.target.key


class _ShareFetchOperation:
    """Execution of one ShareFetch request."""

    def __init__(self, ctx: Context, request: ShareFetchRequest) -> None:
        self.ctx = ctx
        self.node = ctx.node
        self.request = request
        self.group_id, self.member_id = check_member(ctx, request)
        self.epoch = request.share_session_epoch
        self.is_final = self.epoch == FINAL_EPOCH
        self.is_renewal = ctx.version >= FIRST_VERSION_WITH_RENEWAL and request.is_renew_ack
        self.settings = self.node.share.partitions.settings(self.group_id)
        self.max_bytes = min(request.max_bytes, self.node.config.fetch_max_bytes)
        self.min_bytes = request.min_bytes
        self.deadline = trio.current_time() + request.max_wait_ms / 1000
        self.session: ShareSession
        # Epoch that the session must still have when the response is sent.
        self.expected_epoch = -1
        self.targets: list[ShareTarget] = []
        self.forgotten: list[TargetKey] = []
        self.has_acknowledgements = False
        self.outcomes: dict[TargetKey, Outcome] = {}
        self._check_renewal()
        if ctx.quota_charge is not None:
            bytes_max = ctx.quota_charge.fetch_bytes_max()
            if bytes_max is not None:
                self.max_bytes = min(self.max_bytes, int(bytes_max))
        self.min_bytes = min(self.min_bytes, self.max_bytes)

    def _check_renewal(self) -> None:
        """Check that a renewal requests no records (INVALID_REQUEST)."""
        wanted = self.request
        if self.is_renewal and (
            wanted.max_bytes or wanted.min_bytes or wanted.max_records or wanted.max_wait_ms
        ):
            raise KafkaError(ErrorCode.INVALID_REQUEST)

    # -- the session

    async def read_request(self) -> None:
        """Collect the partitions that the request adds and forgets."""
        known = self.node.cluster.topics_by_id
        async for topic in self.ctx.time_slice.each(self.request.topics):
            async for row in self.ctx.time_slice.each(topic.partitions):
                key = topic.topic_id, row.partition_index
                target = ShareTarget(key, is_known=topic.topic_id in known)
                target.must_include = self.epoch != INITIAL_EPOCH
                self.targets.append(target)
                if row.acknowledgement_batches:
                    self.has_acknowledgements = True
        async for gone in self.ctx.time_slice.each(self.request.forgotten_topics_data):
            async for index in self.ctx.time_slice.each(gone.partitions):
                self.forgotten.append((gone.topic_id, index))

    def open_session(self) -> None:
        """Open, continue or find the share session.

        Raises:
            KafkaError: The session epoch is invalid, or the limit of sessions is reached.
        """
        sessions = self.node.share.sessions
        if self.is_final:
            self.session = sessions.find(self.group_id, self.member_id)
            return
        if self.epoch == INITIAL_EPOCH:
            if self.has_acknowledgements:
                raise KafkaError(ErrorCode.INVALID_REQUEST)
            self.session = sessions.open(self.group_id, self.member_id, self.targets, self.ctx.peer)
        else:
            self.session = sessions.advance(
                self.group_id, self.member_id, self.epoch, self.targets, self.forgotten
            )
        self.expected_epoch = self.session.epoch

    def _check_session(self) -> None:
        """Raise INVALID_SHARE_SESSION_EPOCH if a later request has used the session."""
        is_current = self.node.share.sessions.is_current(self.session)
        if not is_current or self.session.epoch != self.expected_epoch:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)

    async def acknowledge(self) -> None:
        """Process the acknowledgements of the request."""
        if self.has_acknowledgements:
            self.outcomes = await acknowledge(self.ctx, self.request)

    async def respond_without_records(self) -> ShareFetchResponse:
        response = await self._respond(())
        sessions = self.node.share.sessions
        if self.is_final and sessions.is_current(self.session):
            self.node.share.release(self.session)
            sessions.end(self.session)
        return response

    # -- records

    async def wait_and_respond(self) -> ShareFetchResponse:
        """Wait for records or the deadline, and return the response."""
        rejected: list[_Part] = []
        found: list[_Found] = []
        wants_records = self.request.max_records > 0 and self.max_bytes > 0
        async for target in self.ctx.time_slice.each(self._rotate_targets()):
            try:
                topic = self._topic(target)
                if wants_records:
                    share_partition = self.node.share.partitions.get_or_create(
                        topic, target.key[1], self.group_id
                    )
                    found.append(_Found(target, share_partition))
            except KafkaError as error:
                rejected.append(_Part(target, _error_row(target, error)))
        try:
            acquired = await self._wait_for_records(found, rejected) if found else []
        except KafkaError as error:
            return ShareFetchResponse(error_code=error.code)
        return await self._respond([*acquired, *rejected])

    def _rotate_targets(self) -> list[ShareTarget]:
        """Return the partitions of the session, rotated by the session epoch."""
        targets = list(self.session.targets.values())
        begin = self.epoch % len(targets) if targets and self.epoch > 0 else 0
        return targets[begin:] + targets[:begin]

    def _topic(self, target: ShareTarget) -> Topic:
        """Return the topic of an existing partition that the client may read."""
        topic_id, index = target.key
        topic = self.node.cluster.topics_by_id.get(topic_id)
        if topic is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if target.is_known
                else ErrorCode.UNKNOWN_TOPIC_ID
            )
        self.ctx.require_topic(AclOperation.READ, topic.name)
        if not 0 <= index < len(topic.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return topic

    async def _wait_for_records(
        self, found: Sequence[_Found], rejected: list[_Part]
    ) -> list[_Part]:
        """Return rows with records. Add rows of lost share partitions to `rejected`.

        Raises:
            KafkaError: The session was closed, or a later request has used it.
        """
        try:
            reads = await self._read_enough(found)
            self._check_session()
            rejected += (
                _Part(each.target, _error_row(each.target, e))
                for each, e in _closed_partitions(found)
            )
            return await self._acquire_records(reads)
        finally:
            _wake_others(found)

    async def _read_enough(self, found: Sequence[_Found]) -> list[_Read]:
        """Read until `min_bytes` are available or the deadline is reached."""
        while True:
            wait = FetchWait(max(self.min_bytes, 1), self.deadline)
            try:
                reads = await self._read_all(found, wait)
                size = sum(read.slice.size for read in reads)
                if self._is_enough(found, reads, size):
                    return reads
                wait.grow(size)
                if size:
                    _wake_others(found)  # other members may need fewer bytes
                await wait.wait()
            finally:
                for each in found:
                    each.share_partition.waits.pop(wait, None)

    def _is_enough(self, found: Sequence[_Found], reads: Sequence[_Read], size: int) -> bool:
        if trio.current_time() >= self.deadline or self.node.stopping:
            return True
        if any(
            each.share_partition.closed and each.share_partition.failure is None for each in found
        ):
            return True  # leadership was lost
        if all(each.share_partition.closed for each in found):
            return True  # no share partition is left to wait for
        return any(read.error for read in reads) or (bool(reads) and size >= self.min_bytes)

    async def _read_all(self, found: Sequence[_Found], wait: FetchWait) -> list[_Read]:
        """Read the available records. `wait` is notified of changes in the meantime."""
        ready: list[_Found] = []
        time_slice = self.ctx.time_slice
        time_slice.begin(trio.current_time())  # the time slice does not include the wait
        async for each in time_slice.each(found):
            each.share_partition.waits[wait] = None
            if _is_ready(each.share_partition):
                ready.append(each)
        reads: list[_Read] = []
        anything = False
        async for each in time_slice.each(ready):
            most = self.max_bytes // len(ready)
            read = await self.node.context.disk_reads.read(
                partial(self._read, each, most, not anything)
            )
            if read is not None:
                anything = anything or read.slice.size > 0
                reads.append(read)
        return reads

    def _read(
        self, found: _Found, max_bytes: int, at_least_one: bool, reading: Reading
    ) -> _Read | None:
        share_partition = found.share_partition
        delivery = share_partition.delivery
        if delivery is None or not _is_ready(share_partition):
            return None
        log = share_partition.replica.log
        delivery.archive_before_log_start(log.log_start_offset)
        offset = delivery.next_offset()
        limit = share_partition.readable_end
        try:
            with self.node.partitions.storage_errors_reported(share_partition.replica):
                read = reading(_read_whole, log, offset, max_bytes, limit, at_least_one)
        except KafkaError as error:
            is_beyond = error.code == ErrorCode.OFFSET_OUT_OF_RANGE  # the log was truncated
            return _Read(found, delivery, offset, NOTHING, None if is_beyond else error)
        return _Read(found, delivery, offset, read)

    async def _acquire_records(self, reads: Iterable[_Read]) -> list[_Part]:
        """Acquire records of each partition, up to `max_records`, and return the rows."""
        quota_charge = self.ctx.quota_charge
        if quota_charge is not None and not quota_charge.try_charge_records(0):
            return []
        parts = []
        left = self.request.max_records
        async for read in self.ctx.time_slice.each(reads):
            target, share_partition = read.found
            row = Row(partition_index=share_partition.key.partition)
            if read.error is not None:
                row.error_code = read.error.code
            elif share_partition.closed:
                continue
            elif left > 0 and self.node.share.sessions.is_current(self.session):
                try:
                    with self.node.partitions.storage_errors_reported(share_partition.replica):
                        left -= self._acquire_from(read, row, left)
                except StorageError as error:
                    row = Row(partition_index=row.partition_index, error_code=error.code)
            parts.append(_Part(target, row))
        if quota_charge is not None:
            quota_charge.charge_records(sum(len(part.row.records) for part in parts))
        return parts

    def _acquire_from(self, read: _Read, row: Row, left: int) -> int:
        """Acquire records of one partition, and return their number."""
        share_partition, delivery = read.found.share_partition, read.delivery
        if delivery.next_offset() != read.offset:  # another member acquired the records
            again = self._read(read.found, max(read.slice.size, 1), True, waiting)
            if again is None or again.error is not None:
                return 0
            read = again
        exactly = self.request.share_acquire_mode == RECORD_LIMIT
        acquirer = Acquirer(self.member_id, left, self.request.batch_size, exactly)
        headers = self._headers(read, left)
        batches = [LogBatch(header.base_offset, header.last_offset) for _, header in headers]
        now_ms = self.node.clock.coordinator_ms()
        acquired = acquire(delivery, acquirer, read.offset, batches, now_ms)
        if acquired and self.settings.committed_only:
            acquired = without_aborted(
                delivery, acquired, list(_aborted_batches(share_partition, read, headers))
            )
        self.node.share.partitions.arm(share_partition)
        if not acquired:
            return 0
        row.records = _acquired_part(read.slice, headers, acquired)
        row.acquired_records = [
            ShareFetchResponse.AcquiredRecords(
                first_offset=each.first, last_offset=each.last, delivery_count=each.deliveries
            )
            for each in acquired
        ]
        return sum(each.last - each.first + 1 for each in acquired)

    def _headers(self, read: _Read, left: int) -> list[tuple[int, BatchHeader]]:
        """Return position and header of each read batch whose records could be acquired."""
        most = min(left, self.settings.delivery.locks_max)
        end = max(read.delivery.end_offset, read.offset) + most
        headers = []
        for position, header in slice_headers(read.slice):
            headers.append((position, header))
            if header.base_offset > end:
                break
        return headers

    # -- the response

    async def _respond(self, parts: Iterable[_Part]) -> ShareFetchResponse:
        outcomes = self.outcomes
        response = ShareFetchResponse(acquisition_lock_timeout_ms=self.settings.delivery.lock_ms)
        topics: dict[UUID, ShareFetchResponse.Topic] = {}
        rejected: list[tuple[UUID, int, Row]] = []

        def add(topic_id: UUID, row: Row) -> None:
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = ShareFetchResponse.Topic(topic_id=topic_id)
                response.responses.append(topic)
            topic.partitions.append(row)

        async for part in self.ctx.time_slice.each(parts):
            if not self._has_row(part):
                continue
            outcome = outcomes.pop(part.key, None)
            if outcome is not None:
                part.row.acknowledge_error_code = outcome.code
                part.row.acknowledge_error_message = outcome.message
            add(part.key[0], part.row)
            if part.row.error_code in WRONG_LEADER:
                rejected.append((*part.key, part.row))
        async for (topic_id, index), outcome in self.ctx.time_slice.each(outcomes.items()):
            row = Row(
                partition_index=index,
                acknowledge_error_code=outcome.code,
                acknowledge_error_message=outcome.message,
            )
            add(topic_id, row)
        add_current_leaders(self.ctx, response, rejected)
        return response

    def _has_row(self, part: _Part) -> bool:
        """Return True if the response has a row for a partition, and update the session.

        The first response of a session has a row for every partition.
        """
        target, row = part
        has_records = len(row.records) > 0
        if has_records and self.epoch != INITIAL_EPOCH:
            self.session.move_back(target)
        if self.epoch == INITIAL_EPOCH:
            return True
        included = has_records or target.must_include or bool(row.error_code)
        target.must_include = bool(row.error_code)
        return included


def _read_whole(log: Log, offset: int, max_bytes: int, limit: int, at_least_one: bool) -> Slice:
    """Read from a log. The batches must be in the page cache, because their headers are parsed.

    Raises:
        NotCached: The batches are not in the page cache, and the caller must not block.
    """
    found = log.read(offset, max_bytes, limit=limit, at_least_one=at_least_one)
    if must_not_wait() and isinstance(found.records, FileRange):
        absent = found.records.uncached_range(found.size)
        if absent is not None:
            raise absent
    return found


def _is_ready(share_partition: SharePartition) -> bool:
    """Return True if records of a share partition can be acquired, should any be available."""
    return (
        not share_partition.closed
        and share_partition.delivery is not None
        and share_partition.delivery.can_acquire()
    )


def _wake_others(found: Iterable[_Found]) -> None:
    """Let other members acquire the remaining records."""
    for each in found:
        each.share_partition.wake_next()


def _closed_partitions(found: Iterable[_Found]) -> Iterator[tuple[_Found, KafkaError]]:
    """Yield the partitions that are closed or whose state could not be loaded, with their errors."""
    for each in found:
        if each.share_partition.closed:
            yield (
                each,
                each.share_partition.failure or KafkaError(each.share_partition.replica.failure()),
            )


def _error_row(target: ShareTarget, error: KafkaError) -> Row:
    return Row(partition_index=target.key[1], error_code=error.code)


def _aborted_batches(
    share_partition: SharePartition, read: _Read, headers: Sequence[tuple[int, BatchHeader]]
) -> Iterator[LogBatch]:
    """Yield the batches of aborted transactions."""
    end = headers[-1][1].next_offset
    starts = sorted(
        aborted_transactions(share_partition.replica.log, read.slice.first_offset, end),
        key=lambda it: it[1],
    )
    aborted: set[int] = set()
    waiting = iter(starts)
    following = next(waiting, None)
    for position, header in headers:
        while following is not None and following[1] <= header.last_offset:
            aborted.add(following[0])
            following = next(waiting, None)
        if header.is_control:
            if _is_abort(read.slice, position, header):
                aborted.discard(header.producer_id)
        elif header.is_transactional and header.producer_id in aborted:
            yield LogBatch(header.base_offset, header.last_offset)


def _is_abort(found: Slice, position: int, header: BatchHeader) -> bool:
    """Return True if a control batch is an ABORT marker."""
    data = part_of(found.records, position, header.size)
    batch = memoryview(data if isinstance(data, bytes) else data.read())
    record = next(batch_records(batch, header), None)
    return record is not None and record.key is not None and bytes(record.key[2:4]) == b"\0\0"


def _acquired_part(
    found: Slice, headers: Sequence[tuple[int, BatchHeader]], acquired: Sequence[Acquired]
) -> Any:
    """Return the bytes of the batches that contain acquired records."""
    first, last = acquired[0].first, acquired[-1].last
    start, end = 0, headers[0][1].size
    for position, header in headers:
        if header.base_offset <= first:
            start = position
        elif header.base_offset > last:
            break
        end = position + header.size
    if not start and end == found.size:
        return found.records
    return part_of(found.records, start, end - start)
