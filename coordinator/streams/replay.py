"""Replay of streams group records. This is the only code that changes their persistent state.

As for consumer groups (`consumer.replay`), no record depends on the presence of another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from kbroker.protocol.streams_group_metadata import (
    Key,
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTopologyKey,
    StreamsGroupTopologyValue,
)

from ..common.modern_group import NO_EPOCH, delete_assignment, put_assignment
from ..common.record import RecordValue
from ..state import ShardState
from .group import DescriptionEpochs, StreamsGroup, StreamsGroupMember, StreamsMemberState
from .tasks import (
    NO_ACTIVE_TASKS,
    NOTHING,
    ActiveTasks,
    Tasks,
    TasksTuple,
    TasksTupleWithEpochs,
    freeze_tasks,
)
from .topology import StreamsTopology

_Rows = Iterable[StreamsGroupCurrentMemberAssignmentValue.TaskIds]


def replay_streams_group(state: ShardState, key: Key, value: RecordValue | None) -> None:
    """Apply one record of a streams group."""
    if value is not None:
        group = state.find_group(key.group_id, StreamsGroup) or state.add_group(
            StreamsGroup(key.group_id)
        )
        _PUT[type(key)](group, key, value)
        return
    known = state.find_group(key.group_id, StreamsGroup)
    if known is None:
        return
    if isinstance(key, StreamsGroupMetadataKey):
        state.remove_group(key.group_id)
    else:
        _DELETE[type(key)](known, key)


def _put_epoch(group: StreamsGroup, key: object, value: StreamsGroupMetadataValue) -> None:
    group.epoch = value.epoch
    group.metadata_hash = value.metadata_hash
    group.validated_epoch = value.validated_topology_epoch
    group.description_epochs = DescriptionEpochs(
        value.stored_description_topology_epoch, value.failed_description_topology_epoch
    )
    group.assignment_configs = {
        each.key: each.value for each in value.last_assignment_configs or ()
    }


def _put_member(
    group: StreamsGroup,
    key: StreamsGroupMemberMetadataKey,
    value: StreamsGroupMemberMetadataValue,
) -> None:
    endpoint = value.user_endpoint
    group.put(
        replace(
            group.members.get(key.member_id) or StreamsGroupMember(key.member_id),
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            topology_epoch=value.topology_epoch,
            process_id=value.process_id,
            endpoint=None if endpoint is None else (endpoint.host, endpoint.port),
            tags=tuple((each.key, each.value) for each in value.client_tags),
        )
    )


def _delete_member(group: StreamsGroup, key: StreamsGroupMemberMetadataKey) -> None:
    group.remove(key.member_id)


def _put_target(
    group: StreamsGroup,
    key: StreamsGroupTargetAssignmentMemberKey,
    value: StreamsGroupTargetAssignmentMemberValue,
) -> None:
    group.targets[key.member_id] = TasksTuple(
        *(
            freeze_tasks((row.subtopology_id, row.partitions) for row in rows)
            for rows in (value.active_tasks, value.standby_tasks, value.warmup_tasks)
        )
    )


def _delete_target(group: StreamsGroup, key: StreamsGroupTargetAssignmentMemberKey) -> None:
    group.targets.pop(key.member_id, None)


def _put_current(
    group: StreamsGroup,
    key: StreamsGroupCurrentMemberAssignmentKey,
    value: StreamsGroupCurrentMemberAssignmentValue,
) -> None:
    known = {each.value for each in StreamsMemberState}
    state = StreamsMemberState(value.state) if value.state in known else StreamsMemberState.UNKNOWN
    epoch = value.member_epoch
    group.put(
        replace(
            group.members.get(key.member_id) or StreamsGroupMember(key.member_id),
            epoch=epoch,
            previous_epoch=value.previous_member_epoch,
            state=state,
            assigned=TasksTupleWithEpochs(
                _active(value.active_tasks, epoch),
                _tasks(value.standby_tasks),
                _tasks(value.warmup_tasks),
            ),
            revoking=TasksTupleWithEpochs(
                _active(value.active_tasks_pending_revocation, epoch),
                _tasks(value.standby_tasks_pending_revocation),
                _tasks(value.warmup_tasks_pending_revocation),
            ),
        )
    )


def _delete_current(group: StreamsGroup, key: StreamsGroupCurrentMemberAssignmentKey) -> None:
    member = group.members.get(key.member_id)
    if member is not None:
        group.put(
            replace(
                member, epoch=NO_EPOCH, previous_epoch=NO_EPOCH, assigned=NOTHING, revoking=NOTHING
            )
        )


def _active(rows: _Rows, epoch: int) -> ActiveTasks:
    """Return tasks with their assignment epochs, or with `epoch` if those are not stored."""
    found: dict[str, dict[int, int]] = {}
    for row in rows:
        epochs = row.assignment_epochs
        if epochs is None or len(epochs) != len(row.partitions):
            epochs = [epoch] * len(row.partitions)
        found[row.subtopology_id] = dict(zip(row.partitions, epochs, strict=True))
    return found or NO_ACTIVE_TASKS


def _tasks(rows: _Rows) -> Tasks:
    return freeze_tasks((row.subtopology_id, row.partitions) for row in rows)


def _put_topology(group: StreamsGroup, key: object, value: StreamsGroupTopologyValue) -> None:
    topology = StreamsTopology(value)
    if topology != group.topology:  # otherwise only the description has changed
        group.configure(None)
    group.topology = topology


def _delete_topology(group: StreamsGroup, key: object) -> None:
    group.topology = None
    group.configure(None)


_PUT: Mapping[type[Key], Callable[[StreamsGroup, Any, Any], None]] = MappingProxyType(
    {
        StreamsGroupMetadataKey: _put_epoch,
        StreamsGroupMemberMetadataKey: _put_member,
        StreamsGroupTargetAssignmentMetadataKey: put_assignment,
        StreamsGroupTargetAssignmentMemberKey: _put_target,
        StreamsGroupCurrentMemberAssignmentKey: _put_current,
        StreamsGroupTopologyKey: _put_topology,
    }
)
_DELETE: Mapping[type[Key], Callable[[StreamsGroup, Any], None]] = MappingProxyType(
    {
        StreamsGroupMemberMetadataKey: _delete_member,
        StreamsGroupTargetAssignmentMetadataKey: delete_assignment,
        StreamsGroupTargetAssignmentMemberKey: _delete_target,
        StreamsGroupCurrentMemberAssignmentKey: _delete_current,
        StreamsGroupTopologyKey: _delete_topology,
    }
)
