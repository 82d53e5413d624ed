"""Records of share groups. `replay` is the counterpart."""

from __future__ import annotations

from kbroker.protocol.share_group_metadata import (
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
    ShareGroupTargetAssignmentMetadataValue,
)

from ..common.modern_group import Target
from ..common.record import CoordinatorRecord
from .group import SharedState, SharedTopics, ShareGroup, ShareGroupMember


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    """Return the record of a group epoch."""
    value = ShareGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return CoordinatorRecord(ShareGroupMetadataKey(group_id=group_id), value)


def member_record(group_id: str, member: ShareGroupMember) -> CoordinatorRecord:
    """Return the record of a member's metadata and subscription."""
    value = ShareGroupMemberMetadataValue(
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
    )
    return CoordinatorRecord(
        ShareGroupMemberMetadataKey(group_id=group_id, member_id=member.id), value
    )


def current_record(group_id: str, member: ShareGroupMember) -> CoordinatorRecord:
    """Return the record of a member's current assignment."""
    cls = ShareGroupCurrentMemberAssignmentValue
    value = cls(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state.value,
        assigned_partitions=[
            cls.TopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in member.assigned.items()
        ],
    )
    key = ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.id)
    return CoordinatorRecord(key, value)


def target_record(group_id: str, member_id: str, target: Target) -> CoordinatorRecord:
    """Return the record of a member's target assignment."""
    cls = ShareGroupTargetAssignmentMemberValue
    rows = [
        cls.TopicPartition(topic_id=topic_id, partitions=sorted(target[topic_id]))
        for topic_id in sorted(target, key=lambda each: each.int)
    ]
    key = ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    return CoordinatorRecord(key, cls(topic_partitions=rows))


def target_epoch_record(group_id: str, epoch: int, at_ms: int) -> CoordinatorRecord:
    """Return the record of the target assignment's epoch and time (ms since 1970; 0 if unknown)."""
    value = ShareGroupTargetAssignmentMetadataValue(
        assignment_epoch=epoch, assignment_timestamp=at_ms
    )
    return CoordinatorRecord(ShareGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def shared_record(group_id: str, shared: SharedState) -> CoordinatorRecord:
    """Return the record of the group's share-partition states and their progress."""
    cls = ShareGroupStatePartitionMetadataValue
    value = cls(
        initializing_topics=_rows(shared.initializing),
        initialized_topics=_rows(shared.initialized),
        deleting_topics=[
            cls.Topic(topic_id=topic_id, topic_name=name)
            for topic_id, name in shared.deleting.items()
        ],
    )
    return CoordinatorRecord(ShareGroupStatePartitionMetadataKey(group_id=group_id), value)


def _rows(topics: SharedTopics) -> list[ShareGroupStatePartitionMetadataValue.TopicPartitions]:
    return [
        ShareGroupStatePartitionMetadataValue.TopicPartitions(
            topic_id=topic_id, topic_name=topic.name, partitions=sorted(topic.partitions)
        )
        for topic_id, topic in topics.items()
    ]


def member_tombstones(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    """Return the records that delete a member."""
    keys = (
        ShareGroupCurrentMemberAssignmentKey,
        ShareGroupTargetAssignmentMemberKey,
        ShareGroupMemberMetadataKey,
    )
    return [CoordinatorRecord(cls(group_id=group_id, member_id=member_id), None) for cls in keys]


def group_tombstones(group: ShareGroup) -> list[CoordinatorRecord]:
    """Return the records that delete a group and its members."""
    records = []
    for member_id in dict.fromkeys((*group.members, *group.targets)):
        records += member_tombstones(group.id, member_id)
    records.append(
        CoordinatorRecord(ShareGroupTargetAssignmentMetadataKey(group_id=group.id), None)
    )
    records.append(CoordinatorRecord(ShareGroupStatePartitionMetadataKey(group_id=group.id), None))
    records.append(CoordinatorRecord(ShareGroupMetadataKey(group_id=group.id), None))
    return records
