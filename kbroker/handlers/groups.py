"""FindCoordinator, the classic group protocol, and the group APIs for all group types."""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

from kbroker.coordinator.share.offsets import ShareStateRequests
from kbroker.coordinator_runtime.groups import GroupCoordinatorService, GroupShard
from kbroker.coordinator_runtime.shards import ShardPending, Shards, outcome_of
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kbroker.protocol.share_state_log import SharePartitionKey
from kbroker.runtime.time_slices import Later, TimeSlice
from kbroker.security.acls import CLUSTER, AclOperation, Resource

from .context import GROUP, Context
from .deduplicate import distinct
from .registry import handles

R = TypeVar("R")

# Rows of one coordinator, which may be pending, and the rows to return if it loses its partition.
Part: TypeAlias = tuple[list[R] | ShardPending | None, list[R]]

GROUP_KEY, TRANSACTION_KEY, SHARE_KEY = 0, 1, 2
# First version of FindCoordinator that knows share partitions.
SHARE_KEY_VERSION = 6
# Maximum number of protocols of one member; clients have two or three.
PROTOCOLS_MAX = 1000
# Number of members that leave in one step; the event loop runs other tasks between steps.
MEMBERS_AT_ONCE = 500


@handles(ApiKey.FIND_COORDINATOR, versions="0-6")
async def find_coordinator(
    ctx: Context, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    """Return the coordinators of groups, transactional IDs or share partitions.

    The coordinator is the leader of a partition of an internal topic, which is created on first
    use. COORDINATOR_NOT_AVAILABLE if the partition has no leader.

    Versions: 0 knows groups only, 4 has several keys (KIP-699), 6 knows share partitions.
    """
    batched = ctx.version >= 4
    keys = request.coordinator_keys if batched else [request.key]
    rows = [
        await _find_coordinator(ctx, request.key_type, key)
        async for key in ctx.time_slice.each(distinct(keys))
    ]
    if batched:
        return FindCoordinatorResponse(coordinators=rows)
    row = rows[0]
    return FindCoordinatorResponse(
        error_code=row.error_code,
        error_message=row.error_message,
        node_id=row.node_id,
        host=row.host,
        port=row.port,
    )


async def _find_coordinator(
    ctx: Context, key_type: int, key: str
) -> FindCoordinatorResponse.Coordinator:
    row = FindCoordinatorResponse.Coordinator(key=key, node_id=-1, host="", port=-1)
    coordinators: Shards[Any]
    try:
        if key_type == GROUP_KEY:
            ctx.require_group(AclOperation.DESCRIBE, key)
            coordinators = ctx.node.groups
        elif key_type == TRANSACTION_KEY:
            ctx.require_transaction(AclOperation.DESCRIBE, key)
            coordinators = ctx.node.transactions
        elif key_type == SHARE_KEY and ctx.version >= SHARE_KEY_VERSION:
            ctx.require_cluster(AclOperation.CLUSTER_ACTION)
            key = _share_name(key)
            coordinators = ctx.node.share.states
        else:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"unknown coordinator key type {key_type}")
    except KafkaError as error:
        row.error_code, row.error_message = error.code, error.message
        return row
    try:
        await coordinators.create_topic()
    except KafkaError as error:
        row.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        row.error_message = error.message
        return row
    leader = coordinators.coordinator_id(key)
    endpoint = ctx.endpoint_of(leader)
    if endpoint is None:
        row.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        row.error_message = f"the coordinator partition of {key!r} has no leader at the moment"
        return row
    row.node_id = leader
    row.host, row.port = endpoint
    return row


def _share_name(key: str) -> str:
    """Return the normalized key of a share partition.

    Raises:
        KafkaError: INVALID_REQUEST: the key is invalid.
    """
    try:
        return SharePartitionKey.named(key).name
    except ValueError as error:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"invalid share-partition key {key!r}: expected GROUP:TOPIC_ID:PARTITION",
        ) from error


