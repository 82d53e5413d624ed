"""StreamsGroupDescribe (KIP-1071)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.streams_groups import (
    StreamsGroupDescribeResponse,
    TopologyDescription,
)
from kbroker.protocol.streams_group_metadata import StreamsGroupTopologyValue

from ..state import ShardState
from .descriptions import decode_description
from .group import StreamsGroup, StreamsGroupMember
from .tasks import NO_TARGET, NO_TASK_OFFSETS, MemberTaskOffsets, Tasks, TasksTuple, keys_of
from .topics import ConfiguredInternalTopic, ConfiguredSubtopology

Response = StreamsGroupDescribeResponse
Value = StreamsGroupTopologyValue


# Statuses of a topology description in a response.
NOT_REQUESTED, NOT_STORED, AVAILABLE = 0, 1, 3


def describe_streams_group(
    state: ShardState, group_id: str, assignor: str, *, with_description: bool
) -> Response.Group:
    """Return a group's state, epochs, topology and members, without authorized operations.

    Args:
        state: State of the shard.
        group_id: The group.
        assignor: Task assignor of the next assignment.
        with_description: True to add the topology description (KIP-1331).
    """
    group = state.find_group(group_id, StreamsGroup)
    if group is None:
        is_other = state.groups.get(group_id) is not None
        problem = "is not a streams group" if is_other else "not found"
        return Response.Group(
            group_id=group_id,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"Group {group_id[:255]} {problem}.",
        )
    status, description = NOT_REQUESTED, None
    if with_description:
        status, description = _description(group)
    return Response.Group(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        topology=_topology(group),
        members=[
            _member(
                member,
                group.targets.get(member.id, NO_TARGET),
                group.task_offsets.get(member.id, NO_TASK_OFFSETS),
            )
            for member in group.members.values()
        ],
        topology_description=description,
        topology_description_status=status,
        assignor_name=assignor,
    )


def _description(group: StreamsGroup) -> tuple[int, TopologyDescription | None]:
    """Return the status and the topology description of a group."""
    topology = group.topology
    if topology is None or topology.description is None:
        return NOT_STORED, None
    return AVAILABLE, decode_description(topology.description)


def _topology(group: StreamsGroup) -> Response.Topology | None:
    """Return the configured topology, or the stored one while internal topics are missing."""
    if group.topology is None:
        return None
    configured = group.configured
    if configured is not None and configured.is_ready and configured.subtopologies is not None:
        rows = [_configured(each, known) for each, known in configured.subtopologies.items()]
    else:
        stored = group.topology.subtopologies
        rows = [_stored(stored[each]) for each in sorted(stored)]
    return Response.Topology(epoch=group.topology.epoch, subtopologies=rows)


def _configured(name: str, known: ConfiguredSubtopology) -> Response.Subtopology:
    return Response.Subtopology(
        subtopology_id=name,
        source_topics=list(known.source_topics),
        repartition_sink_topics=list(known.sinks),
        state_changelog_topics=[_internal(each) for each in known.changelogs],
        repartition_source_topics=[_internal(each) for each in known.repartition_sources],
    )


def _internal(topic: ConfiguredInternalTopic) -> Response.TopicInfo:
    return Response.TopicInfo(
        name=topic.name,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        topic_configs=[Response.KeyValue(key=key, value=value) for key, value in topic.configs],
    )


def _stored(stored: Value.Subtopology) -> Response.Subtopology:
    return Response.Subtopology(
        subtopology_id=stored.subtopology_id,
        source_topics=sorted(stored.source_topics),
        repartition_sink_topics=sorted(stored.repartition_sink_topics),
        state_changelog_topics=_infos(stored.state_changelog_topics),
        repartition_source_topics=_infos(stored.repartition_source_topics),
    )


def _infos(topics: Iterable[Value.TopicInfo]) -> list[Response.TopicInfo]:
    return [
        Response.TopicInfo(
            name=topic.name,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            topic_configs=[
                Response.KeyValue(key=each.key, value=each.value) for each in topic.topic_configs
            ],
        )
        for topic in sorted(topics, key=lambda each: each.name)
    ]


def _member(
    member: StreamsGroupMember, target: TasksTuple, reported: MemberTaskOffsets
) -> Response.Member:
    endpoint = None
    if member.endpoint is not None:
        endpoint = Response.Endpoint(host=member.endpoint[0], port=member.endpoint[1])
    held = member.assigned
    return Response.Member(
        member_id=member.id,
        member_epoch=member.epoch,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=endpoint,
        task_offsets=_offsets(reported.offsets),
        task_end_offsets=_offsets(reported.end_offsets),
        client_tags=[Response.KeyValue(key=key, value=value) for key, value in member.tags],
        assignment=Response.Assignment(
            active_tasks=_tasks(keys_of(held.active)),
            standby_tasks=_tasks(held.standby),
            warmup_tasks=_tasks(held.warmup),
        ),
        target_assignment=Response.Assignment(
            active_tasks=_tasks(target.active),
            standby_tasks=_tasks(target.standby),
            warmup_tasks=_tasks(target.warmup),
        ),
    )


def _offsets(offsets: Mapping[str, Mapping[int, int]]) -> list[Response.TaskOffset]:
    return [
        Response.TaskOffset(subtopology_id=each, partition=partition, offset=offset)
        for each in sorted(offsets)
        for partition, offset in sorted(offsets[each].items())
    ]


def _tasks(tasks: Tasks) -> list[Response.TaskIds]:
    return [
        Response.TaskIds(subtopology_id=each, partitions=sorted(tasks[each]))
        for each in sorted(tasks)
    ]
