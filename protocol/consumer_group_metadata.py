"""The records of consumer groups in `__consumer_offsets` (KIP-848).

As in `group_metadata`, the int16 prefix of a key is the record type. The state of a group is stored
in many small records, so that a change writes only the changed ones:

    3   the group: its epoch
    4   the group's topics; written by Kafka up to 4.0, deleted by newer releases
    5   one member: its identity and subscription
    6   the target assignment: its epoch
    7   the target assignment of one member
    8   the current assignment of one member
    16  the topics that matched a regular expression when it was last evaluated

A null value (tombstone) removes the entry. Values are written as by Kafka 4.3: version 0 with the
tagged fields of later releases, which older releases ignore.
"""

from __future__ import annotations

from typing import TypeAlias

from .schema import ZERO_UUID, Int8, Int32, Int64, Uuid, message, wire
from .schema import struct as nested
from .versioned import RecordKinds, UnreadValue

VALUE_VERSION = 0


@message(versions="3-3")
class ConsumerGroupMetadataKey:
    """The group of a `ConsumerGroupMetadataValue`."""

    group_id: str


@message(versions="0-0", flexible="0+")
class ConsumerGroupMetadataValue:
    """The epoch of a group, which is bumped whenever a new assignment is needed."""

    epoch: Int32
    metadata_hash: Int64 = wire(tag=0, default=0)
    """Hash of the topics that the group reads; if it changes, partitions are reassigned."""


@message(versions="4-4")
class ConsumerGroupPartitionMetadataKey:
    """The group whose topics are described; the value is no longer used."""

    group_id: str


@message(versions="5-5")
class ConsumerGroupMemberMetadataKey:
    """The member of a `ConsumerGroupMemberMetadataValue`."""

    group_id: str
    member_id: str


@message(versions="0-0", flexible="0+")
class ConsumerGroupMemberMetadataValue:
    """The metadata of a member; the timeout is in ms."""

    @nested
    class ClassicProtocol:
        """A protocol that a member with the classic protocol supports."""

        name: str
        metadata: bytes

    @nested
    class ClassicMemberMetadata:
        """Additional data of a member with the classic protocol; the timeout is in ms."""

        session_timeout_ms: Int32 = 0
        supported_protocols: list[ConsumerGroupMemberMetadataValue.ClassicProtocol]

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: list[str]
    subscribed_topic_regex: str | None
    rebalance_timeout_ms: Int32 = -1
    server_assignor: str | None
    classic_member_metadata: ClassicMemberMetadata | None = wire(tag=0, default=None)


@message(versions="6-6")
class ConsumerGroupTargetAssignmentMetadataKey:
    """The group of a `ConsumerGroupTargetAssignmentMetadataValue`."""

    group_id: str


@message(versions="0-0", flexible="0+")
class ConsumerGroupTargetAssignmentMetadataValue:
    """The epoch of the target assignment and its creation time (ms, 0 if unknown)."""

    assignment_epoch: Int32
    assignment_timestamp: Int64 = wire(tag=0, default=0)


@message(versions="7-7")
class ConsumerGroupTargetAssignmentMemberKey:
    """The member of a `ConsumerGroupTargetAssignmentMemberValue`."""

    group_id: str
    member_id: str


@message(versions="0-0", flexible="0+")
class ConsumerGroupTargetAssignmentMemberValue:
    """The target assignment of a member."""

    @nested
    class TopicPartition:
        """Partitions of one topic."""

        topic_id: Uuid
        partitions: list[Int32]

    topic_partitions: list[TopicPartition]


@message(versions="8-8")
class ConsumerGroupCurrentMemberAssignmentKey:
    """The member of a `ConsumerGroupCurrentMemberAssignmentValue`."""

    group_id: str
    member_id: str


@message(versions="0-0", flexible="0+")
class ConsumerGroupCurrentMemberAssignmentValue:
    """The current assignment of a member."""

    @nested
    class TopicPartitions:
        """Partitions of one topic, and the epoch in which each was assigned to the member."""

        topic_id: Uuid = ZERO_UUID
        partitions: list[Int32] = wire()
        assignment_epochs: list[Int32] | None = wire(tag=0, default=None)
        """One per partition; otherwise the epochs are ignored (Kafka before 4.3 writes none)."""

    member_epoch: Int32
    previous_member_epoch: Int32
    state: Int8
    """0 stable, 1 unrevoked partitions, 2 unreleased partitions (waits for other members)."""
    assigned_partitions: list[TopicPartitions]
    partitions_pending_revocation: list[TopicPartitions]


@message(versions="16-16")
class ConsumerGroupRegularExpressionKey:
    """The regular expression of a `ConsumerGroupRegularExpressionValue`."""

    group_id: str
    regular_expression: str


@message(versions="0-0", flexible="0+")
class ConsumerGroupRegularExpressionValue:
    """The matching topics, and metadata version and time (ms) of the evaluation."""

    topics: list[str]
    version: Int64
    timestamp: Int64


Key: TypeAlias = (
    ConsumerGroupMetadataKey
    | ConsumerGroupPartitionMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
)
Value: TypeAlias = (
    ConsumerGroupMetadataValue
    | ConsumerGroupMemberMetadataValue
    | ConsumerGroupTargetAssignmentMetadataValue
    | ConsumerGroupTargetAssignmentMemberValue
    | ConsumerGroupCurrentMemberAssignmentValue
    | ConsumerGroupRegularExpressionValue
)

KINDS: RecordKinds[Key, Value] = RecordKinds(
    {
        3: ConsumerGroupMetadataKey,
        4: ConsumerGroupPartitionMetadataKey,
        5: ConsumerGroupMemberMetadataKey,
        6: ConsumerGroupTargetAssignmentMetadataKey,
        7: ConsumerGroupTargetAssignmentMemberKey,
        8: ConsumerGroupCurrentMemberAssignmentKey,
        16: ConsumerGroupRegularExpressionKey,
    },
    {
        ConsumerGroupMetadataKey: ConsumerGroupMetadataValue,
        ConsumerGroupPartitionMetadataKey: UnreadValue,
        ConsumerGroupMemberMetadataKey: ConsumerGroupMemberMetadataValue,
        ConsumerGroupTargetAssignmentMetadataKey: ConsumerGroupTargetAssignmentMetadataValue,
        ConsumerGroupTargetAssignmentMemberKey: ConsumerGroupTargetAssignmentMemberValue,
        ConsumerGroupCurrentMemberAssignmentKey: ConsumerGroupCurrentMemberAssignmentValue,
        ConsumerGroupRegularExpressionKey: ConsumerGroupRegularExpressionValue,
    },
    VALUE_VERSION,
)
encode_key, encode_value = KINDS.encode_key, KINDS.encode_value
decode_key, decode_value = KINDS.decode_key, KINDS.decode_value