@handles(ApiKey.JOIN_GROUP, versions="0-9")
def join_group(ctx: Context, request: JoinGroupRequest) -> JoinGroupResponse | ShardPending | None:
    """Join a group. The response is sent when all members have joined.

    See `kbroker.coordinator.classic.groups`.

    Differs from Kafka: more than 1,000 protocols get INVALID_REQUEST.
    """
    groups = ctx.node.groups
    try:
        if len(request.protocols) > PROTOCOLS_MAX:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        ctx.require_group(AclOperation.READ, request.group_id)
        shard = groups.shard(request.group_id)
    except KafkaError as error:
        is_denied = error.code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        member_id = "" if is_denied else request.member_id  # as in Kafka
        return JoinGroupResponse(error_code=error.code, member_id=member_id)
    freed = shard.coordinator.delete_empty_modern_group(request, groups.now())
    if freed is not None and (failed := groups.store(shard, freed)) is not freed:
        return groups.release(shard, failed.response)
    return groups.run(
        shard, shard.coordinator.join(request, ctx.client_info(), groups.now(), ctx.version)
    )


@handles(ApiKey.SYNC_GROUP, versions="0-5")
def sync_group(ctx: Context, request: SyncGroupRequest) -> SyncGroupResponse | ShardPending | None:
    """Return the member's assignment as soon as the group leader has sent it."""
    groups = ctx.node.groups
    try:
        ctx.require_group(AclOperation.READ, request.group_id)
        shard = groups.shard(request.group_id)
    except KafkaError as error:
        return SyncGroupResponse(error_code=error.code)
    return groups.run(shard, shard.coordinator.sync(request, groups.now(), ctx.version))


@handles(ApiKey.HEARTBEAT, versions="0-4")
def heartbeat(ctx: Context, request: HeartbeatRequest) -> HeartbeatResponse | ShardPending | None:
    """Extend the member's session. The error code tells the member whether to rejoin."""
    groups = ctx.node.groups
    try:
        ctx.require_group(AclOperation.READ, request.group_id)
        shard = groups.shard(request.group_id)
    except KafkaError as error:
        return HeartbeatResponse(error_code=error.code)
    return groups.run(shard, shard.coordinator.heartbeat(request, groups.now()))


@handles(ApiKey.LEAVE_GROUP, versions="0-5")
def leave_group(
    ctx: Context, request: LeaveGroupRequest
) -> LeaveGroupResponse | ShardPending | Later[LeaveGroupResponse] | None:
    """Remove members from a group and begin a rebalance.

    Versions: 3 removes several members, by member ID or group instance ID.
    """
    if len(request.members) > MEMBERS_AT_ONCE:
        return _leave_in_steps(ctx, request)
    return _leave(ctx, request)


async def _leave_in_steps(ctx: Context, request: LeaveGroupRequest) -> LeaveGroupResponse:
    whole = LeaveGroupResponse()
    for first in range(0, len(request.members), MEMBERS_AT_ONCE):
        await ctx.time_slice.pause()
        members = request.members[first : first + MEMBERS_AT_ONCE]
        some = LeaveGroupRequest(group_id=request.group_id, members=members)
        answer: LeaveGroupResponse | None = await outcome_of(_leave(ctx, some))
        if answer is None or answer.error_code:
            return answer or LeaveGroupResponse(error_code=ErrorCode.NOT_COORDINATOR)
        whole.members += answer.members
    return whole


def _leave(ctx: Context, request: LeaveGroupRequest) -> LeaveGroupResponse | ShardPending | None:
    groups = ctx.node.groups
    try:
        ctx.require_group(AclOperation.READ, request.group_id)
        shard = groups.shard(request.group_id)
    except KafkaError as error:
        return LeaveGroupResponse(error_code=error.code)
    return groups.run(shard, shard.coordinator.leave(request, groups.now(), ctx.version))


@handles(ApiKey.LIST_GROUPS, versions="0-5", read_only=True)
async def list_groups(ctx: Context, request: ListGroupsRequest) -> ListGroupsResponse:
    """List the groups of this node that the client may describe, after pending writes committed.

    DESCRIBE on the cluster permits all groups.

    Versions: 4 filters by state, 5 by type; both are case-insensitive.
    """
    groups = ctx.node.groups
    if groups.is_loading:
        return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    sees_all = ctx.allows(AclOperation.DESCRIBE, CLUSTER, is_filter=True)
    # If this node loses a partition, the new coordinator lists the groups of that partition.
    no_rows: list[ListGroupsResponse.Group] = []
    parts: list[Part[ListGroupsResponse.Group]] = []
    async for shard in ctx.time_slice.each(groups.shards()):
        found = shard.coordinator.list_groups(request.states_filter, request.types_filter)
        rows = [
            row
            async for row in ctx.time_slice.each(found)
            if sees_all or ctx.may_list_group(row.group_id)
        ]
        if groups.serves(shard):
            parts.append((groups.release(shard, rows), no_rows))
    return ListGroupsResponse(groups=await collect_rows(ctx.time_slice, parts))


