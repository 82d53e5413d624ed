"""Replay of consumer group records. This is the only code that changes their persistent state.

The records of one group are applied one by one, in log order. After compaction, records that were
overwritten or deleted later are missing. So no record depends on the presence of another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any
from uuid import UUID

from kbroker.protocol.consumer_group_metadata import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    Key,
)

from ..common.modern_group import (
    NO_EPOCH,
    NOTHING,
    Assigned,
    MemberState,
    delete_assignment,
    put_assignment,
)
from ..common.record import RecordValue
from ..state import ShardState
from .group import (
    ClassicMemberMetadata,
    ConsumerGroup,
    ConsumerGroupMember,
    ResolvedRegularExpression,
)

_STATES = MappingProxyType({each.value: each for each in MemberState})


def replay_consumer_group(state: ShardState, key: Key, value: RecordValue | None) -> None:
    """Apply one record of a consumer group."""
    if value is not None:
        group = state.find_group(key.group_id, ConsumerGroup) or state.add_group(
            ConsumerGroup(key.group_id)
        )
        _PUT[type(key)](group, key, value)
        return
    known = state.find_group(key.group_id, ConsumerGroup)
    if known is None:
        return
    if isinstance(key, ConsumerGroupMetadataKey):
        state.remove_group(key.group_id)
    else:
        _DELETE[type(key)](known, key)


def _put_epoch(group: ConsumerGroup, key: object, value: ConsumerGroupMetadataValue) -> None:
    group.epoch = value.epoch
    group.metadata_hash = value.metadata_hash


def _put_topics(group: ConsumerGroup, key: object, value: object) -> None:
    group.has_topics_record = True


def _delete_topics(group: ConsumerGroup, key: object) -> None:
    group.has_topics_record = False


def _get_or_create_member(group: ConsumerGroup, member_id: str) -> ConsumerGroupMember:
    return group.members.get(member_id) or ConsumerGroupMember(member_id)


def _put_member(
    group: ConsumerGroup,
    key: ConsumerGroupMemberMetadataKey,
    value: ConsumerGroupMemberMetadataValue,
) -> None:
    side = value.classic_member_metadata
    group.put(
        _get_or_create_member(group, key.member_id)._replace(
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            assignor=value.server_assignor,
            topics=frozenset(value.subscribed_topic_names),
            pattern=value.subscribed_topic_regex,
            classic=None if side is None else _classic(side),
        )
    )


def _classic(side: ConsumerGroupMemberMetadataValue.ClassicMemberMetadata) -> ClassicMemberMetadata:
    protocols = ((each.name, bytes(each.metadata)) for each in side.supported_protocols)
    return ClassicMemberMetadata(side.session_timeout_ms, tuple(protocols))


def _delete_member(group: ConsumerGroup, key: ConsumerGroupMemberMetadataKey) -> None:
    group.remove(key.member_id)


def _put_target(
    group: ConsumerGroup,
    key: ConsumerGroupTargetAssignmentMemberKey,
    value: ConsumerGroupTargetAssignmentMemberValue,
) -> None:
    group.targets[key.member_id] = {
        row.topic_id: frozenset(row.partitions) for row in value.topic_partitions
    }


def _delete_target(group: ConsumerGroup, key: ConsumerGroupTargetAssignmentMemberKey) -> None:
    group.targets.pop(key.member_id, None)


def _put_current(
    group: ConsumerGroup,
    key: ConsumerGroupCurrentMemberAssignmentKey,
    value: ConsumerGroupCurrentMemberAssignmentValue,
) -> None:
    group.put(
        _get_or_create_member(group, key.member_id)._replace(
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=_STATES.get(value.state, MemberState.UNKNOWN),
            assigned=_assigned(value.assigned_partitions, value.member_epoch),
            revoking=_assigned(value.partitions_pending_revocation, value.member_epoch),
        )
    )


def _delete_current(group: ConsumerGroup, key: ConsumerGroupCurrentMemberAssignmentKey) -> None:
    member = group.members.get(key.member_id)
    if member is not None:
        group.put(
            member._replace(
                epoch=NO_EPOCH, previous_epoch=NO_EPOCH, assigned=NOTHING, revoking=NOTHING
            )
        )


def _assigned(
    rows: Iterable[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions], epoch: int
) -> Assigned:
    """Return partitions with their assignment epochs, or with `epoch` if those are not stored."""
    found: dict[UUID, dict[int, int]] = {}
    for row in rows:
        epochs = row.assignment_epochs
        if epochs is None or len(epochs) != len(row.partitions):
            epochs = [max(epoch, 0)] * len(row.partitions)
        found[row.topic_id] = dict(zip(row.partitions, epochs, strict=True))
    return found or NOTHING


def _put_resolved(
    group: ConsumerGroup,
    key: ConsumerGroupRegularExpressionKey,
    value: ConsumerGroupRegularExpressionValue,
) -> None:
    resolved = ResolvedRegularExpression(frozenset(value.topics), value.version, value.timestamp)
    group.resolved[key.regular_expression] = resolved


def _delete_resolved(group: ConsumerGroup, key: ConsumerGroupRegularExpressionKey) -> None:
    group.drop_pattern(key.regular_expression)


_PUT: Mapping[type[Key], Callable[[ConsumerGroup, Any, Any], None]] = MappingProxyType(
    {
        ConsumerGroupMetadataKey: _put_epoch,
        ConsumerGroupPartitionMetadataKey: _put_topics,
        ConsumerGroupMemberMetadataKey: _put_member,
        ConsumerGroupTargetAssignmentMetadataKey: put_assignment,
        ConsumerGroupTargetAssignmentMemberKey: _put_target,
        ConsumerGroupCurrentMemberAssignmentKey: _put_current,
        ConsumerGroupRegularExpressionKey: _put_resolved,
    }
)
_DELETE: Mapping[type[Key], Callable[[ConsumerGroup, Any], None]] = MappingProxyType(
    {
        ConsumerGroupPartitionMetadataKey: _delete_topics,
        ConsumerGroupMemberMetadataKey: _delete_member,
        ConsumerGroupTargetAssignmentMetadataKey: delete_assignment,
        ConsumerGroupTargetAssignmentMemberKey: _delete_target,
        ConsumerGroupCurrentMemberAssignmentKey: _delete_current,
        ConsumerGroupRegularExpressionKey: _delete_resolved,
    }
)
