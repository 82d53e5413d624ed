"""Where share groups keep their state: what brokers ask each other for it (KIP-932)."""

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
from .groups import Part, together
from .registry import handles

A = TypeVar("A")


@handles(ApiKey.INITIALIZE_SHARE_GROUP_STATE, versions="0")
async def initialize_share_group_state(
    ctx: Context, request: InitializeShareGroupStateRequest
) -> InitializeShareGroupStateResponse:
    """Behaviour: share partitions get a state, or begin a new life; see
    `ShareCoordinator.initialize`."""
    response = InitializeShareGroupStateResponse()
    return await _answer(ctx, request, response, ShareCoordinator.initialize)


@handles(ApiKey.READ_SHARE_GROUP_STATE, versions="0")
async def read_share_group_state(
    ctx: Context, request: ReadShareGroupStateRequest
) -> ReadShareGroupStateResponse:
    """Behaviour: the state of share partitions, for their leaders; earlier leaders are fenced."""
    response = ReadShareGroupStateResponse()
    return await _answer(ctx, request, response, ShareCoordinator.read)


@handles(ApiKey.WRITE_SHARE_GROUP_STATE, versions="0-1")
async def write_share_group_state(
    ctx: Context, request: WriteShareGroupStateRequest
) -> WriteShareGroupStateResponse:
    """Behaviour: what changed in share partitions is stored.

    Versions: 1 says how many records are done with (KIP-1226).

    Differs from Kafka: INVALID_REQUEST for more than ten thousand ranges of one share partition.
    """
    response = WriteShareGroupStateResponse()
    return await _answer(ctx, request, response, ShareCoordinator.write)


@handles(ApiKey.DELETE_SHARE_GROUP_STATE, versions="0")
async def delete_share_group_state(
    ctx: Context, request: DeleteShareGroupStateRequest
) -> DeleteShareGroupStateResponse:
    """Behaviour: the state of share partitions goes."""
    response = DeleteShareGroupStateResponse()
    return await _answer(ctx, request, response, ShareCoordinator.delete)


@handles(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, versions="0-1", only_looks=True)
async def read_share_group_state_summary(
    ctx: Context, request: ReadShareGroupStateSummaryRequest
) -> ReadShareGroupStateSummaryResponse:
    """Behaviour: where share partitions begin.

    Versions: 1 says how many records are done with (KIP-1226).
    """
    response = ReadShareGroupStateSummaryResponse()
    return await _answer(ctx, request, response, ShareCoordinator.summary)


async def _answer(ctx: Context, request: Any, response: A, operation: Operation) -> A:
    """Do `operation` with each share partition of a request, and fill the answer with the rows.

    Of several rows for one share partition the last one counts, as in Kafka; which answers without
    rows where a name is missing.
    """
    if not request.group_id or not all(topic.partitions for topic in request.topics):
        return response
    try:
        ctx.require_cluster(AclOperation.CLUSTER_ACTION)
        denied = None
    except KafkaError as error:
        denied = error
    asked: dict[UUID, dict[int, Any]] = {}
    for topic in request.topics:
        rows = asked.setdefault(topic.topic_id, {})
        async for row in ctx.time_slice.each(topic.partitions):
            rows[row.partition] = row
    answer: Any = response
    cls: Any = type(response)
    parts: dict[UUID, list[Part[Any]]] = {}
    for topic_id, rows in asked.items():
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
    for topic_id, some in parts.items():
        answer.results.append(
            cls.Topic(topic_id=topic_id, partitions=await together(ctx.time_slice, some))
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
    """What becomes the row of one share partition, and the one for when it is lost."""
    try:
        if denied is not None:
            raise denied
        outcome = ctx.node.share.states.perform(operation, share, asked)
    except KafkaError as error:
        lost.error_code, lost.error_message = error.code, error.message
        return None, [lost]
    lost.error_code = ErrorCode.NOT_COORDINATOR
    return outcome, [lost]