@handles(ApiKey.DESCRIBE_GROUPS, versions="0-6", read_only=True)
async def describe_groups(ctx: Context, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    """Describe the committed state, protocol and members of groups.

    Differs from Kafka: a group that is named several times has one row.
    """
    groups = ctx.node.groups
    parts: list[Part[DescribeGroupsResponse.Group]] = []
    async for group_id in ctx.time_slice.each(distinct(request.groups)):
        lost = DescribeGroupsResponse.Group(group_id=group_id, error_code=ErrorCode.NOT_COORDINATOR)
        try:
            ctx.require_group(AclOperation.DESCRIBE, group_id)
            shard = groups.shard(group_id)
        except KafkaError as error:
            lost.error_code = error.code
            parts.append((None, [lost]))
            continue
        row = shard.coordinator.describe_group(group_id, ctx.version)
        if request.include_authorized_operations and not row.error_code:
            row.authorized_operations = ctx.operations(Resource(GROUP, group_id))
        parts.append((groups.release(shard, [row]), [lost]))
    return DescribeGroupsResponse(groups=await collect_rows(ctx.time_slice, parts))


@handles(ApiKey.DELETE_GROUPS, versions="0-3")
async def delete_groups(ctx: Context, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """Delete groups without members, their offsets, and the share state of share groups.

    Versions: 3 has an error message, which is always null: Kafka sets it for errors of the
    topology description plugin only (KIP-1331).

    Differs from Kafka: more than 100 offsets are deleted in several batches, the last of which
    deletes the group. Until then, other requests for the group get COORDINATOR_LOAD_IN_PROGRESS.
    """
    parts = [
        await _delete(ctx, group_id)
        async for group_id in ctx.time_slice.each(distinct(request.groups_names))
    ]
    return DeleteGroupsResponse(results=await collect_rows(ctx.time_slice, parts))


async def _delete(ctx: Context, group_id: str) -> Part[DeleteGroupsResponse.Group]:
    groups = ctx.node.groups
    rows: list[DeleteGroupsResponse.Group] = []
    lost = DeleteGroupsResponse.Group(group_id=group_id, error_code=ErrorCode.NOT_COORDINATOR)
    try:
        ctx.require_group(AclOperation.DELETE, group_id)
        shard = groups.shard(group_id)
    except KafkaError as error:
        lost.error_code = error.code
        return None, [lost]
    with groups.closed_to_requests(group_id):
        if shard.coordinator.has_share_group(group_id):
            code = await _delete_share_states(groups, shard, group_id)
            if code:
                lost.error_code = code
                return None, [lost]
        async for piece in ctx.time_slice.each(
            shard.coordinator.delete_group(group_id, groups.now())
        ):
            if not groups.serves(shard):
                return None, [lost]
            stored = groups.store(shard, piece)
            assert isinstance(stored.response, DeleteGroupsResponse.Group)
            rows = [stored.response]
            if stored is not piece:
                break
    if not groups.serves(shard):  # lost after the last piece
        return None, [lost]
    return groups.release(shard, rows), [lost]


async def _delete_share_states(
    groups: GroupCoordinatorService, shard: GroupShard, group_id: str
) -> ErrorCode:
    """Delete the share state of a group at its share coordinators, and return the error code."""
    outcome: ShareStateRequests | ShardPending | None = groups.run(
        shard, shard.coordinator.share_offsets.delete_all(group_id)
    )
    begun = await outcome_of(outcome)
    if begun is None or begun.error_code:
        return ErrorCode.NOT_COORDINATOR if begun is None else begun.error_code
    for error in (await groups.share_state_initializer.delete(group_id, begun.partitions)).values():
        return error.code
    return ErrorCode.NONE if groups.serves(shard) else ErrorCode.NOT_COORDINATOR


async def collect_rows(time_slice: TimeSlice, parts: list[Part[R]]) -> list[R]:
    """Return the rows of all parts in order. Wait for pending parts."""
    rows: list[R] = []
    async for outcome, lost in time_slice.each(parts):
        found = await outcome_of(outcome)
        rows += lost if found is None else found
    return rows
