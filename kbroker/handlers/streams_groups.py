"""StreamsGroupHeartbeat, StreamsGroupDescribe (KIP-1071) and topology descriptions (KIP-1331)."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from functools import partial

from kbroker.cluster.features import STREAMS_VERSION
from kbroker.cluster.model import INTERNAL_TOPICS, check_topic_name
from kbroker.cluster.topics import DEFAULT, NewTopic, check_new_partitions, plan_topic
from kbroker.coordinator import GroupCoordinator
from kbroker.coordinator.streams.topics import MISSING_INTERNAL_TOPICS, ConfiguredInternalTopic
from kbroker.coordinator.streams.topology import check_topology_size, topics_named
from kbroker.coordinator_runtime.shards import ShardPending, outcome_of
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.streams_groups import (
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    StreamsGroupTopologyDescriptionUpdateRequest,
    StreamsGroupTopologyDescriptionUpdateResponse,
)
from kbroker.runtime.time_slices import Later
from kbroker.security.acls import CLUSTER, AclOperation, Resource

from .context import TOPIC, Context
from .modern_groups import describe_all, may_know_all, require_feature, require_known_topics
from .registry import handles

DescriptionAnswer = StreamsGroupTopologyDescriptionUpdateResponse | ShardPending | None
HeartbeatAnswer = StreamsGroupHeartbeatResponse | ShardPending | None
Waiting = Later[HeartbeatAnswer]
# Maximum number of internal topics whose creation error is in the response.
NAMES_SHOWN = 3


@handles(ApiKey.STREAMS_GROUP_HEARTBEAT, versions="0-1")
def streams_group_heartbeat(
    ctx: Context, request: StreamsGroupHeartbeatRequest
) -> HeartbeatAnswer | Waiting:
    """Process the heartbeat of a member: join with a topology, report owned tasks, or leave.

    The response has the member epoch and, if they changed, the assigned tasks. Missing internal
    topics of the topology are created if the client may create them. See
    `kbroker.coordinator.streams.groups`.

    Differs from Kafka: internal topics exist when the response arrives. If one cannot be created,
    the response has the cause. The assignment is repeated until the member confirms it.
    INVALID_REQUEST for IDs of more than 1,000 characters, contradictory topologies, topologies with
    more than 2,000 topics and settings, and more than 20,000 owned tasks.
    STREAMS_INVALID_TOPOLOGY for groups with more than 20,000 tasks.
    """
    try:
        require_feature(ctx, STREAMS_VERSION)
        ctx.require_group(AclOperation.READ, request.group_id)
    except KafkaError as error:
        return _error_response(error)
    if request.topology is not None:
        return _heartbeat_with_topology(ctx, request)
    return _heartbeat(ctx, request)


async def _heartbeat_with_topology(
    ctx: Context, request: StreamsGroupHeartbeatRequest
) -> HeartbeatAnswer:
    """Process a heartbeat with a topology, after checks of its topic names and permissions."""
    assert request.topology is not None
    try:
        check_topology_size(request.topology)
        names = list(topics_named(request.topology))
        if internal := [name for name in names if name in INTERNAL_TOPICS]:
            raise KafkaError(
                ErrorCode.STREAMS_INVALID_TOPOLOGY,
                f"Use of Kafka internal topics {','.join(internal)} in a Kafka Streams topology is "
                "prohibited.",
            )
        if invalid := [name async for name in ctx.time_slice.each(names) if not _is_valid(name)]:
            raise KafkaError(
                ErrorCode.STREAMS_INVALID_TOPOLOGY,
                f"Topic names {','.join(invalid)} are not valid topic names.",
            )
        await require_known_topics(ctx, names)
    except KafkaError as error:
        return _error_response(error)
    outcome = _heartbeat(ctx, request)
    return await outcome if isinstance(outcome, Coroutine) else outcome


def _is_valid(name: str) -> bool:
    try:
        check_topic_name(name)
    except KafkaError:
        return False
    return True


def _heartbeat(ctx: Context, request: StreamsGroupHeartbeatRequest) -> HeartbeatAnswer | Waiting:
    groups = ctx.node.groups
    try:
        shard = groups.shard(request.group_id)
    except KafkaError as error:
        return _error_response(error)
    result, missing = shard.coordinator.streams_heartbeat(
        request, ctx.client_info(), groups.now(), ctx.version
    )
    outcome = groups.run(shard, result)
    return _create_topics_and_respond(ctx, outcome, missing) if missing else outcome


async def _create_topics_and_respond(
    ctx: Context, outcome: HeartbeatAnswer, missing: Mapping[str, ConfiguredInternalTopic]
) -> HeartbeatAnswer:
    """Create missing internal topics, then return the response to a heartbeat."""
    answer: StreamsGroupHeartbeatResponse | None = await outcome_of(outcome)
    if answer is None or answer.error_code:
        return answer
    denied = await _find_denied(ctx, missing)
    if denied:
        _add_detail(answer, f"Unauthorized to CREATE on topics {', '.join(denied)}.")
        return answer
    failures = await _create_topics(ctx, missing)
    if failures:
        details = ", ".join(f"{name} ({why})" for name, why in failures[:NAMES_SHOWN])
        more = len(failures) - NAMES_SHOWN
        _add_detail(answer, f"Creation failed: {details}{f' and {more} more' if more > 0 else ''}.")
    return answer


async def _find_denied(ctx: Context, missing: Mapping[str, ConfiguredInternalTopic]) -> list[str]:
    """Return the topics that the client may not create."""
    if ctx.allows(AclOperation.CREATE, CLUSTER, is_filter=True):
        return []
    return [
        name
        async for name in ctx.time_slice.each(missing)
        if not ctx.allows(AclOperation.CREATE, Resource(TOPIC, name))
    ]


async def _create_topics(
    ctx: Context, missing: Mapping[str, ConfiguredInternalTopic]
) -> list[tuple[str, str]]:
    """Create internal topics, and return name and cause of each failure."""
    failures = []
    try:
        check_new_partitions(sum(topic.partitions for topic in missing.values()))
    except KafkaError as error:
        return [(name, error.message or error.code.name) for name in missing]
    async for topic in ctx.time_slice.each(missing.values()):
        new = NewTopic(
            topic.name,
            topic.partitions,
            topic.replication_factor or DEFAULT,
            configs=dict(topic.configs),
        )
        try:
            plan = plan_topic(ctx.node.cluster, ctx.node.config, new)
            placed = [nodes async for nodes in ctx.time_slice.each(plan.assignments)]
            ctx.charge_partitions(len(placed), strict_since=0)
            cause = f"StreamsGroupHeartbeat by {ctx.client_id}"
            await ctx.node.cluster.create_topic(plan.name, placed, plan.configs, cause=cause)
        except KafkaError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:  # another member created it
                failures.append((topic.name, error.message or error.code.name))
    return failures


def _add_detail(answer: StreamsGroupHeartbeatResponse, detail: str) -> None:
    for status in answer.status or ():
        if status.status_code == MISSING_INTERNAL_TOPICS:
            status.status_detail += f"; {detail}"


def _error_response(error: KafkaError) -> StreamsGroupHeartbeatResponse:
    return StreamsGroupHeartbeatResponse(
        error_code=error.code, error_message=error.message, status=[]
    )


@handles(ApiKey.STREAMS_GROUP_DESCRIBE, versions="0-1", read_only=True)
async def streams_group_describe(
    ctx: Context, request: StreamsGroupDescribeRequest
) -> StreamsGroupDescribeResponse:
    """Describe the committed state, epochs, topology and members of groups.

    If the client may not describe one of a group's topics, the row has an error only.

    Differs from Kafka: a group that is named several times has one row.
    """

    def check(group_id: str) -> None:
        require_feature(ctx, STREAMS_VERSION)
        ctx.require_group(AclOperation.DESCRIBE, group_id)

    rows = await describe_all(
        ctx,
        request,
        StreamsGroupDescribeResponse.Group,
        check=check,
        describe=partial(
            GroupCoordinator.describe_streams_group,
            with_description=request.include_topology_description,
        ),
        visible=_visible_row,
    )
    return StreamsGroupDescribeResponse(groups=rows)


async def _visible_row(
    ctx: Context, row: StreamsGroupDescribeResponse.Group
) -> StreamsGroupDescribeResponse.Group:
    """Return the row, or an error row if the client may not describe one of the group's topics."""
    if ctx.node.authorizer is None or row.topology is None:
        return row
    names: dict[str, None] = {}
    async for each in ctx.time_slice.each(row.topology.subtopologies or ()):
        names |= dict.fromkeys((*each.source_topics, *each.repartition_sink_topics))
        for topic in (*each.repartition_source_topics, *each.state_changelog_topics):
            names[topic.name] = None
    if await may_know_all(ctx, names):
        return row
    return StreamsGroupDescribeResponse.Group(
        group_id=row.group_id,
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        error_message="The described group uses topics that the client is not authorized to describe.",
    )


@handles(ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE, versions="0")
def streams_group_topology_description_update(
    ctx: Context, request: StreamsGroupTopologyDescriptionUpdateRequest
) -> DescriptionAnswer | Later[DescriptionAnswer]:
    """Store the description of a group's topology, which a heartbeat response has requested.

    Differs from Kafka: no plugin is needed. A description of more than 256 KiB, or of more than
    10,000 nodes, topics, stores and successors, is rejected permanently.
    """
    groups = ctx.node.groups
    try:
        require_feature(ctx, STREAMS_VERSION)
        ctx.require_group(AclOperation.READ, request.group_id)
        shard = groups.shard(request.group_id)
    except KafkaError as error:
        return StreamsGroupTopologyDescriptionUpdateResponse(
            error_code=error.code, error_message=error.message
        )
    result = shard.coordinator.update_topology_description(request, ctx.client_info(), groups.now())
    return groups.run(shard, result)
