"""The records that keep share groups of KIP-932 in `__consumer_offsets`.

As with `consumer_group_metadata`, the int16 in front of a key says what kind of record it is:

    10  one member: who it is and what it subscribes to
    11  the group: its epoch
    12  the target assignment: of which epoch it is
    13  the target of one member
    14  what one member has now
    15  the partitions of which the group has a state with the share coordinator, or is to have one

A null value (tombstone) takes the entry away. Values are written as Kafka 4.3 writes them.
"""

from __future__ import annotations

from typing import TypeAlias

from .schema import ZERO_UUID, Int8, Int32, Int64, Uuid, message, wire
from .schema import struct as nested
from .versioned import RecordKinds

VALUE_VERSION = 0


@message(versions="10-10")
class ShareGroupMemberMetadataKey:
    """The member that a `ShareGroupMemberMetadataValue` is about."""

    group_id: str
    member_id: str


@message(versions="0-0", flexible="0+")
class ShareGroupMemberMetadataValue:
    """What a member said of itself."""

    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: list[str]


@message(versions="11-11")
class ShareGroupMetadataKey:
    """The group that a `ShareGroupMetadataValue` is about."""

    group_id: str


@message(versions="0-0", flexible="0+")
class ShareGroupMetadataValue:
    """The epoch of a group, which rises whenever partitions are to be given out anew."""

    epoch: Int32
    metadata_hash: Int64
    """Of the topics that the group reads; who computes another one gives partitions out anew."""


@message(versions="12-12")
class ShareGroupTargetAssignmentMetadataKey:
    """The group that a `ShareGroupTargetAssignmentMetadataValue` is about."""

    group_id: str


@message(versions="0-0", flexible="0+")
class ShareGroupTargetAssignmentMetadataValue:
    """For which epoch of the group the targets are, and when they were made (ms, 0 if not known)."""

    assignment_epoch: Int32
    assignment_timestamp: Int64 = wire(tag=0, default=0)


@message(versions="13-13")
class ShareGroupTargetAssignmentMemberKey:
    """The member that a `ShareGroupTargetAssignmentMemberValue` is about."""

    group_id: str
    member_id: str


@message(versions="0-0", flexible="0+")
class ShareGroupTargetAssignmentMemberValue:
    """What a member shall have in the end."""

    @nested
    class TopicPartition:
        """Partitions of one topic."""

        topic_id: Uuid
        partitions: list[Int32]

    topic_partitions: list[TopicPartition]


@message(versions="14-14")
class ShareGroupCurrentMemberAssignmentKey:
    """The member that a `ShareGroupCurrentMemberAssignmentValue` is about."""

    group_id: str
    member_id: str


@message(versions="0-0", flexible="0+")
class ShareGroupCurrentMemberAssignmentValue:
    """What a member has now."""

    @nested
    class TopicPartitions:
        """Partitions of one topic."""

        topic_id: Uuid
        partitions: list[Int32]

    member_epoch: Int32
    previous_member_epoch: Int32
    state: Int8
    """0: members of share groups have nothing to give back before they get what is new."""
    assigned_partitions: list[TopicPartitions]


@message(versions="15-15")
class ShareGroupStatePartitionMetadataKey:
    """The group that a `ShareGroupStatePartitionMetadataValue` is about."""

    group_id: str


@message(versions="0-0", flexible="0+")
class ShareGroupStatePartitionMetadataValue:
    """How far a group is with the state of its share partitions."""

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
    """The share coordinator is being asked to make their state."""
    initialized_topics: list[TopicPartitions]
    """Their state is there: members may have them."""
    deleting_topics: list[Topic]
    """The share coordinator is being asked to take their state away."""


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
