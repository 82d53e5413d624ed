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
    """Behaviour: a member of a consumer group joins, lives, says what it owns, or leaves; the answer
    has its epoch and, where that changed, its assignment. See `kbroker.coordinator.consumer.groups`.

    Versions: 1 can subscribe by a regular expression; the client makes the id of its member.

    Differs from Kafka: a regular expression is resolved at once where there are few topics, so the
    first answer has the assignment; it is resolved with the permissions of each member, not of the
    member whose heartbeat asks for it. INVALID_REQUEST for ids of more than 1,000 characters, more than
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
        await require_known_topics(ctx, request.subscribed_topic_names or ())
    except KafkaError as error:
        return _refused(error)
    return _heartbeat(ctx, request)


def _heartbeat(ctx: Context, request: ConsumerGroupHeartbeatRequest) -> HeartbeatAnswer:
    groups = ctx.node.groups
    try:
        require_feature(ctx, GROUP_VERSION)
        shard = groups.shard(request.group_id)
    except KafkaError as error:
        return _refused(error)
    rights = None
    if ctx.node.authorizer is not None:
        rights = TopicRights(ctx.peer.client, ctx.knows_topic)
    result = shard.coordinator.consumer_heartbeat(
        request, ctx.client_info(), groups.now(), ctx.version, rights
    )
    return groups.run(shard, result)


def _refused(error: KafkaError) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)


@handles(ApiKey.CONSUMER_GROUP_DESCRIBE, versions="0-1", only_looks=True)
async def consumer_group_describe(
    ctx: Context, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    """Behaviour: state, epochs and members of each group, once they are committed. A client that may
    not know of one of a group's topics is told nothing of its members.

    Versions: 1 tells which protocol a member uses.

    Differs from Kafka: one row for a group that is named several times.
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
        visible=_without_denied,
    )
    return ConsumerGroupDescribeResponse(groups=rows)


async def _without_denied(
    ctx: Context, row: ConsumerGroupDescribeResponse.Group
) -> ConsumerGroupDescribeResponse.Group:
    """Tell nothing of the members of a group that has topics which the client may not know."""
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
