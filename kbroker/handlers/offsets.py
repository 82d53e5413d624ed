"""OffsetCommit, TxnOffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeAlias

from kbroker.admission import Writer
from kbroker.context import Context
from kbroker.coordinator.shapes import (
    commit_refused,
    fetch_refused,
    fetch_response,
    groups_to_fetch,
    transaction_error,
    transaction_refused,
)
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
from kbroker.registry import handles
from kbroker.replica import Replica
from kbroker.shards import ShardPending

from .transactional_batches import RETRY_ELSEWHERE, Standing

FIRST_VERSION_THAT_KNOWS_ABORTABLE, FIRST_VERSION_THAT_JOINS = 4, 5
"""Of TxnOffsetCommit (KIP-890)."""

TransactionalAnswer: TypeAlias = TxnOffsetCommitResponse | ShardPending | None


@handles(ApiKey.OFFSET_COMMIT, versions="0-10")
def offset_commit(
    ctx: Context, request: OffsetCommitRequest
) -> OffsetCommitResponse | ShardPending | None:
    """Behaviour: answers when the offsets are as durable as any acknowledged record.

    Versions: 10 names topics by id.
    """
    groups = ctx.node.groups
    try:
        shard = groups.shard(request.group_id)
    except KafkaError as error:
        return commit_refused(request, error.code)
    return groups.run(shard, shard.coordinator.commit_offsets(request, groups.now(), ctx.version))


@handles(ApiKey.TXN_OFFSET_COMMIT, versions="0-5")
def txn_offset_commit(
    ctx: Context, request: TxnOffsetCommitRequest
) -> TransactionalAnswer | Coroutine[Any, Any, TransactionalAnswer]:
    """Behaviour: stores offsets that count when the producer's transaction is committed.

    Versions: 3 names the member of the group that commits, which fences members (KIP-447). 5 makes
    the offsets a part of the transaction; before, AddOffsetsToTxn has to be sent first (KIP-890).

    Differs from Kafka: the id of the topic is stored with the offset, as OffsetCommit does.
    """
    if not request.group_id:
        return _commit_in_transaction(ctx, request, ErrorCode.INVALID_GROUP_ID)
    try:
        replica = ctx.node.groups.shard(request.group_id).replica
    except KafkaError as error:
        return transaction_refused(request, error.code)
    producer = request.producer_id, request.producer_epoch
    if not _names_any(ctx, request) or replica.log.producers.has_open_transaction(*producer):
        return _commit_in_transaction(ctx, request)
    return _ask_and_commit(ctx, request, replica)


def _names_any(ctx: Context, request: TxnOffsetCommitRequest) -> bool:
    """Whether there is any of the partitions; without one the transaction does not matter."""
    return any(
        ctx.node.cluster.partition(topic.name, row.partition_index) is not None
        for topic in request.topics
        for row in topic.partitions
    )


async def _ask_and_commit(
    ctx: Context, request: TxnOffsetCommitRequest, replica: Replica
) -> TransactionalAnswer:
    """Append when the transaction has the partition, or has taken it in, and did not end since."""
    partition = (replica.topic.name, replica.index)
    writer = Writer(request.transactional_id, request.producer_id, request.producer_epoch)
    asked = Standing.of(replica, writer.producer_id)
    codes = await ctx.node.transactions.admit(
        writer, [partition], adds=ctx.version >= FIRST_VERSION_THAT_JOINS
    )
    code = codes[partition]
    if not code and asked != Standing.of(replica, writer.producer_id):
        code = ErrorCode.NOT_COORDINATOR  # it may have ended: to be asked again
    return _commit_in_transaction(ctx, request, _as_told(code, ctx.version))


def _as_told(code: ErrorCode, version: int) -> ErrorCode:
    if code in RETRY_ELSEWHERE:
        # It is the transaction that has to be asked again: the group's coordinator is right here.
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return transaction_error(code, knows_abortable=version >= FIRST_VERSION_THAT_KNOWS_ABORTABLE)


def _commit_in_transaction(
    ctx: Context, request: TxnOffsetCommitRequest, refusal: ErrorCode = ErrorCode.NONE
) -> TransactionalAnswer:
    groups = ctx.node.groups
    try:
        shard = groups.shard(request.group_id)
    except KafkaError as error:
        return transaction_refused(request, error.code)
    result = shard.coordinator.commit_transactional_offsets(request, groups.now(), refusal)
    return groups.run(shard, result)


@handles(ApiKey.OFFSET_FETCH, versions="0-10")
def offset_fetch(
    ctx: Context, request: OffsetFetchRequest
) -> OffsetFetchResponse | Coroutine[Any, Any, OffsetFetchResponse]:
    """Behaviour: committed offsets; -1 where there is none.

    Versions: 7 may insist on stable offsets: UNSTABLE_OFFSET_COMMIT while a transaction may still
    commit another one (KIP-447). 8 asks for several groups, 10 names topics by id.
    """
    rows: list[OffsetFetchResponse.Group] = []
    waits: dict[int, tuple[ShardPending, OffsetFetchRequest.Group]] = {}
    groups = ctx.node.groups
    for group in groups_to_fetch(request, ctx.version):
        try:
            shard = groups.shard(group.group_id)
        except KafkaError as error:
            rows.append(fetch_refused(group, error.code, ctx.version))
            continue
        found = shard.coordinator.fetch_offsets(
            group, ctx.version, require_stable=request.require_stable
        )
        row = groups.release(shard, found)
        if isinstance(row, ShardPending):
            waits[len(rows)] = row, group
            row = OffsetFetchResponse.Group(group_id=group.group_id)
        assert row is not None
        rows.append(row)
    if waits:
        return _when_all_committed(rows, waits, ctx.version)
    return fetch_response(rows, ctx.version)


async def _when_all_committed(
    rows: list[OffsetFetchResponse.Group],
    waits: dict[int, tuple[ShardPending, OffsetFetchRequest.Group]],
    version: int,
) -> OffsetFetchResponse:
    """Fill in the groups whose latest commits were not durable yet."""
    for position, (pending, group) in waits.items():
        row = await pending.wait()
        if row is None or row.error_code:
            row = fetch_refused(group, ErrorCode.NOT_COORDINATOR, version)
        rows[position] = row
    return fetch_response(rows, version)


@handles(ApiKey.OFFSET_DELETE, versions="0")
def offset_delete(
    ctx: Context, request: OffsetDeleteRequest
) -> OffsetDeleteResponse | ShardPending | None:
    """Behaviour: offsets of topics that no member is subscribed to go (KIP-496)."""
    groups = ctx.node.groups
    try:
        shard = groups.shard(request.group_id)
    except KafkaError as error:
        return OffsetDeleteResponse(error_code=error.code)
    return groups.run(shard, shard.coordinator.delete_offsets(request))
