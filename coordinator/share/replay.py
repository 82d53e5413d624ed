"""Replay of share group records. This is the only code that changes their persistent state.

As for consumer groups, no record depends on the presence of another one, because compaction removes
overwritten records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from kbroker.protocol.share_group_metadata import (
    Key,
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
)

from ..common.modern_group import (
    NO_EPOCH,
    NO_TARGET,
    MemberState,
    delete_assignment,
    put_assignment,
)
from ..common.record import RecordValue
from ..state import ShardState
from .group import SharedState, SharedTopic, SharedTopics, ShareGroup, ShareGroupMember


def replay_share_group(state: ShardState, key: Key, value: RecordValue | None) -> None:
    """Apply one record of a share group."""
    if value is not None:
        group = state.find_group(key.group_id, ShareGroup) or state.add_group(
            ShareGroup(key.group_id)
        )
        _PUT[type(key)](group, key, value)
        return
    known = state.find_group(key.group_id, ShareGroup)
    if known is None:
        return
    if isinstance(key, ShareGroupMetadataKey):
        state.remove_group(key.group_id)
    else:
        _DELETE[type(key)](known, key)


def _put_epoch(group: ShareGroup, key: object, value: ShareGroupMetadataValue) -> None:
    group.epoch = value.epoch
    group.metadata_hash = value.metadata_hash


def _put_member(
    group: ShareGroup, key: ShareGroupMemberMetadataKey, value: ShareGroupMemberMetadataValue
) -> None:
    group.put(
        replace(
            group.members.get(key.member_id) or ShareGroupMember(key.member_id),
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topics=frozenset(value.subscribed_topic_names),
        )
    )


def _delete_member(group: ShareGroup, key: ShareGroupMemberMetadataKey) -> None:
    group.remove(key.member_id)


def _put_target(
    group: ShareGroup,
    key: ShareGroupTargetAssignmentMemberKey,
    value: ShareGroupTargetAssignmentMemberValue,
) -> None:
    group.put_target(
        key.member_id,
        {row.topic_id: frozenset(row.partitions) for row in value.topic_partitions},
    )


def _delete_target(group: ShareGroup, key: ShareGroupTargetAssignmentMemberKey) -> None:
    group.drop_target(key.member_id)


def _put_current(
    group: ShareGroup,
    key: ShareGroupCurrentMemberAssignmentKey,
    value: ShareGroupCurrentMemberAssignmentValue,
) -> None:
    known = {each.value for each in MemberState}
    group.put(
        replace(
            group.members.get(key.member_id) or ShareGroupMember(key.member_id),
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=MemberState(value.state) if value.state in known else MemberState.UNKNOWN,
            assigned={row.topic_id: frozenset(row.partitions) for row in value.assigned_partitions},
        )
    )


def _delete_current(group: ShareGroup, key: ShareGroupCurrentMemberAssignmentKey) -> None:
    member = group.members.get(key.member_id)
    if member is not None:
        group.put(replace(member, epoch=NO_EPOCH, previous_epoch=NO_EPOCH, assigned=NO_TARGET))


def _put_shared(
    group: ShareGroup, key: object, value: ShareGroupStatePartitionMetadataValue
) -> None:
    group.put_shared(
        SharedState(
            _topics(value.initializing_topics),
            _topics(value.initialized_topics),
            {row.topic_id: row.topic_name for row in value.deleting_topics},
        )
    )


def _topics(rows: Iterable[ShareGroupStatePartitionMetadataValue.TopicPartitions]) -> SharedTopics:
    return {row.topic_id: SharedTopic(row.topic_name, frozenset(row.partitions)) for row in rows}


def _delete_shared(group: ShareGroup, key: object) -> None:
    group.drop_shared()


_PUT: Mapping[type[Key], Callable[[ShareGroup, Any, Any], None]] = MappingProxyType(
    {
        ShareGroupMetadataKey: _put_epoch,
        ShareGroupMemberMetadataKey: _put_member,
        ShareGroupTargetAssignmentMetadataKey: put_assignment,
        ShareGroupTargetAssignmentMemberKey: _put_target,
        ShareGroupCurrentMemberAssignmentKey: _put_current,
        ShareGroupStatePartitionMetadataKey: _put_shared,
    }
)
_DELETE: Mapping[type[Key], Callable[[ShareGroup, Any], None]] = MappingProxyType(
    {
        ShareGroupMemberMetadataKey: _delete_member,
        ShareGroupTargetAssignmentMetadataKey: delete_assignment,
        ShareGroupTargetAssignmentMemberKey: _delete_target,
        ShareGroupCurrentMemberAssignmentKey: _delete_current,
        ShareGroupStatePartitionMetadataKey: _delete_shared,
    }
)
