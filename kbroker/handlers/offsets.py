"""OffsetCommit, TxnOffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from functools import partial
from typing import Any, TypeAlias, TypeVar

from kbroker.coordinator.common.version_adapters import (
    commit_error_response,
    fetch_error_row,
    fetch_response,
    groups_to_fetch,
    transaction_error,
    txn_commit_error_response,
)
from kbroker.coordinator_runtime.add_partitions_to_txn import Writer
from kbroker.coordinator_runtime.partition_writer import LeaderReplica
from kbroker.coordinator_runtime.shards import ShardPending, outcome_of
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kbroker.protocol.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from kbroker.protocol.schema import ZERO_UUID
from kbroker.runtime.time_slices import Later
from kbroker.security.acls import AclOperation

from .context import Context
from .permitted import is_permitted, name_of, split_permitted
from .registry import handles
from .steps import append_rows, is_long, last_rows, steps_of, with_topics
from .transactional_batches import UNEXPECTED_ERRORS, PartitionSnapshot

INVALID_SIZE = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
# First versions of TxnOffsetCommit that know TRANSACTION_ABORTABLE, and that add the partition of
# the offsets to the transaction (KIP-890).
FIRST_VERSION_THAT_KNOWS_ABORTABLE, FIRST_VERSION_THAT_ADDS_PARTITION = 4, 5

# Number of groups of an OffsetFetch between two checks of the time slice.
GROUPS_AT_ONCE = 16
# Minimum number of bytes of an offset's record besides its names and its metadata.
ROW_BYTES = 50

C = TypeVar("C", OffsetCommitRequest, TxnOffsetCommitRequest)
CommitAnswer: TypeAlias = OffsetCommitResponse | ShardPending | None
TransactionalAnswer: TypeAlias = TxnOffsetCommitResponse | ShardPending | None


@handles(ApiKey.OFFSET_COMMIT, versions="0-10")
def offset_commit(ctx: Context, request: OffsetCommitRequest) -> CommitAnswer | Later[CommitAnswer]:
    """Commit offsets, and respond when they are as durable as an acks=all record.

    Versions: 10 names topics by ID.

    Differs from Kafka: more than 200 offsets are stored in several batches; then a partition that
    is named several times has one row. Requests that do not fit one batch of Kafka get
    INVALID_COMMIT_OFFSET_SIZE, as in Kafka.
    """
    try:
        ctx.require_group(AclOperation.READ, request.group_id)
    except KafkaError as error:
        return commit_error_response(request, error.code)
    if ctx.node.authorizer is not None:
        return _commit_permitted(ctx, request)
    return _commit_long(ctx, request) if is_long(request) else _commit(ctx, request)


async def _commit_permitted(ctx: Context, request: OffsetCommitRequest) -> CommitAnswer:
    """Commit the offsets of the topics that the client may read."""
    permitted, denied = await split_permitted(ctx, AclOperation.READ, request.topics)
    if not denied and not is_long(request):
        return _commit(ctx, request)
    answer = commit_error_response(
        with_topics(request, denied), ErrorCode.TOPIC_AUTHORIZATION_FAILED
    )
    if permitted:
        answer.topics += (await _commit_long(ctx, with_topics(request, permitted))).topics
    return answer


async def _commit_long(ctx: Context, request: OffsetCommitRequest) -> OffsetCommitResponse:
    rows = await _commit_in_steps(ctx, request, partial(_commit, ctx), commit_error_response)
    return OffsetCommitResponse(topics=rows)


def _commit(ctx: Context, request: OffsetCommitRequest) -> CommitAnswer:
    groups = ctx.node.groups
    try:
        shard = groups.shard(request.group_id)
    except KafkaError as error:
        return commit_error_response(request, error.code)
    return groups.run(shard, shard.coordinator.offsets.commit(request, groups.now(), ctx.version))


async def _commit_in_steps(
    ctx: Context,
    request: C,
    commit: Callable[[C], Any],
    reject: Callable[[C, ErrorCode], Any],
) -> list[Any]:
    """Commit the offsets of a long request in several batches, and return the response rows.

    Args:
        ctx: Context of the request.
        request: The request.
        commit: Commits the offsets of one step.
        reject: Returns a response that has an error for each row.
    """
    topics = await last_rows(ctx.time_slice, request.topics)
    fits = await _fits_a_batch(ctx, request.group_id, topics)
    outcomes: list[Any] = []
    for step in steps_of(request, topics):
        await ctx.time_slice.pause()
        outcome = commit(step) if fits else reject(step, INVALID_SIZE)
        outcomes.append(await outcome if isinstance(outcome, Awaitable) else outcome)
    rows: list[Any] = []
    async for outcome in ctx.time_slice.each(outcomes):
        answer = await outcome_of(outcome)
        assert answer is not None  # rows have an error if the coordinator lost its partition
        append_rows(rows, answer.topics)
    return rows


async def _fits_a_batch(ctx: Context, group_id: str, topics: Iterable[Any]) -> bool:
    """Return True if one batch could contain all offsets of the request."""
    cluster = ctx.node.cluster
    try:
        rules = ctx.node.groups.shard(group_id).replica.log.config.produce_rules
    except KafkaError:
        return True  # this node is not the coordinator: nothing is stored
    size = 0
    async for topic in ctx.time_slice.each(topics):
        topic_id = getattr(topic, "topic_id", ZERO_UUID)
        known = cluster.topics.get(topic.name) or cluster.topics_by_id.get(topic_id)
        async for row in ctx.time_slice.each(topic.partitions):
            if known is not None and 0 <= row.partition_index < len(known.partitions):
                metadata = row.committed_metadata or ""
                size += ROW_BYTES + len(group_id) + len(known.name) + len(metadata)
    return size <= rules.max_message_bytes


@handles(ApiKey.TXN_OFFSET_COMMIT, versions="0-6")
def txn_offset_commit(
    ctx: Context, request: TxnOffsetCommitRequest
) -> TransactionalAnswer | Later[TransactionalAnswer]:
    """Store offsets that are committed with the producer's transaction.

    Versions: 3 names the group member, which fences zombie members (KIP-447). 5 adds the offsets
    partition to the transaction; older clients send AddOffsetsToTxn first (KIP-890). 6 names topics
    by ID (KIP-1319).

    Differs from Kafka: topic IDs are stored with the offsets. Long requests are split as in
    OffsetCommit.
    """
    try:
        ctx.require_transaction(AclOperation.WRITE, request.transactional_id)
        ctx.require_group(AclOperation.READ, request.group_id)
    except KafkaError as error:
        return txn_commit_error_response(request, error.code)
    if ctx.node.authorizer is not None:
        return _commit_permitted_in_transaction(ctx, request)
    if is_long(request):
        return _commit_long_in_transaction(ctx, request)
    return _admit_and_commit(ctx, request)


async def _commit_permitted_in_transaction(
    ctx: Context, request: TxnOffsetCommitRequest
) -> TransactionalAnswer:
    """Store the offsets of the topics that the client may read."""
    permitted, denied = await split_permitted(ctx, AclOperation.READ, request.topics)
    if not denied and not is_long(request):
        answer = _admit_and_commit(ctx, request)
        return await answer if isinstance(answer, Coroutine) else answer
    rejected = txn_commit_error_response(
        with_topics(request, denied), ErrorCode.TOPIC_AUTHORIZATION_FAILED
    )
    if permitted:
        done = await _commit_long_in_transaction(ctx, with_topics(request, permitted))
        rejected.topics += done.topics
    return rejected


async def _commit_long_in_transaction(
    ctx: Context, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    commit = partial(_admit_and_commit, ctx)
    rows = await _commit_in_steps(ctx, request, commit, txn_commit_error_response)
    return TxnOffsetCommitResponse(topics=rows)


def _admit_and_commit(
    ctx: Context, request: TxnOffsetCommitRequest
) -> TransactionalAnswer | Later[TransactionalAnswer]:
    if not request.group_id:
        return _commit_in_transaction(ctx, request, ErrorCode.INVALID_GROUP_ID)
    try:
        replica = ctx.node.groups.shard(request.group_id).replica
    except KafkaError as error:
        return txn_commit_error_response(request, error.code)
    producer = request.producer_id, request.producer_epoch
    if not _any_partition_exists(ctx, request) or replica.log.producers.has_open_transaction(
        *producer
    ):
        return _commit_in_transaction(ctx, request)
    return _verify_and_commit(ctx, request, replica)


def _any_partition_exists(ctx: Context, request: TxnOffsetCommitRequest) -> bool:
    """Return True if one of the partitions exists; otherwise the transaction is irrelevant."""
    return any(
        ctx.node.cluster.partition(name_of(ctx, topic), row.partition_index) is not None
        for topic in request.topics
        for row in topic.partitions
    )


async def _verify_and_commit(
    ctx: Context, request: TxnOffsetCommitRequest, replica: LeaderReplica
) -> TransactionalAnswer:
    """Verify or add the partition of the transaction, then store the offsets."""
    partition = (replica.topic.name, replica.index)
    writer = Writer(request.transactional_id, request.producer_id, request.producer_epoch)
    before = PartitionSnapshot.of(replica, writer.producer_id)
    codes = await ctx.node.transactions.add_or_verify_transaction(
        writer, [partition], adds=ctx.version >= FIRST_VERSION_THAT_ADDS_PARTITION
    )
    code = codes[partition]
    if not code and before != PartitionSnapshot.of(replica, writer.producer_id):
        code = ErrorCode.NOT_COORDINATOR  # the transaction may have ended: let the client retry
    return _commit_in_transaction(ctx, request, _adapt_error(code, ctx.version))


def _adapt_error(code: ErrorCode, version: int) -> ErrorCode:
    if code in UNEXPECTED_ERRORS:
        # Retriable without FindCoordinator: the group coordinator is this node, and only the
        # transaction coordinator failed.
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return transaction_error(code, knows_abortable=version >= FIRST_VERSION_THAT_KNOWS_ABORTABLE)


def _commit_in_transaction(
    ctx: Context, request: TxnOffsetCommitRequest, code: ErrorCode = ErrorCode.NONE
) -> TransactionalAnswer:
    groups = ctx.node.groups
    try:
        shard = groups.shard(request.group_id)
    except KafkaError as error:
        return txn_commit_error_response(request, error.code)
    result = shard.coordinator.offsets.commit_in_transaction(
        request, groups.now(), ctx.version, code
    )
    return groups.run(shard, result)


@handles(ApiKey.OFFSET_FETCH, versions="0-10", read_only=True)
def offset_fetch(
    ctx: Context, request: OffsetFetchRequest
) -> OffsetFetchResponse | Later[OffsetFetchResponse]:
    """Return committed offsets, or -1 for partitions without a committed offset.

    Versions: 7 can require stable offsets, with UNSTABLE_OFFSET_COMMIT while a transaction has
    pending offsets (KIP-447). 8 has several groups, 10 names topics by ID.

    Differs from Kafka: a group that is named several times has one row with all its partitions.
    """
    work = _OffsetFetchOperation(ctx, request)
    unfinished = ctx.time_slice.run(work.read())
    if unfinished is not None or work.waits:
        return work.finish(unfinished)
    return work.response()


class _OffsetFetchOperation:
    """Execution of one OffsetFetch.

    Attributes:
        waits: Groups whose rows wait for uncommitted writes, by the index of the row.
    """

    __slots__ = ("_ctx", "_request", "_rows", "waits")

    def __init__(self, ctx: Context, request: OffsetFetchRequest) -> None:
        self._ctx = ctx
        self._request = request
        self._rows: list[OffsetFetchResponse.Group] = []
        self.waits: dict[int, tuple[ShardPending, OffsetFetchRequest.Group]] = {}

    def response(self) -> OffsetFetchResponse:
        return fetch_response(self._rows, self._ctx.version)

    def read(self) -> Generator[None, None, None]:
        """Read the offsets of all groups in time slices."""
        groups = groups_to_fetch(self._request, self._ctx.version)
        if len(groups) > 1:
            groups = yield from _merge_groups(groups)
        for count, group in enumerate(groups, 1):
            if not count % GROUPS_AT_ONCE:
                yield
            yield from self._read_group(group)

    def _read_group(self, group: OffsetFetchRequest.Group) -> Generator[None, None, None]:
        groups, version = self._ctx.node.groups, self._ctx.version
        try:
            self._ctx.require_group(AclOperation.DESCRIBE, group.group_id)
            denied = yield from self._remove_denied(group)
            shard = groups.shard(group.group_id)
            found = yield from shard.coordinator.offsets.fetch(
                group, version, require_stable=self._request.require_stable
            )
            if not groups.serves(shard):
                raise KafkaError(ErrorCode.NOT_COORDINATOR)
        except KafkaError as error:
            self._rows.append(fetch_error_row(group, error.code, version))
            return
        yield from self._remove_hidden(group, found)
        found.topics += denied
        row = groups.release(shard, found)
        if isinstance(row, ShardPending):
            self.waits[len(self._rows)] = row, group
            row = OffsetFetchResponse.Group(group_id=group.group_id)
        assert row is not None
        self._rows.append(row)

    def _remove_denied(
        self, group: OffsetFetchRequest.Group
    ) -> Generator[None, None, list[OffsetFetchResponse.Topic]]:
        """Remove the topics that the client may not describe, and return their error rows."""
        if self._ctx.node.authorizer is None or group.topics is None:
            return []
        permitted, denied = [], []
        for topic in group.topics:
            if is_permitted(self._ctx, AclOperation.DESCRIBE, topic):
                permitted.append(topic)
            else:
                denied.append(_denied_row(topic))
            yield
        group.topics = permitted
        return denied

    def _remove_hidden(
        self, group: OffsetFetchRequest.Group, found: OffsetFetchResponse.Group
    ) -> Generator[None, None, None]:
        """If the request selects all topics, keep those that the client may describe."""
        if self._ctx.node.authorizer is None or group.topics is not None:
            return
        visible = []
        for topic in found.topics:
            if self._ctx.may_list_topic(name_of(self._ctx, topic)):
                visible.append(topic)
            yield
        found.topics = visible

    async def finish(self, reading: Later[None] | None) -> OffsetFetchResponse:
        """Finish reading, wait for pending writes, and return the response."""
        if reading is not None:
            await reading
        for position, (pending, group) in self.waits.items():
            row = await pending.wait()
            if row is None or row.error_code:
                row = fetch_error_row(group, ErrorCode.NOT_COORDINATOR, self._ctx.version)
            self._rows[position] = row
        return self.response()


def _denied_row(topic: OffsetFetchRequest.Topic) -> OffsetFetchResponse.Topic:
    cls = OffsetFetchResponse
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return cls.Topic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            cls.Partition(
                partition_index=index,
                committed_offset=-1,
                committed_leader_epoch=-1,
                metadata="",
                error_code=code,
            )
            for index in topic.partition_indexes
        ],
    )


def _merge_groups(
    groups: Iterable[OffsetFetchRequest.Group],
) -> Generator[None, None, list[OffsetFetchRequest.Group]]:
    """Merge the rows of groups that are named several times. Null selects all topics."""
    asked: dict[str, OffsetFetchRequest.Group] = {}
    for group in groups:
        known = asked.setdefault(group.group_id, group)
        if known is not group:
            if known.topics is None or group.topics is None:
                known.topics = None
            else:
                known.topics += group.topics
        yield
    return list(asked.values())


@handles(ApiKey.OFFSET_DELETE, versions="0")
def offset_delete(
    ctx: Context, request: OffsetDeleteRequest
) -> OffsetDeleteResponse | ShardPending | Later[OffsetDeleteResponse] | None:
    """Delete committed offsets of topics that no member is subscribed to (KIP-496)."""
    try:
        ctx.require_group(AclOperation.DELETE, request.group_id)
    except KafkaError as error:
        return OffsetDeleteResponse(error_code=error.code)
    if ctx.node.authorizer is not None:
        return _delete_permitted(ctx, request)
    return _delete_long(ctx, request) if is_long(request) else _delete(ctx, request)


async def _delete_permitted(ctx: Context, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    """Delete the offsets of the topics that the client may read. Report group errors first."""
    cls = OffsetDeleteResponse
    permitted, denied = await split_permitted(ctx, AclOperation.READ, request.topics)
    whole = await _delete_long(ctx, with_topics(request, permitted))
    if whole.error_code:
        return whole
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    whole.topics += [
        cls.Topic(
            name=topic.name,
            partitions=[
                cls.Partition(partition_index=row.partition_index, error_code=code)
                for row in topic.partitions
            ],
        )
        for topic in denied
    ]
    return whole


def _delete(
    ctx: Context, request: OffsetDeleteRequest
) -> OffsetDeleteResponse | ShardPending | None:
    groups = ctx.node.groups
    try:
        shard = groups.shard(request.group_id)
    except KafkaError as error:
        return OffsetDeleteResponse(error_code=error.code)
    return groups.run(shard, shard.coordinator.offsets.delete(request))


async def _delete_long(ctx: Context, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    whole = OffsetDeleteResponse()
    steps: Iterable[OffsetDeleteRequest] = [request]
    if request.topics:
        steps = steps_of(request, await last_rows(ctx.time_slice, request.topics))
    for step in steps:
        await ctx.time_slice.pause()
        answer: OffsetDeleteResponse | None = await outcome_of(_delete(ctx, step))
        if answer is None or answer.error_code:
            return answer or OffsetDeleteResponse(error_code=ErrorCode.NOT_COORDINATOR)
        append_rows(whole.topics, answer.topics)
    return whole
