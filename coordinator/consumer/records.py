"""Records of consumer groups. `replay` is the counterpart."""

from __future__ import annotations

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
    ConsumerGroupTargetAssignmentMetadataValue,
)

from ..common.modern_group import Assigned, Target
from ..common.record import CoordinatorRecord
from .group import (
    ClassicMemberMetadata,
    ConsumerGroup,
    ConsumerGroupMember,
    ResolvedRegularExpression,
)


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    """Return the record of a group epoch."""
    value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return CoordinatorRecord(ConsumerGroupMetadataKey(group_id=group_id), value)


def topics_tombstone(group_id: str) -> CoordinatorRecord:
    """Return the tombstone of the topic metadata that Kafka before 4.1 stored."""
    return CoordinatorRecord(ConsumerGroupPartitionMetadataKey(group_id=group_id), None)


def member_record(group_id: str, member: ConsumerGroupMember) -> CoordinatorRecord:
    """Return the record of a member's metadata and subscription."""
    value = ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.pattern,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.assignor,
        classic_member_metadata=None if member.classic is None else _classic(member.classic),
    )
    return CoordinatorRecord(
        ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.id), value
    )


def current_record(group_id: str, member: ConsumerGroupMember) -> CoordinatorRecord:
    """Return the record of a member's current assignment."""
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state.value,
        assigned_partitions=_assigned(member.assigned),
        partitions_pending_revocation=_assigned(member.revoking),
    )
    key = ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.id)
    return CoordinatorRecord(key, value)


def target_record(group_id: str, member_id: str, target: Target) -> CoordinatorRecord:
    """Return the record of a member's target assignment."""
    cls = ConsumerGroupTargetAssignmentMemberValue
    rows = [
        cls.TopicPartition(topic_id=topic_id, partitions=sorted(target[topic_id]))
        for topic_id in sorted(target, key=lambda each: each.int)
    ]
    key = ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    return CoordinatorRecord(key, cls(topic_partitions=rows))


def target_epoch_record(group_id: str, epoch: int, at_ms: int) -> CoordinatorRecord:
    """Return the record of the target assignment's epoch and time (ms since 1970; 0 if unknown)."""
    value = ConsumerGroupTargetAssignmentMetadataValue(
        assignment_epoch=epoch, assignment_timestamp=at_ms
    )
    return CoordinatorRecord(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def resolved_record(
    group_id: str, pattern: str, resolved: ResolvedRegularExpression
) -> CoordinatorRecord:
    """Return the record of a resolved regular expression."""
    value = ConsumerGroupRegularExpressionValue(
        topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.at_ms
    )
    return CoordinatorRecord(_pattern_key(group_id, pattern), value)


def resolved_tombstone(group_id: str, pattern: str) -> CoordinatorRecord:
    """Return the tombstone of a regular expression that no member uses any more."""
    return CoordinatorRecord(_pattern_key(group_id, pattern), None)


def member_tombstones(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    """Return the records that delete a member."""
    keys = (
        ConsumerGroupCurrentMemberAssignmentKey,
        ConsumerGroupTargetAssignmentMemberKey,
        ConsumerGroupMemberMetadataKey,
    )
    return [CoordinatorRecord(cls(group_id=group_id, member_id=member_id), None) for cls in keys]


def group_tombstones(group: ConsumerGroup) -> list[CoordinatorRecord]:
    """Return the records that delete a group and its members, without its offsets."""
    records = []
    for member_id in dict.fromkeys((*group.members, *group.targets)):
        records += member_tombstones(group.id, member_id)
    records += [resolved_tombstone(group.id, pattern) for pattern in group.resolved]
    records.append(
        CoordinatorRecord(ConsumerGroupTargetAssignmentMetadataKey(group_id=group.id), None)
    )
    if group.has_topics_record:
        records.append(topics_tombstone(group.id))
    records.append(CoordinatorRecord(ConsumerGroupMetadataKey(group_id=group.id), None))
    return records


def whole_group(group: ConsumerGroup, at_ms: int) -> list[CoordinatorRecord]:
    """Return all records of a consumer group that replaces a classic group.

    Args:
        group: The group.
        at_ms: Time of the target assignment in ms since 1970, or 0 if unknown.
    """
    members = group.members.values()
    return [
        *(member_record(group.id, member) for member in members),
        epoch_record(group.id, group.epoch, group.metadata_hash),
        *(target_record(group.id, each, target) for each, target in group.targets.items()),
        target_epoch_record(group.id, group.assignment_epoch, at_ms),
        *(current_record(group.id, member) for member in members),
    ]


def _pattern_key(group_id: str, pattern: str) -> ConsumerGroupRegularExpressionKey:
    return ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=pattern)


def _classic(side: ClassicMemberMetadata) -> ConsumerGroupMemberMetadataValue.ClassicMemberMetadata:
    cls = ConsumerGroupMemberMetadataValue
    return cls.ClassicMemberMetadata(
        session_timeout_ms=side.session_timeout_ms,
        supported_protocols=[
            cls.ClassicProtocol(name=name, metadata=metadata) for name, metadata in side.protocols
        ],
    )


def _assigned(
    assigned: Assigned,
) -> list[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions]:
    return [
        ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions(
            topic_id=topic_id,
            partitions=list(partitions),
            assignment_epochs=list(partitions.values()),
        )
        for topic_id, partitions in assigned.items()
    ]
