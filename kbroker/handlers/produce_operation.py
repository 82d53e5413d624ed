"""What is done for a Produce request: record batches are appended, and waited for."""

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
from kbroker.protocol.log_validator import BATCH_EFFORT, LogValidator, validated_at_once
from kbroker.protocol.message_sets import Conversion, is_message_set
from kbroker.protocol.messages.produce import ProduceRequest, ProduceResponse
from kbroker.protocol.records import (
    BatchHeader,
    ProduceRules,
    RecordsRefusedError,
    claimed_codec,
    claims_transaction,
)
from kbroker.protocol.stencil import Stencil
from kbroker.runtime.heavy_work import Steps
from kbroker.runtime.time_slices import Later
from kbroker.security.acls import AclOperation
from kbroker.storage.errors import StorageError

from .context import Context, Refused
from .current_leader import Place, awaits_new_leader, first_awaiting_leader, tell_leaders
from .rejected_batches import RejectedBatches
from .transactional_batches import Missing, ProduceTransaction, new_in_transaction

ACKS = NO_ANSWER, LEADER_ONLY, ALL_IN_SYNC = 0, 1, -1
FIRST_VERSION_OF_BATCHES = 3
"""Older versions may carry message sets."""
ROWS_OF_ONE = 2
"""A topic and its partition."""
ROWS_AT_ONCE = 200
"""Topics and partitions that are appended to without looking whether the turn is over."""
FIRST_VERSION_WITH_LEADERS = 10
"""Whose answers say who leads instead (KIP-951)."""
FIRST_VERSION_WITH_STENCILS = 5
"""Whose rows have index, error code, base offset, time and log start side by side."""
ROW_LAYOUT = ">ihqqq"
STENCILS_MAX = 4000
"""Topics whose answers are kept prepared, about half a kilobyte each."""
LIGHT_BYTES_MAX = 4096
"""A batch of this size is compressed in less time than another thread takes to begin with it."""
LIGHT_COMPRESSED_BYTES_MAX = 16 * 1024
"""A compressed batch of this size is opened in the event loop, at least its beginning."""
EFFORT_AT_ONCE = 2000
"""Records that are checked for one request before others have a turn, see `LogValidator.effort`."""


Result = TypeVar("Result")
Answer: TypeAlias = ProduceResponse | Encoded | Pending[ProduceResponse] | None


