"""Records of streams groups. `replay` is the counterpart."""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.protocol.streams_group_metadata import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyKey,
)

from ..common.record import CoordinatorRecord
from .group import StreamsGroup, StreamsGroupMember
from .tasks import ActiveTasks, Tasks, TasksTuple
from .topology import StreamsTopology


def epoch_record(
    group: StreamsGroup,
    epoch: int,
    metadata_hash: int,
    validated_epoch: int,
    configs: Mapping[str, str],
) -> CoordinatorRecord:
    """Return the record of a group with a new epoch."""
    return _group_record(
        group, epoch, metadata_hash, validated_epoch, configs, group.description_epochs.failed
    )


def group_record(group: StreamsGroup, *, failed_description_epoch: int) -> CoordinatorRecord:
    """Return the record of a group that has rejected the description of a topology."""
    return _group_record(
        group,
        group.epoch,
        group.metadata_hash,
        group.validated_epoch,
        group.assignment_configs,
        failed_description_epoch,
    )


def _group_record(
    group: StreamsGroup,
    epoch: int,
    metadata_hash: int,
    validated_epoch: int,
    configs: Mapping[str, str],
    failed_description_epoch: int,
) -> CoordinatorRecord:
    value = StreamsGroupMetadataValue(
        epoch=epoch,
        metadata_hash=metadata_hash,
        validated_topology_epoch=validated_epoch,
        stored_description_topology_epoch=group.description_epochs.stored,
        failed_description_topology_epoch=failed_description_epoch,
        last_assignment_configs=[
            StreamsGroupMetadataValue.AssignmentConfig(key=key, value=configs[key])
            for key in sorted(configs)
        ],
    )
    return CoordinatorRecord(StreamsGroupMetadataKey(group_id=group.id), value)


def topology_record(group_id: str, topology: StreamsTopology) -> CoordinatorRecord:
    """Return the record of a group's topology."""
    return CoordinatorRecord(StreamsGroupTopologyKey(group_id=group_id), topology.value)


def member_record(group_id: str, member: StreamsGroupMember) -> CoordinatorRecord:
    """Return the record of a member's metadata."""
    cls = StreamsGroupMemberMetadataValue
    endpoint = None
    if member.endpoint is not None:
        endpoint = cls.Endpoint(host=member.endpoint[0], port=member.endpoint[1])
    value = cls(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=endpoint,
        client_tags=[cls.KeyValue(key=key, value=value) for key, value in sorted(member.tags)],
    )
    return CoordinatorRecord(
        StreamsGroupMemberMetadataKey(group_id=group_id, member_id=member.id), value
    )


def current_record(group_id: str, member: StreamsGroupMember) -> CoordinatorRecord:
    """Return the record of a member's current assignment."""
    value = StreamsGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state.value,
        active_tasks=_with_epochs(member.assigned.active),
        standby_tasks=_without_epochs(member.assigned.standby),
        warmup_tasks=_without_epochs(member.assigned.warmup),
        active_tasks_pending_revocation=_with_epochs(member.revoking.active),
        standby_tasks_pending_revocation=_without_epochs(member.revoking.standby),
        warmup_tasks_pending_revocation=_without_epochs(member.revoking.warmup),
    )
    key = StreamsGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.id)
    return CoordinatorRecord(key, value)


def target_record(group_id: str, member_id: str, target: TasksTuple) -> CoordinatorRecord:
    """Return the record of a member's target assignment."""
    cls = StreamsGroupTargetAssignmentMemberValue
    active, standby, warmup = (
        [cls.TaskIds(subtopology_id=each, partitions=sorted(tasks[each])) for each in sorted(tasks)]
        for tasks in target
    )
    key = StreamsGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    return CoordinatorRecord(
        key, cls(active_tasks=active, standby_tasks=standby, warmup_tasks=warmup)
    )


def target_epoch_record(group_id: str, epoch: int, at_ms: int) -> CoordinatorRecord:
    """Return the record of the target assignment's epoch and time (ms since 1970; 0 if unknown)."""
    value = StreamsGroupTargetAssignmentMetadataValue(
        assignment_epoch=epoch, assignment_timestamp=at_ms
    )
    return CoordinatorRecord(StreamsGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def member_tombstones(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    """Return the records that delete a member."""
    keys = (
        StreamsGroupCurrentMemberAssignmentKey,
        StreamsGroupTargetAssignmentMemberKey,
        StreamsGroupMemberMetadataKey,
    )
    return [CoordinatorRecord(cls(group_id=group_id, member_id=member_id), None) for cls in keys]


def streams_group_tombstones(group: StreamsGroup) -> list[CoordinatorRecord]:
    """Return the records that delete a group and its members, without its offsets."""
    records = []
    for member_id in dict.fromkeys((*group.members, *group.targets)):
        records += member_tombstones(group.id, member_id)
    keys = (
        StreamsGroupTargetAssignmentMetadataKey,
        StreamsGroupMetadataKey,
        StreamsGroupTopologyKey,
    )
    return records + [CoordinatorRecord(cls(group_id=group.id), None) for cls in keys]


def _with_epochs(tasks: ActiveTasks) -> list[StreamsGroupCurrentMemberAssignmentValue.TaskIds]:
    return [
        StreamsGroupCurrentMemberAssignmentValue.TaskIds(
            subtopology_id=each,
            partitions=sorted(tasks[each]),
            assignment_epochs=[tasks[each][partition] for partition in sorted(tasks[each])],
        )
        for each in sorted(tasks)
    ]


def _without_epochs(tasks: Tasks) -> list[StreamsGroupCurrentMemberAssignmentValue.TaskIds]:
    return [
        StreamsGroupCurrentMemberAssignmentValue.TaskIds(
            subtopology_id=each, partitions=sorted(tasks[each])
        )
        for each in sorted(tasks)
    ]
