"""Share coordinator APIs, which brokers send to each other (KIP-932)."""

from __future__ import annotations

from typing import Any, TypeVar
from uuid import UUID

from kbroker.coordinator import ShareCoordinator
from kbroker.coordinator_runtime.share_coordinator import Operation
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.share_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
)
from kbroker.protocol.share_state_log import SharePartitionKey
from kbroker.security.acls import AclOperation

from .context import Context
from .groups import Part, collect_rows
from .registry import handles

A = TypeVar("A")


@handles(ApiKey.INITIALIZE_SHARE_GROUP_STATE, versions="0")
async def initialize_share_group_state(
    ctx: Context, request: InitializeShareGroupStateRequest
) -> InitializeShareGroupStateResponse:
    """Initialize the state of share partitions; see `ShareCoordinator.initialize`."""
    response = InitializeShareGroupStateResponse()
    return await _answer(ctx, request, response, ShareCoordinator.initialize)


@handles(ApiKey.READ_SHARE_GROUP_STATE, versions="0")
async def read_share_group_state(
    ctx: Context, request: ReadShareGroupStateRequest
) -> ReadShareGroupStateResponse:
    """Return the state of share partitions to their leader, and fence earlier leaders."""
    response = ReadShareGroupStateResponse()
    return await _answer(ctx, request, response, ShareCoordinator.read)


@handles(ApiKey.WRITE_SHARE_GROUP_STATE, versions="0-1")
async def write_share_group_state(
    ctx: Context, request: WriteShareGroupStateRequest
) -> WriteShareGroupStateResponse:
    """Store changes of the state of share partitions.

    Versions: 1 has the number of completely delivered records (KIP-1226).

    Differs from Kafka: more than 10,000 state batches of one share partition get INVALID_REQUEST.
    """
    response = WriteShareGroupStateResponse()
    return await _answer(ctx, request, response, ShareCoordinator.write)


@handles(ApiKey.DELETE_SHARE_GROUP_STATE, versions="0")
async def delete_share_group_state(
    ctx: Context, request: DeleteShareGroupStateRequest
) -> DeleteShareGroupStateResponse:
    """Delete the state of share partitions."""
    response = DeleteShareGroupStateResponse()
    return await _answer(ctx, request, response, ShareCoordinator.delete)


@handles(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, versions="0-1", read_only=True)
async def read_share_group_state_summary(
    ctx: Context, request: ReadShareGroupStateSummaryRequest
) -> ReadShareGroupStateSummaryResponse:
    """Return the start offsets of share partitions.

    Versions: 1 has the number of completely delivered records (KIP-1226).
    """
    response = ReadShareGroupStateSummaryResponse()
    return await _answer(ctx, request, response, ShareCoordinator.summary)


async def _answer(ctx: Context, request: Any, response: A, operation: Operation) -> A:
    """Perform an operation on each share partition of a request, and add the rows to the response.

    As in Kafka, the last of several rows for a share partition counts. As in Kafka, the response
    has no rows if the group ID or the partitions of a topic are missing.
    """
    if not request.group_id or not all(topic.partitions for topic in request.topics):
        return response
    try:
        ctx.require_cluster(AclOperation.CLUSTER_ACTION)
        denied = None
    except KafkaError as error:
        denied = error
    asked: dict[UUID, dict[int, Any]] = {}
    async for topic in ctx.time_slice.each(request.topics):
        rows = asked.setdefault(topic.topic_id, {})
        async for row in ctx.time_slice.each(topic.partitions):
            rows[row.partition] = row
    answer: Any = response
    cls: Any = type(response)
    parts: dict[UUID, list[Part[Any]]] = {}
    async for topic_id, rows in ctx.time_slice.each(asked.items()):
        parts[topic_id] = [
            _row(
                ctx,
                SharePartitionKey(request.group_id, topic_id, index),
                row,
                cls.Partition(partition=index),
                operation,
                denied,
            )
            async for index, row in ctx.time_slice.each(rows.items())
        ]
    async for topic_id, some in ctx.time_slice.each(parts.items()):
        answer.results.append(
            cls.Topic(topic_id=topic_id, partitions=await collect_rows(ctx.time_slice, some))
        )
    return response


def _row(
    ctx: Context,
    share: SharePartitionKey,
    asked: Any,
    lost: Any,
    operation: Operation,
    denied: KafkaError | None,
) -> Part[Any]:
    """Perform an operation on one share partition, and return its row; see `Part`."""
    try:
        if denied is not None:
            raise denied
        outcome = ctx.node.share.states.perform(operation, share, asked)
    except KafkaError as error:
        lost.error_code, lost.error_message = error.code, error.message
        return None, [lost]
    lost.error_code = ErrorCode.NOT_COORDINATOR
    return outcome, [lost]
