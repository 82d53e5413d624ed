"""The records of share groups in `__consumer_offsets` (KIP-932).

As in `consumer_group_metadata`, the int16 prefix of a key is the record type:

    10  one member: its identity and subscription
    11  the group: its epoch
    12  the target assignment: its epoch
    13  the target assignment of one member
    14  the current assignment of one member
    15  the partitions whose state the share coordinator has, is initializing or is deleting

A null value (tombstone) removes the entry. Values are written as by Kafka 4.3.
"""

from __future__ import annotations

from typing import TypeAlias

from .schema import ZERO_UUID, Int8, Int32, Int64, Uuid, message, wire
from .schema import struct as nested
from .versioned import RecordKinds

VALUE_VERSION = 0


@message(versions="10-10")
class ShareGroupMemberMetadataKey:
    """The member of a `ShareGroupMemberMetadataValue`."""

    group_id: str
    member_id: str


@message(versions="0-0", flexible="0+")
class ShareGroupMemberMetadataValue:
    """The metadata of a member."""

    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: list[str]


@message(versions="11-11")
class ShareGroupMetadataKey:
    """The group of a `ShareGroupMetadataValue`."""

    group_id: str


@message(versions="0-0", flexible="0+")
class ShareGroupMetadataValue:
    """The epoch of a group, which is bumped whenever a new assignment is needed."""

    epoch: Int32
    metadata_hash: Int64
    """Hash of the topics that the group reads; if it changes, partitions are reassigned."""


@message(versions="12-12")
class ShareGroupTargetAssignmentMetadataKey:
    """The group of a `ShareGroupTargetAssignmentMetadataValue`."""

    group_id: str


@message(versions="0-0", flexible="0+")
class ShareGroupTargetAssignmentMetadataValue:
    """The epoch of the target assignment and its creation time (ms, 0 if unknown)."""

    assignment_epoch: Int32
    assignment_timestamp: Int64 = wire(tag=0, default=0)


@message(versions="13-13")
class ShareGroupTargetAssignmentMemberKey:
    """The member of a `ShareGroupTargetAssignmentMemberValue`."""

    group_id: str
    member_id: str


@message(versions="0-0", flexible="0+")
class ShareGroupTargetAssignmentMemberValue:
    """The target assignment of a member."""

    @nested
    class TopicPartition:
        """Partitions of one topic."""

        topic_id: Uuid
        partitions: list[Int32]

    topic_partitions: list[TopicPartition]


@message(versions="14-14")
class ShareGroupCurrentMemberAssignmentKey:
    """The member of a `ShareGroupCurrentMemberAssignmentValue`."""

    group_id: str
    member_id: str


@message(versions="0-0", flexible="0+")
class ShareGroupCurrentMemberAssignmentValue:
    """The current assignment of a member."""

    @nested
    class TopicPartitions:
        """Partitions of one topic."""

        topic_id: Uuid
        partitions: list[Int32]

    member_epoch: Int32
    previous_member_epoch: Int32
    state: Int8
    """Always 0: members of share groups need not revoke partitions first."""
    assigned_partitions: list[TopicPartitions]


@message(versions="15-15")
class ShareGroupStatePartitionMetadataKey:
    """The group of a `ShareGroupStatePartitionMetadataValue`."""

    group_id: str


@message(versions="0-0", flexible="0+")
class ShareGroupStatePartitionMetadataValue:
    """The partitions of a group by the status of their share state."""

    @nested
    class TopicPartitions:
        """Partitions of one topic."""

        topic_id: Uuid = ZERO_UUID
        topic_name: str = ""
        partitions: list[Int32] = wire()

    @nested
    class Topic:
        """All partitions of one topic."""

        topic_id: Uuid = ZERO_UUID
        topic_name: str = ""

    initializing_topics: list[TopicPartitions]
    """Partitions whose state the share coordinator is initializing."""
    initialized_topics: list[TopicPartitions]
    """Partitions with an initialized state, which can be assigned."""
    deleting_topics: list[Topic]
    """Topics whose state the share coordinator is deleting."""


Key: TypeAlias = (
    ShareGroupMemberMetadataKey
    | ShareGroupMetadataKey
    | ShareGroupTargetAssignmentMetadataKey
    | ShareGroupTargetAssignmentMemberKey
    | ShareGroupCurrentMemberAssignmentKey
    | ShareGroupStatePartitionMetadataKey
)
Value: TypeAlias = (
    ShareGroupMemberMetadataValue
    | ShareGroupMetadataValue
    | ShareGroupTargetAssignmentMetadataValue
    | ShareGroupTargetAssignmentMemberValue
    | ShareGroupCurrentMemberAssignmentValue
    | ShareGroupStatePartitionMetadataValue
)

KINDS: RecordKinds[Key, Value] = RecordKinds(
    {
        10: ShareGroupMemberMetadataKey,
        11: ShareGroupMetadataKey,
        12: ShareGroupTargetAssignmentMetadataKey,
        13: ShareGroupTargetAssignmentMemberKey,
        14: ShareGroupCurrentMemberAssignmentKey,
        15: ShareGroupStatePartitionMetadataKey,
    },
    {
        ShareGroupMemberMetadataKey: ShareGroupMemberMetadataValue,
        ShareGroupMetadataKey: ShareGroupMetadataValue,
        ShareGroupTargetAssignmentMetadataKey: ShareGroupTargetAssignmentMetadataValue,
        ShareGroupTargetAssignmentMemberKey: ShareGroupTargetAssignmentMemberValue,
        ShareGroupCurrentMemberAssignmentKey: ShareGroupCurrentMemberAssignmentValue,
        ShareGroupStatePartitionMetadataKey: ShareGroupStatePartitionMetadataValue,
    },
    VALUE_VERSION,
)
encode_key, encode_value = KINDS.encode_key, KINDS.encode_value
decode_key, decode_value = KINDS.decode_key, KINDS.decode_value
