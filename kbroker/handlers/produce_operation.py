"""Execution of Produce requests: append record batches, and wait for their acknowledgement."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from functools import lru_cache, partial
from typing import TypeAlias, TypeVar
from uuid import UUID

import trio

from kbroker.cluster.topics import find_topic
from kbroker.node.node import Node
from kbroker.node.request_metrics import NO_TOPIC
from kbroker.partitions.replica import Replica
from kbroker.partitions.waiters import Pending
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compile import Encoded
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.log_validator import BATCH_EFFORT, LogValidator, validate_at_once
from kbroker.protocol.message_sets import Conversion, is_message_set
from kbroker.protocol.messages.produce import ProduceRequest, ProduceResponse
from kbroker.protocol.records import (
    BatchHeader,
    ProduceRules,
    RecordsRejectedError,
    claimed_codec,
    claims_transaction,
)
from kbroker.protocol.response_template import ResponseTemplate
from kbroker.runtime.heavy_work import Steps
from kbroker.runtime.time_slices import Later
from kbroker.security.acls import AclOperation
from kbroker.storage.errors import StorageError

from .context import Context, DisconnectError
from .current_leader import Place, add_current_leaders, awaits_new_leader, first_awaiting_leader
from .rejected_batches import RejectedBatches
from .transactional_batches import Missing, ProduceTransaction, producer_of_first_batch

ACKS = NO_ANSWER, LEADER_ONLY, ALL_IN_SYNC = 0, 1, -1
# First version with record batches; older versions may carry message sets.
FIRST_VERSION_OF_BATCHES = 3
# Number of rows of a request with one topic and one partition.
ROWS_OF_ONE = 2
# Maximum number of topics and partitions that are appended to without checking the time slice.
ROWS_AT_ONCE = 200
# First version whose responses name the current leader (KIP-951).
FIRST_VERSION_WITH_LEADERS = 10
# First version with the fields index, error code, base offset, log append time and log start offset
# next to each other.
FIRST_VERSION_WITH_TEMPLATES = 5
ROW_LAYOUT = ">ihqqq"
# Maximum number of topics with a cached response, about 0.5 kB each.
TEMPLATES_MAX = 4000
# Maximum size in bytes of a batch that is compressed in the event loop. That takes less time than
# the handover to another thread.
LIGHT_BYTES_MAX = 4096
# Maximum size in bytes of a compressed batch whose decompression begins in the event loop.
LIGHT_COMPRESSED_BYTES_MAX = 16 * 1024
# Maximum number of records that one request validates per time slice; see `LogValidator.effort`.
EFFORT_AT_ONCE = 2000


Result = TypeVar("Result")
Answer: TypeAlias = ProduceResponse | Encoded | Pending[ProduceResponse] | None


class ProduceOperation:
    """Execution of one Produce request: the appends, and the wait for their acknowledgement."""

    __slots__ = (
        "acks",
        "answers",
        "awaiting_leader",
        "ctx",
        "effort",
        "failed",
        "left",
        "node",
        "now_ms",
        "pending",
        "rejection",
        "timeout_ms",
        "topics",
        "transaction",
        "transactional_id",
        "unfinished",
        "version",
        "waiting",
    )

    def __init__(self, ctx: Context, request: ProduceRequest) -> None:
        self.ctx = ctx
        self.node: Node = ctx.node
        self.version = ctx.version
        self.topics = request.topic_data
        self.transactional_id = request.transactional_id
        self.timeout_ms = request.timeout_ms
        self.acks = request.acks
        self.now_ms = ctx.node.clock.log_ms()
        # First rejected partition whose new leader is not known yet.
        self.awaiting_leader: Place | None = None
        # Error of the whole request: nothing is appended.
        self.rejection: KafkaError | None = None
        if request.acks not in ACKS:
            self.rejection = KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
        elif self._lacks_lease():
            self.rejection = _expired_lease_error()
        self.transaction: ProduceTransaction | None = None
        if request.transactional_id is not None:
            self.transaction = ProduceTransaction(ctx, request.transactional_id)
        self.failed = False
        # Number of appends that wait for their acknowledgement, plus 1 until all batches are
        # appended.
        self.left = 1
        # Number of records that were validated in this time slice.
        self.effort = 0
        # Validator of a batch that is partly validated.
        self.unfinished: LogValidator | None = None
        self.waiting: list[tuple[Replica, int, ProduceResponse.Partition]] = []
        self.answers: list[ProduceResponse.Topic] = []

    def check_transaction(self) -> None:
        """Check the transactional ID. As in Kafka, an error rejects the whole request."""
        try:
            if self.transactional_id is None:
                raise KafkaError(
                    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                    "a transactional batch needs a transactional id",
                )
            self.ctx.require_transaction(AclOperation.WRITE, self.transactional_id)
        except KafkaError as error:
            self.rejection = error

    async def append_in_time_slices(self) -> Answer:
        """Append many batches in time slices."""
        time_slice = self.ctx.time_slice
        missing: Missing = {}
        async for topic in time_slice.each(self.topics):
            async for partition in time_slice.each(topic.partition_data):
                if self.rejection is None and claims_transaction(partition.records):
                    self.check_transaction()
                if self.transaction is not None and self.transaction.needs_verification:
                    self._add_missing(topic, partition, missing)
        if self.transaction is not None:
            await self.transaction.verify(missing)
        return await self.prepare_and_append()

    def missing_in_transaction(self) -> Missing:
        """Return the partitions that the transaction coordinator has to verify or add first."""
        missing: Missing = {}
        if self.transaction is not None and self.transaction.needs_verification:
            for topic in self.topics:
                for partition in topic.partition_data:
                    self._add_missing(topic, partition, missing)
        return missing

    def _add_missing(
        self,
        topic: ProduceRequest.Topic,
        partition: ProduceRequest.Partition,
        missing: Missing,
    ) -> None:
        with suppress(KafkaError):  # the append raises it again
            replica = self._admit(topic, partition.index)
            producer = producer_of_first_batch(replica, partition.records)
            if producer is not None:
                missing.setdefault(producer, []).append(replica)

    async def verify_and_append(self, missing: Missing) -> Answer:
        """Verify partitions of the transaction or add them to it, and append all batches."""
        assert self.transaction is not None
        await self.transaction.verify(missing)
        answer = self.append_all()
        return await answer if isinstance(answer, Coroutine) else answer

    def append_one(self) -> Answer | Later[Answer]:
        """Append the batch of a request with one batch, the most frequent case."""
        topic = self.topics[0]
        row = self._append_unless_heavy(topic, topic.partition_data[0])
        if row is None:
            return self.prepare_and_append()
        if (
            self.failed
            or self.waiting
            or self.acks == NO_ANSWER
            or self.version < FIRST_VERSION_WITH_TEMPLATES
        ):
            self._add_topic(topic).append(row)
            return self._finish_appends()
        return _response_template(self.version, topic.name, topic.topic_id.int).fill(
            row.index,
            ErrorCode.NONE,
            row.base_offset,
            row.log_append_time_ms,
            row.log_start_offset,
        )

    def append_all(self) -> Answer | Later[Answer]:
        """Append all batches in order, up to the first batch that needs offloaded work.

        If there is such a batch, return a coroutine that appends it and the remaining batches.
        """
        for topic in self.topics:
            rows = self._add_topic(topic)
            for partition in topic.partition_data:
                row = self._append_unless_heavy(topic, partition)
                if row is None:
                    return self.prepare_and_append()
                rows.append(row)
        return self._finish_appends()

    def _finish_appends(self) -> Answer:
        """Return the response after all appends, or a pending one."""
        self.left -= 1
        return self._begin_waiting() if self.left else self._response()

    async def prepare_and_append(self) -> Answer:
        """Append the remaining batches, of which the first needs offloaded work."""
        time_slice = self.ctx.time_slice
        is_heavy = True
        answers = self.answers
        topics = self.topics
        async for position in time_slice.each(range(max(len(answers) - 1, 0), len(topics))):
            topic = topics[position]
            is_begun = position < len(answers)
            rows = answers[position].partition_responses if is_begun else self._add_topic(topic)
            async for partition in time_slice.each(topic.partition_data[len(rows) :]):
                self.effort = 0
                row = None if is_heavy else self._append_unless_heavy(topic, partition)
                if row is None:
                    row = await self._prepare_and_append(topic, partition)
                    is_heavy = False
                rows.append(row)
        return self._finish_appends()

    def _add_topic(self, topic: ProduceRequest.Topic) -> list[ProduceResponse.Partition]:
        """Add the response of a topic and return the list of its rows."""
        rows: list[ProduceResponse.Partition] = []
        self.answers.append(
            ProduceResponse.Topic(
                name=topic.name, topic_id=topic.topic_id, partition_responses=rows
            )
        )
        return rows

    def _response(self) -> Answer:
        """Return the response if no append waits for its acknowledgement."""
        if self.acks != NO_ANSWER:
            if not self.failed:
                return self._finished_response()
            self.topics = []  # release the rejected records while the response is pending
            self.pending = pending = Pending[ProduceResponse]()
            self._resolve()
            return pending.response if pending.ready else pending
        if self.failed:
            # A client that expects no response can only be notified by a disconnect, as in Kafka.
            raise DisconnectError("a batch sent with acks=0 was rejected")
        return None

    def _finished_response(self) -> ProduceResponse:
        """Return the complete response."""
        response = ProduceResponse(responses=self.answers)
        if self.failed and self.version >= FIRST_VERSION_WITH_LEADERS:
            add_current_leaders(self.ctx, response, self._rows())
        return response

    def _rows(self) -> Iterator[tuple[str | UUID, int, ProduceResponse.Partition]]:
        """Return all response rows with the name or ID of their topic and their partition."""
        by_id = self.version >= 13
        return (
            (topic.topic_id if by_id else topic.name, row.index, row)
            for topic in self.answers
            for row in topic.partition_responses
        )

    def _resolve(self) -> None:
        """Resolve the pending response as soon as the new leader of rejected partitions is known."""
        self.awaiting_leader = first_awaiting_leader(self.ctx, self._rows())
        if not self._resolve_if_leader_known():
            self.node.replication.leader_change_waiters.wait(
                self._resolve_if_leader_known, self._resolve_now
            )

    def _resolve_if_leader_known(self) -> bool:
        """Resolve the pending response if the new leader is known, and return True then.

        Checks the first such partition only: leadership of the others was lost at the same time.
        """
        if self.awaiting_leader is not None and awaits_new_leader(self.ctx, self.awaiting_leader):
            return False
        self._resolve_now()
        return True

    def _resolve_now(self) -> None:
        self.pending.resolve(self._finished_response())

    async def _prepare_and_append(
        self, topic: ProduceRequest.Topic, partition: ProduceRequest.Partition
    ) -> ProduceResponse.Partition:
        records = partition.records
        try:
            rules = self._admit(topic, partition.index).log.config.produce_rules
            if self._is_old_format(records):
                converted = await self._run_offloaded(partial(Conversion, records, rules))
                if converted is None:
                    return ProduceResponse.Partition(index=partition.index, base_offset=-1)
                records = memoryview(converted)
            batch, header = await self._validate(records, rules)
            replica = self._admit(topic, partition.index)
            if self._lacks_lease():  # the lease may have expired during the validation
                raise _expired_lease_error()
            if self.transaction is not None:
                self.transaction.check(replica, batch)
            return self._append(topic, replica, batch, header)
        except KafkaError as error:
            # The validator may belong to this batch: do not continue it with the next one.
            self.unfinished = None
            return self._reject(topic, partition, error)

    async def _validate(
        self, records: memoryview | None, rules: ProduceRules
    ) -> tuple[memoryview, BatchHeader]:
        """Return the validated batch to store. Validate in time slices or in another thread."""
        begin = partial(LogValidator, records, self.version, self.now_ms, rules)
        validator, self.unfinished = self.unfinished or begin(), None
        if validator.is_compressed:
            # Release the validator while this task waits: the worker thread validates from scratch.
            del validator
            return await self._run_offloaded(begin)
        while not validator.step():
            await self.ctx.time_slice.pause()
        return validator.result()

    async def _run_offloaded(self, begin: Callable[[], Steps[Result]]) -> Result:
        """Offload CPU work of this client, and charge its time."""
        with self.ctx.cpu_account() as client:
            return await self.node.heavy_work.run_in_steps(begin, client)

    def _append_unless_heavy(
        self, topic: ProduceRequest.Topic, partition: ProduceRequest.Partition
    ) -> ProduceResponse.Partition | None:
        """Append a batch and return its row, or None without effect if it needs offloaded work."""
        records = partition.records
        try:
            replica = self._admit(topic, partition.index)
            if self.transaction is not None:
                # As in Kafka, check the transaction before the records.
                self.transaction.check(replica, records)
            rules = replica.log.config.produce_rules
            has_time = self.effort <= EFFORT_AT_ONCE
            if has_time and rules.codec is None and self.version >= FIRST_VERSION_OF_BATCHES:
                stored = validate_at_once(records, self.version, self.now_ms, rules)
                if stored is not None:
                    batch, header = stored
                    self.effort += BATCH_EFFORT + header.record_count
                    return self._append(topic, replica, batch, header)
            if self._is_heavy(records, rules):
                return None
            validator = LogValidator(records, self.version, self.now_ms, rules)
            try:
                while not validator.step():
                    if self.effort + validator.effort > EFFORT_AT_ONCE:
                        self.unfinished = validator
                        return None
            finally:
                self.effort += validator.effort  # count rejected batches too
            batch, header = validator.result()
            return self._append(topic, replica, batch, header)
        except KafkaError as error:
            return self._reject(topic, partition, error)

    def _is_heavy(self, records: memoryview | None, rules: ProduceRules) -> bool:
        """Return True if a batch takes too long for the event loop."""
        if records is None:
            return False
        if self.effort > EFFORT_AT_ONCE or self._is_old_format(records):
            return True
        codec = claimed_codec(records)
        if rules.codec is None or rules.codec == codec:
            return bool(codec) and len(records) > LIGHT_COMPRESSED_BYTES_MAX
        return bool(codec) or len(records) > LIGHT_BYTES_MAX

    def _is_old_format(self, records: memoryview | None) -> bool:
        return self.version < FIRST_VERSION_OF_BATCHES and is_message_set(records)

    def _append(
        self,
        topic: ProduceRequest.Topic,
        replica: Replica,
        batch: memoryview | None,
        header: BatchHeader,
    ) -> ProduceResponse.Partition:
        assert batch is not None
        index, rejected = replica.index, self.ctx.peer.rejected_batches
        if rejected and header.producer_id >= 0:
            producers = replica.log.producers
            rejected.check(_key(topic), index, header, producers, trio.current_time())
        all_in_sync = self.acks == ALL_IN_SYNC
        if not all_in_sync and not self.node.partitions.is_registered_leader(replica):
            self._check_expired_lease_acks()
        try:
            appended = replica.append_produced(batch, header, self.now_ms, all_in_sync=all_in_sync)
        except StorageError as error:
            self.node.partitions.report_storage_error(replica.topic, replica.index, error)
            raise
        row = ProduceResponse.Partition(
            index=index,
            base_offset=appended.base_offset,
            log_append_time_ms=appended.log_append_time_ms,
            log_start_offset=replica.log.log_start_offset,
        )
        # Inlined `_acknowledged_end`: saves a call for each batch.
        if (
            appended.last_offset
            >= (replica.log.high_watermark if all_in_sync else replica.durable_end)
            and self.acks != NO_ANSWER
        ):
            self._wait_for(replica, appended.last_offset + 1, row)
        return row

    def _lacks_lease(self) -> bool:
        """Return True for acks=0 or acks=1 if another node may lead already."""
        return (
            self.acks != ALL_IN_SYNC
            and self.node.membership.may_have_expired
            and not self.node.config.expired_lease_acks_enable
        )

    def _check_expired_lease_acks(self) -> None:
        """Raise KafkaError unless the settings allow acks=0/1 while the lease may have expired."""
        if not self.node.config.expired_lease_acks_enable:
            raise _expired_lease_error()

    def _acknowledged_end(self, replica: Replica) -> int:
        """Return the offset below which batches are acknowledged."""
        return replica.log.high_watermark if self.acks == ALL_IN_SYNC else replica.durable_end

    def _admit(self, topic: ProduceRequest.Topic, index: int) -> Replica:
        """Return the replica to append to, after all checks of the topic."""
        if self.rejection is not None:
            raise self.rejection
        by_id = self.version >= 13
        if not by_id:  # first, so that the error does not reveal whether the topic exists
            self.ctx.require_topic(AclOperation.WRITE, topic.name)
        found = find_topic(self.node.cluster, topic.name, topic.topic_id, by_id=by_id)
        if by_id:
            self.ctx.require_topic(AclOperation.WRITE, found.name)
        if found.is_internal:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, "clients cannot write to internal topics"
            )
        return self.node.partitions.replica(found, index)

    def _reject(
        self, topic: ProduceRequest.Topic, partition: ProduceRequest.Partition, error: KafkaError
    ) -> ProduceResponse.Partition:
        self.failed = True
        self._remember_rejected(topic, partition, error)
        cluster = self.node.cluster
        found = cluster.topics.get(topic.name) or cluster.topics_by_id.get(topic.topic_id)
        name = NO_TOPIC if found is None else found.name
        self.node.request_metrics.count_rejected(ApiKey.PRODUCE, name, error.code)
        return _error_row(partition.index, error)

    def _remember_rejected(
        self, topic: ProduceRequest.Topic, partition: ProduceRequest.Partition, error: KafkaError
    ) -> None:
        """Remember a rejected batch, so that later batches of its producer do not overtake it."""
        peer = self.ctx.peer
        if peer.rejected_batches is None:
            peer.rejected_batches = RejectedBatches()
        peer.rejected_batches.remember(
            _key(topic), partition.index, partition.records, error.code, trio.current_time()
        )

    def _begin_waiting(self) -> Pending[ProduceResponse]:
        """Return the pending response, resolved by the last acknowledgement or at the timeout."""
        timeout_seconds = max(self.timeout_ms, 0) / 1000
        self.topics = []  # release the records: they are in the log, and a slow disk may take long
        self.pending = Pending(
            deadline=trio.current_time() + timeout_seconds, on_timeout=self._expire
        )
        return self.pending

    def _wait_for(self, replica: Replica, end_offset: int, row: ProduceResponse.Partition) -> None:
        """Wait for the acknowledgement of a batch.

        The wait begins with the append. If the node loses leadership while the next batches are
        validated, the batch may be truncated, and the offset then belongs to other records.
        """
        self.left += 1
        self.waiting.append((replica, end_offset, row))
        waits = replica.commits if self.acks == ALL_IN_SYNC else replica.writes
        waits.add(end_offset, partial(self._acknowledge, replica, row))

    def _acknowledge(
        self, replica: Replica, row: ProduceResponse.Partition, committed: bool
    ) -> None:
        """Record that an append is acknowledged or failed, and respond after the last one."""
        self.left -= 1
        if not committed or self._lacks_lease():
            self._fail(replica, row, replica.failure())
        if not self.left:
            if self.failed:
                self._resolve()
            else:
                self._resolve_now()

    def _fail(self, replica: Replica, row: ProduceResponse.Partition, code: ErrorCode) -> None:
        self.failed = True
        row.error_code = code
        row.base_offset = row.log_append_time_ms = row.log_start_offset = -1
        self.node.request_metrics.count_rejected(ApiKey.PRODUCE, replica.topic.name, code)

    def _expire(self) -> ProduceResponse:
        for replica, end_offset, row in self.waiting:
            if self._acknowledged_end(replica) < end_offset and not row.error_code:
                all_in_sync = self.acks == ALL_IN_SYNC
                late = replica.timeout_error() if all_in_sync else ErrorCode.REQUEST_TIMED_OUT
                self._fail(replica, row, late)
        return self._finished_response()


@lru_cache(maxsize=TEMPLATES_MAX)
def _response_template(version: int, name: str, topic_id: int) -> ResponseTemplate:
    """Return the encoded response to one appended batch, with placeholders for the row's numbers.

    Args:
        version: API version.
        name: Topic name.
        topic_id: Topic ID as an integer, which hashes faster than a UUID.
    """
    index, base_offset, time_ms, log_start = 0x01020304, 1 << 60, 2 << 60, 3 << 60
    row = ProduceResponse.Partition(
        index=index,
        base_offset=base_offset,
        log_append_time_ms=time_ms,
        log_start_offset=log_start,
    )
    topic = ProduceResponse.Topic(name=name, topic_id=UUID(int=topic_id), partition_responses=[row])
    response = ProduceResponse(responses=[topic])
    return ResponseTemplate(
        response, version, ROW_LAYOUT, index, ErrorCode.NONE, base_offset, time_ms, log_start
    )


def names_transaction(request: ProduceRequest) -> bool:
    """Return True if a batch of the request claims to be transactional."""
    for topic in request.topic_data:
        for partition in topic.partition_data:
            if claims_transaction(partition.records):
                return True
    return False


def _key(topic: ProduceRequest.Topic) -> str | UUID:
    """Return the name or the ID of a topic, whichever the request has."""
    return topic.name or topic.topic_id


def _expired_lease_error() -> KafkaError:
    """Return the error for acks=0 and acks=1: a new leader may not have the batch."""
    return KafkaError(
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        "this node may have lost leadership: it accepts acks=all only",
    )


def _error_row(index: int, error: KafkaError) -> ProduceResponse.Partition:
    record_errors = []
    if isinstance(error, RecordsRejectedError):
        record_errors = [
            ProduceResponse.RecordError(batch_index=i, batch_index_error_message=message)
            for i, message in error.record_errors
        ]
    return ProduceResponse.Partition(
        index=index,
        error_code=error.code,
        error_message=error.message,
        base_offset=-1,
        record_errors=record_errors,
    )
