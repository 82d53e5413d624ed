"""ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848)."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from kbroker.cluster.features import GROUP_VERSION
from kbroker.coordination.shards import ShardPending
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kbroker.security.acls import AclOperation, Resource

from .context import GROUP, TOPIC, Context
from .groups import Part, together
from .named import distinct
from .registry import handles

HeartbeatAnswer = ConsumerGroupHeartbeatResponse | ShardPending | None


@handles(ApiKey.CONSUMER_GROUP_HEARTBEAT, versions="0-1")
def consumer_group_heartbeat(
    ctx: Context, request: ConsumerGroupHeartbeatRequest
) -> HeartbeatAnswer | Coroutine[Any, Any, HeartbeatAnswer]:
    """Behaviour: a member of a consumer group joins, lives, says what it owns, or leaves; the answer
    has its epoch and, where that changed, its assignment. See `kbroker.coordinator.consumer_groups`.

    Versions: 1 can subscribe by a regular expression; the client makes the id of its member.

    Differs from Kafka: a regular expression is resolved at once where there are few topics, so the
    first answer has the assignment. INVALID_REQUEST for ids of more than 1,000 characters, more than
    10,000 topics or 50,000 owned partitions. A static member that begins anew under its own id need
    not leave first.
    """
    try:
        ctx.require_group(AclOperation.READ, request.group_id)
    except KafkaError as error:
        return _refused(error)
    if ctx.node.authorizer is not None and request.subscribed_topic_names:
        return _permitted_heartbeat(ctx, request)
    return _heartbeat(ctx, request)


async def _permitted_heartbeat(
    ctx: Context, request: ConsumerGroupHeartbeatRequest
) -> HeartbeatAnswer:
    """A heartbeat that names topics: the client must be allowed to know of all of them."""
    try:
        async for name in ctx.turn.each(distinct(request.subscribed_topic_names or ())):
            ctx.require_topic(AclOperation.DESCRIBE, name)
    except KafkaError as error:
        return _refused(error)
    return _heartbeat(ctx, request)


def _heartbeat(ctx: Context, request: ConsumerGroupHeartbeatRequest) -> HeartbeatAnswer:
    groups = ctx.node.groups
    try:
        require_consumer_groups(ctx)
        shard = groups.shard(request.group_id)
    except KafkaError as error:
        return _refused(error)
    may_know = None if ctx.node.authorizer is None else ctx.knows_topic
    result = shard.coordinator.consumer_heartbeat(
        request, ctx.client_info(), groups.now(), ctx.version, may_know
    )
    return groups.run(shard, result)


def require_consumer_groups(ctx: Context) -> None:
    """Raise KafkaError UNSUPPORTED_VERSION where nodes may run that do not know consumer groups."""
    if not ctx.node.cluster.features.get(GROUP_VERSION):
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            "The cluster runs group.version 0; when all nodes are up to date: kafka-features upgrade "
            "--feature group.version=1",
        )


def _refused(error: KafkaError) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)


@handles(ApiKey.CONSUMER_GROUP_DESCRIBE, versions="0-1")
async def consumer_group_describe(
    ctx: Context, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    """Behaviour: state, epochs and members of each group, once they are committed. A client that may
    not know of one of a group's topics is told nothing of its members.

    Versions: 1 tells which protocol a member uses.

    Differs from Kafka: one row for a group that is named several times.
    """
    groups = ctx.node.groups
    parts: list[Part[ConsumerGroupDescribeResponse.Group]] = []
    async for group_id in ctx.turn.each(distinct(request.group_ids)):
        lost = ConsumerGroupDescribeResponse.Group(
            group_id=group_id, error_code=ErrorCode.NOT_COORDINATOR
        )
        try:
            ctx.require_group(AclOperation.DESCRIBE, group_id)
            require_consumer_groups(ctx)
            shard = groups.shard(group_id)
        except KafkaError as error:
            lost.error_code, lost.error_message = error.code, error.message
            parts.append((None, [lost]))
            continue
        row = shard.coordinator.describe_consumer_group(group_id)
        await _leave_out_denied(ctx, row)
        if request.include_authorized_operations and not row.error_code:
            row.authorized_operations = ctx.operations(Resource(GROUP, group_id))
        if groups.serves(shard):
            parts.append((groups.release(shard, [row]), [lost]))
        else:
            parts.append((None, [lost]))
    return ConsumerGroupDescribeResponse(groups=await together(ctx.turn, parts))


async def _leave_out_denied(ctx: Context, row: ConsumerGroupDescribeResponse.Group) -> None:
    """Tell nothing of the members of a group that has topics which the client may not know."""
    if ctx.node.authorizer is None:
        return
    names: dict[str, None] = {}
    async for member in ctx.turn.each(row.members):
        names |= dict.fromkeys(member.subscribed_topic_names)
        for part in (member.assignment, member.target_assignment):
            names |= dict.fromkeys(topic.topic_name for topic in part.topic_partitions)
    async for name in ctx.turn.each(names):
        if not ctx.allows(AclOperation.DESCRIBE, Resource(TOPIC, name), is_looked_for=True):
            row.members = []
            row.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            row.error_message = "The group uses topics that the client may not describe."
            return