class ProduceOperation:
    """One Produce request: its appends, and the wait until all of them are committed."""

    __slots__ = (
        "acks",
        "answers",
        "awaiting_leader",
        "begun",
        "ctx",
        "effort",
        "failed",
        "left",
        "node",
        "now_ms",
        "pending",
        "refusal",
        "timeout_ms",
        "topics",
        "transaction",
        "transactional_id",
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
        self.awaiting_leader: Place | None = None
        """A refused partition of which it will soon be known who leads it."""
        self.refusal: KafkaError | None = None
        """Why nothing at all is appended."""
        if request.acks not in ACKS:
            self.refusal = KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
        elif request.acks != ALL_IN_SYNC and _is_unsure(ctx.node):
            self.refusal = _unsure()
        self.transaction: ProduceTransaction | None = None
        if request.transactional_id is not None:
            self.transaction = ProduceTransaction(ctx, request.transactional_id)
        self.failed = False
        self.effort = 0
        """Records that were checked in this turn."""
        self.begun: LogValidator | None = None
        """A batch that is not checked to its end."""
        self.waiting: list[tuple[Replica, int, ProduceResponse.Partition]] = []
        self.answers: list[ProduceResponse.Topic] = []

    def check_transaction(self) -> None:
        """As in Kafka, one batch of a transaction that may not be fails the whole request."""
        try:
            if self.transactional_id is None:
                raise KafkaError(
                    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                    "a transactional batch needs a transactional id",
                )
            self.ctx.require_transaction(AclOperation.WRITE, self.transactional_id)
        except KafkaError as error:
            self.refusal = error

    async def do_in_turns(self) -> Answer:
        """Append many batches, in turns with other clients."""
        time_slice = self.ctx.time_slice
        missing: Missing = {}
        async for topic in time_slice.each(self.topics):
            async for partition in time_slice.each(topic.partition_data):
                if self.refusal is None and claims_transaction(partition.records):
                    self.check_transaction()
                if self.transaction is not None and self.transaction.asks:
                    self._note_missing(topic, partition, missing)
        if self.transaction is not None:
            await self.transaction.ask(missing)
        return await self.prepare_and_append()

    def missing_in_transaction(self) -> Missing:
        """Partitions about which the transaction is asked before they are written."""
        missing: Missing = {}
        if self.transaction is not None and self.transaction.asks:
            for topic in self.topics:
                for partition in topic.partition_data:
                    self._note_missing(topic, partition, missing)
        return missing

    def _note_missing(
        self,
        topic: ProduceRequest.Topic,
        partition: ProduceRequest.Partition,
        missing: Missing,
    ) -> None:
        with suppress(KafkaError):  # the append meets it again
            replica = self._admit(topic, partition.index)
            producer = new_in_transaction(replica, partition.records)
            if producer is not None:
                missing.setdefault(producer, []).append(replica)

    async def ask_and_append(self, missing: Missing) -> Answer:
        """Ask whether partitions are part of the transaction, or let them join it, and append."""
        assert self.transaction is not None
        await self.transaction.ask(missing)
        answer = self.append_all()
        return await answer if isinstance(answer, Coroutine) else answer

    def append_one(self) -> Answer | Later[Answer]:
        """As `append_all`, for a request with one batch: what most clients send most of the time."""
        topic = self.topics[0]
        row = self._append_unless_heavy(topic, topic.partition_data[0])
        if row is None:
            return self.prepare_and_append()
        if (
            self.failed
            or self.waiting
            or self.acks == NO_ANSWER
            or self.version < FIRST_VERSION_WITH_STENCILS
        ):
            self._answer_to(topic).append(row)
            return self._appended()
        return _stencil(self.version, topic.name, topic.topic_id.int).filled(
            row.index,
            ErrorCode.NONE,
            row.base_offset,
            row.log_append_time_ms,
            row.log_start_offset,
        )

    def append_all(self) -> Answer | Later[Answer]:
        """Append one batch after the other, up to the first that takes heavy work before."""
        for topic in self.topics:
            rows = self._answer_to(topic)
            for partition in topic.partition_data:
                row = self._append_unless_heavy(topic, partition)
                if row is None:
                    return self.prepare_and_append()
                rows.append(row)
        return self._appended()

    def _appended(self) -> Answer:
        """All is appended that can be, without taking turns."""
        if self.waiting and self.acks != NO_ANSWER:
            pending = self._begin_waiting()
            for appended in self.waiting:
                self._wait_for(*appended)
            return pending
        return self._answer()

    async def prepare_and_append(self) -> Answer:
        """Append what is not appended yet, from a batch on that takes heavy work before."""
        time_slice = self.ctx.time_slice
        is_heavy = True
        answers = self.answers
        topics = self.topics
        async for position in time_slice.each(range(max(len(answers) - 1, 0), len(topics))):
            topic = topics[position]
            is_begun = position < len(answers)
            rows = answers[position].partition_responses if is_begun else self._answer_to(topic)
            async for partition in time_slice.each(topic.partition_data[len(rows) :]):
                self.effort = 0
                row = None if is_heavy else self._append_unless_heavy(topic, partition)
                if row is None:
                    row = await self._prepare_and_append(topic, partition)
                    is_heavy = False
                rows.append(row)
        if self.waiting and self.acks != NO_ANSWER:
            pending = self._begin_waiting()
            async for appended in time_slice.each(self.waiting):
                self._wait_for(*appended)
            return pending
        return self._answer()

    def _answer_to(self, topic: ProduceRequest.Topic) -> list[ProduceResponse.Partition]:
        """Begin the answer to what was sent for one topic; returns the list of its rows."""
        rows: list[ProduceResponse.Partition] = []
        self.answers.append(
            ProduceResponse.Topic(
                name=topic.name, topic_id=topic.topic_id, partition_responses=rows
            )
        )
        return rows

    def _answer(self) -> Answer:
        """The answer to a request that waits for no append."""
        if self.acks != NO_ANSWER:
            if not self.failed:
                return self._finished()
            self.topics = []  # what was refused is not kept while it waits
            self.pending = pending = Pending[ProduceResponse]()
            self._resolve()
            return pending.response if pending.ready else pending
        if self.failed:
            # The only way to tell a client that does not read answers.
            raise Refused("a batch sent with acks=0 was refused")
        return None

    def _finished(self) -> ProduceResponse:
        """The answer that is owed, when all of it is known."""
        response = ProduceResponse(responses=self.answers)
        if self.failed and self.version >= FIRST_VERSION_WITH_LEADERS:
            tell_leaders(self.ctx, response, self._rows())
        return response

    def _rows(self) -> Iterator[tuple[str | UUID, int, ProduceResponse.Partition]]:
        """All of the answer, each with the topic as the client names it, and the partition."""
        by_id = self.version >= 13
        return (
            (topic.topic_id if by_id else topic.name, row.index, row)
            for topic in self.answers
            for row in topic.partition_responses
        )

    def _resolve(self) -> None:
        """Give the answer to what was refused, as soon as it is known who leads that instead."""
        self.awaiting_leader = first_awaiting_leader(self.ctx, self._rows())
        if not self._has_heard():
            self.node.replication.leader_change_waiters.wait(self._has_heard, self._resolve_now)

    def _has_heard(self) -> bool:
        """Of many partitions only the first is looked at: the others were given up with it."""
        if self.awaiting_leader is not None and awaits_new_leader(self.ctx, self.awaiting_leader):
            return False
        self._resolve_now()
        return True

    def _resolve_now(self) -> None:
        self.pending.resolve(self._finished())

    async def _prepare_and_append(
        self, topic: ProduceRequest.Topic, partition: ProduceRequest.Partition
    ) -> ProduceResponse.Partition:
        records = partition.records
        try:
            rules = self._admit(topic, partition.index).log.config.produce_rules
            if self._is_old_format(records):
                converted = await self._in_thread(partial(Conversion, records, rules))
                if converted is None:
                    return ProduceResponse.Partition(index=partition.index, base_offset=-1)
                records = memoryview(converted)
            batch, header = await self._validated(records, rules)
            replica = self._admit(topic, partition.index)
            if self.transaction is not None:
                self.transaction.check(replica, batch)
            return self._append(topic, replica, batch, header)
        except KafkaError as error:
            self.begun = None  # it may be this batch, and the next one must not be taken for it
            return self._refuse(topic, partition, error)

    async def _validated(
        self, records: memoryview | None, rules: ProduceRules
    ) -> tuple[memoryview, BatchHeader]:
        """The batch as it is stored, checked in turns with other clients or in another thread."""
        begin = partial(LogValidator, records, self.version, self.now_ms, rules)
        validator, self.begun = self.begun or begin(), None
        if validator.is_compressed:
            del validator  # the thread begins from scratch, once no other heavy work is in progress
            return await self._in_thread(begin)
        while not validator.step():
            await self.ctx.time_slice.pause()
        return validator.result()

    async def _in_thread(self, begin: Callable[[], Steps[Result]]) -> Result:
        """Do heavy work of this client in turns with that of others, and charge its time."""
        with self.ctx.heavy_client() as client:
            return await self.node.heavy_work.run_in_steps(begin, client)

    def _append_unless_heavy(
        self, topic: ProduceRequest.Topic, partition: ProduceRequest.Partition
    ) -> ProduceResponse.Partition | None:
        """The row of the answer; None, and nothing was done, for a batch that takes heavy work."""
        records = partition.records
        try:
            replica = self._admit(topic, partition.index)
            if self.transaction is not None:
                self.transaction.check(replica, records)  # before its records, as in Kafka
            rules = replica.log.config.produce_rules
            has_turn = self.effort <= EFFORT_AT_ONCE
            if has_turn and rules.codec is None and self.version >= FIRST_VERSION_OF_BATCHES:
                stored = validated_at_once(records, self.version, self.now_ms, rules)
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
                        self.begun = validator
                        return None
            finally:
                self.effort += validator.effort  # of a batch that is refused as well
            batch, header = validator.result()
            return self._append(topic, replica, batch, header)
        except KafkaError as error:
            return self._refuse(topic, partition, error)

    def _is_heavy(self, records: memoryview | None, rules: ProduceRules) -> bool:
        """Return True if a batch takes too long for the event loop to begin with it."""
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
        index, refused = replica.index, self.ctx.peer.rejected_batches
        if refused and header.producer_id >= 0:
            producers = replica.log.producers
            refused.check(_key(topic), index, header, producers, trio.current_time())
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
        # As `_reached`, without a call for each batch.
        if appended.last_offset >= (
            replica.log.high_watermark if all_in_sync else replica.durable_end
        ):
            self.waiting.append((replica, appended.last_offset + 1, row))
        return row

    def _check_expired_lease_acks(self) -> None:
        """Raise KafkaError unless a leader that may have lost leadership acknowledges alone."""
        if not self.node.config.expired_lease_acks_enable:
            raise _unsure()

    def _reached(self, replica: Replica) -> int:
        """The offset below which batches are acknowledged."""
        return replica.log.high_watermark if self.acks == ALL_IN_SYNC else replica.durable_end

    def _admit(self, topic: ProduceRequest.Topic, index: int) -> Replica:
        """The replica that the request may append to."""
        if self.refusal is not None:
            raise self.refusal
        by_id = self.version >= 13
        if not by_id:  # who may not know whether there is such a topic is not told
            self.ctx.require_topic(AclOperation.WRITE, topic.name)
        found = find_topic(self.node.cluster, topic.name, topic.topic_id, by_id=by_id)
        if by_id:
            self.ctx.require_topic(AclOperation.WRITE, found.name)
        if found.is_internal:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, "clients do not write to internal topics"
            )
        return self.node.partitions.replica(found, index)

    def _refuse(
        self, topic: ProduceRequest.Topic, partition: ProduceRequest.Partition, error: KafkaError
    ) -> ProduceResponse.Partition:
        self.failed = True
        self._note_refused(topic, partition, error)
        cluster = self.node.cluster
        found = cluster.topics.get(topic.name) or cluster.topics_by_id.get(topic.topic_id)
        name = NO_TOPIC if found is None else found.name
        self.node.request_metrics.refuses(ApiKey.PRODUCE, name, error.code)
        return _refusal(partition.index, error)

    def _note_refused(
        self, topic: ProduceRequest.Topic, partition: ProduceRequest.Partition, error: KafkaError
    ) -> None:
        """Remember a rejected batch, so that later batches of its producer do not overtake it."""
        peer = self.ctx.peer
        if peer.rejected_batches is None:
            peer.rejected_batches = RejectedBatches()
        peer.rejected_batches.note(
            _key(topic), partition.index, partition.records, error.code, trio.current_time()
        )

    def _begin_waiting(self) -> Pending[ProduceResponse]:
        """The answer to come when every append is committed, or at the request's timeout."""
        timeout_seconds = max(self.timeout_ms, 0) / 1000
        self.topics = []  # its records are in the log; a slow disk need not keep them in memory
        self.left = len(self.waiting)
        self.pending = Pending(
            deadline=trio.current_time() + timeout_seconds, on_timeout=self._expire
        )
        return self.pending

    def _wait_for(self, replica: Replica, end_offset: int, row: ProduceResponse.Partition) -> None:
        if self._reached(replica) >= end_offset:
            self._settle(replica, row, True)  # it was committed while others had their turn
        else:
            waits = replica.commits if self.acks == ALL_IN_SYNC else replica.writes
            waits.add(end_offset, partial(self._settle, replica, row))

    def _settle(self, replica: Replica, row: ProduceResponse.Partition, committed: bool) -> None:
        """An append is committed, or never will be."""
        self.left -= 1
        if not committed:
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
        self.node.request_metrics.refuses(ApiKey.PRODUCE, replica.topic.name, code)

    def _expire(self) -> ProduceResponse:
        for replica, end_offset, row in self.waiting:
            if self._reached(replica) < end_offset and not row.error_code:
                all_in_sync = self.acks == ALL_IN_SYNC
                late = replica.why_late() if all_in_sync else ErrorCode.REQUEST_TIMED_OUT
                self._fail(replica, row, late)
        return self._finished()


