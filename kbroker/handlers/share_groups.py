"""ShareGroupHeartbeat and ShareGroupDescribe (KIP-932)."""

from __future__ import annotations

from kbroker.cluster.features import SHARE_VERSION
from kbroker.coordinator import GroupCoordinator
from kbroker.coordinator_runtime.shards import ShardPending
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.share_groups import (
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from kbroker.runtime.time_slices import Later
from kbroker.security.acls import AclOperation

from .context import Context
from .modern_groups import describe_all, may_know_all, require_feature, require_known_topics
from .registry import handles

# Maximum number of characters of a member ID, which is a UUID.
MEMBER_ID_LENGTH_MAX = 36

HeartbeatAnswer = ShareGroupHeartbeatResponse | ShardPending | None


@handles(ApiKey.SHARE_GROUP_HEARTBEAT, versions="1")
def share_group_heartbeat(
    ctx: Context, request: ShareGroupHeartbeatRequest
) -> HeartbeatAnswer | Later[HeartbeatAnswer]:
    """Process the heartbeat of a member: join, keep the session, or leave.

    The response has the member epoch and, if it changed, the assignment. See
    `kbroker.coordinator.share.groups`.

    Differs from Kafka: names of more than 1,000 characters and more than 10,000 topics get
    INVALID_REQUEST. A group initializes the share state of 2,000 partitions at a time.
    """
    try:
        require_share_groups(ctx)
        ctx.require_group(AclOperation.READ, request.group_id)
        if not 0 < len(request.member_id) <= MEMBER_ID_LENGTH_MAX:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid member id in the request.")
    except KafkaError as error:
        return _error_response(error)
    if ctx.node.authorizer is not None and request.subscribed_topic_names:
        return _permitted_heartbeat(ctx, request)
    return _heartbeat(ctx, request)


async def _permitted_heartbeat(
    ctx: Context, request: ShareGroupHeartbeatRequest
) -> HeartbeatAnswer:
    """Process a heartbeat that names topics, all of which the client must be able to describe."""
    try:
        await require_known_topics(ctx, request.subscribed_topic_names or ())
    except KafkaError as error:
        return _error_response(error)
    return _heartbeat(ctx, request)


def _heartbeat(ctx: Context, request: ShareGroupHeartbeatRequest) -> HeartbeatAnswer:
    groups = ctx.node.groups
    try:
        shard = groups.shard(request.group_id)
    except KafkaError as error:
        return _error_response(error)
    client = ctx.client_info()
    return groups.run(shard, shard.coordinator.share_heartbeat(request, client, groups.now()))


def require_share_groups(ctx: Context) -> None:
    """Check that share groups are enabled; see `require_feature`."""
    require_feature(ctx, SHARE_VERSION)


def _error_response(error: KafkaError) -> ShareGroupHeartbeatResponse:
    return ShareGroupHeartbeatResponse(error_code=error.code, error_message=error.message)


@handles(ApiKey.SHARE_GROUP_DESCRIBE, versions="1", read_only=True)
async def share_group_describe(
    ctx: Context, request: ShareGroupDescribeRequest
) -> ShareGroupDescribeResponse:
    """Describe the committed state, epochs and members of groups.

    If the client may not describe one of the assigned topics, the row has an error only.

    Differs from Kafka: a group that is named several times has one row.
    """

    def check(group_id: str) -> None:
        require_share_groups(ctx)
        ctx.require_group(AclOperation.DESCRIBE, group_id)
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)

    rows = await describe_all(
        ctx,
        request,
        ShareGroupDescribeResponse.Group,
        check=check,
        describe=GroupCoordinator.describe_share_group,
        visible=_visible_row,
    )
    return ShareGroupDescribeResponse(groups=rows)


async def _visible_row(
    ctx: Context, row: ShareGroupDescribeResponse.Group
) -> ShareGroupDescribeResponse.Group:
    """Return the row, or an error row if the client may not describe one of the group's topics."""
    if ctx.node.authorizer is None:
        return row
    names: dict[str, None] = {}
    async for member in ctx.time_slice.each(row.members):
        names |= dict.fromkeys(topic.topic_name for topic in member.assignment.topic_partitions)
    if await may_know_all(ctx, names):
        return row
    return ShareGroupDescribeResponse.Group(
        group_id=row.group_id,
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        error_message="The group uses topics that the client may not describe.",
    )
