"""ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848)."""

from __future__ import annotations

from kbroker.cluster.features import GROUP_VERSION
from kbroker.coordinator import GroupCoordinator, TopicRights
from kbroker.coordinator_runtime.shards import ShardPending
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kbroker.runtime.time_slices import Later
from kbroker.security.acls import AclOperation

from .context import Context
from .modern_groups import describe_all, may_know_all, require_feature, require_known_topics
from .registry import handles

HeartbeatAnswer = ConsumerGroupHeartbeatResponse | ShardPending | None


@handles(ApiKey.CONSUMER_GROUP_HEARTBEAT, versions="0-1")
def consumer_group_heartbeat(
    ctx: Context, request: ConsumerGroupHeartbeatRequest
) -> HeartbeatAnswer | Later[HeartbeatAnswer]:
    """Process the heartbeat of a member: join, report owned partitions, or leave.

    The response has the member epoch and, if it changed, the assignment. See
    `kbroker.coordinator.consumer.groups`.

    Versions: 1 can subscribe with a regular expression; the client generates its member ID.

    Differs from Kafka: with few topics, a regular expression is resolved at once, so the first
    response has the assignment. Each member gets the topics that it may describe. In Kafka, the
    permissions of the member that sent the heartbeat count for all members.

    IDs of more than 1,000 characters, more than 10,000 topics and more than 50,000 owned partitions
    get INVALID_REQUEST. A static member that rejoins with its own member ID need not leave first.
    """
    try:
        ctx.require_group(AclOperation.READ, request.group_id)
    except KafkaError as error:
        return _error_response(error)
    if ctx.node.authorizer is not None and request.subscribed_topic_names:
        return _permitted_heartbeat(ctx, request)
    return _heartbeat(ctx, request)


async def _permitted_heartbeat(
    ctx: Context, request: ConsumerGroupHeartbeatRequest
) -> HeartbeatAnswer:
    """Process a heartbeat that names topics, all of which the client must be able to describe."""
    try:
        await require_known_topics(ctx, request.subscribed_topic_names or ())
    except KafkaError as error:
        return _error_response(error)
    return _heartbeat(ctx, request)


def _heartbeat(ctx: Context, request: ConsumerGroupHeartbeatRequest) -> HeartbeatAnswer:
    groups = ctx.node.groups
    try:
        require_feature(ctx, GROUP_VERSION)
        shard = groups.shard(request.group_id)
    except KafkaError as error:
        return _error_response(error)
    rights = None
    if ctx.node.authorizer is not None:
        rights = TopicRights(ctx.peer.client, ctx.may_list_topic)
    result = shard.coordinator.consumer_heartbeat(
        request, ctx.client_info(), groups.now(), ctx.version, rights
    )
    return groups.run(shard, result)


def _error_response(error: KafkaError) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)


@handles(ApiKey.CONSUMER_GROUP_DESCRIBE, versions="0-1", read_only=True)
async def consumer_group_describe(
    ctx: Context, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    """Describe the committed state, epochs and members of groups.

    If the client may not describe one of a group's topics, the row omits the members.

    Versions: 1 has the protocol of each member.

    Differs from Kafka: a group that is named several times has one row.
    """

    def check(group_id: str) -> None:
        ctx.require_group(AclOperation.DESCRIBE, group_id)
        require_feature(ctx, GROUP_VERSION)

    rows = await describe_all(
        ctx,
        request,
        ConsumerGroupDescribeResponse.Group,
        check=check,
        describe=GroupCoordinator.describe_consumer_group,
        visible=_hide_denied_members,
    )
    return ConsumerGroupDescribeResponse(groups=rows)


async def _hide_denied_members(
    ctx: Context, row: ConsumerGroupDescribeResponse.Group
) -> ConsumerGroupDescribeResponse.Group:
    """Remove the members from a row if the client may not describe one of their topics."""
    if ctx.node.authorizer is None:
        return row
    names: dict[str, None] = {}
    async for member in ctx.time_slice.each(row.members):
        names |= dict.fromkeys(member.subscribed_topic_names)
        for part in (member.assignment, member.target_assignment):
            names |= dict.fromkeys(topic.topic_name for topic in part.topic_partitions)
    if not await may_know_all(ctx, names):
        row.members = []
        row.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        row.error_message = "The group uses topics that the client may not describe."
    return row