@lru_cache(maxsize=STENCILS_MAX)
def _stencil(version: int, name: str, topic_id: int) -> Stencil:
    """Return the response to one appended batch, in which all numbers of its row are filled in.

    `topic_id` is the number of the ID, whose hash is faster than that of the ID.
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
    return Stencil(
        response, version, ROW_LAYOUT, index, ErrorCode.NONE, base_offset, time_ms, log_start
    )


def names_transaction(request: ProduceRequest) -> bool:
    for topic in request.topic_data:
        for partition in topic.partition_data:
            if claims_transaction(partition.records):
                return True
    return False


def _key(topic: ProduceRequest.Topic) -> str | UUID:
    """The topic as the client names it."""
    return topic.name or topic.topic_id


def _unsure() -> KafkaError:
    """Followers of the next leader would truncate the batch; acks=all waits for them."""
    return KafkaError(
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        "this node may have lost leadership: it accepts acks=all only",
    )


def _is_unsure(node: Node) -> bool:
    """Whether others may lead what this node leads, and its owner wants them to have all of it."""
    return node.membership.may_be_missed and not node.config.expired_lease_acks_enable


def _refusal(index: int, error: KafkaError) -> ProduceResponse.Partition:
    record_errors = []
    if isinstance(error, RecordsRefusedError):
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
