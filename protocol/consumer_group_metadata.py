"""The records that keep consumer groups of KIP-848 in `__consumer_offsets`.

As with `group_metadata`, the int16 in front of a key says what kind of record it is. A group of this
kind is kept in many small records, so that a change writes only what it changed:

    3   the group: its epoch
    4   what its topics looked like; Kafka wrote it up to 4.0, and takes it away since
    5   one member: who it is and what it subscribes to
    6   the target assignment: of which epoch it is
    7   the target of one member
    8   what one member has now, and how far it is on the way to its target
    16  the topics that a regular expression stood for when somebody looked last

A null value (tombstone) takes the entry away. Values are written as Kafka 4.3 writes them: version 0
with the tagged fields of later releases, which older ones pass over.
"""

from __future__ import annotations

from typing import TypeAlias

from .schema import ZERO_UUID, Int8, Int32, Int64, Uuid, message, wire
from .schema import struct as nested
from .versioned import RecordKinds, UnreadValue

VALUE_VERSION = 0


@message(versions="3-3")
class ConsumerGroupMetadataKey:
    """The group that a `ConsumerGroupMetadataValue` is about."""

    group_id: str


@message(versions="0-0", flexible="0+")
class ConsumerGroupMetadataValue:
    """The epoch of a group, which rises whenever partitions are to be shared anew."""

    epoch: Int32
    metadata_hash: Int64 = wire(tag=0, default=0)
    """Of the topics that the group reads; who computes another one shares partitions anew."""


@message(versions="4-4")
class ConsumerGroupPartitionMetadataKey:
    """The group whose topics are described; what stands in the value is of no use any more."""

    group_id: str


@message(versions="5-5")
class ConsumerGroupMemberMetadataKey:
    """The member that a `ConsumerGroupMemberMetadataValue` is about."""

    group_id: str
    member_id: str


@message(versions="0-0", flexible="0+")
class ConsumerGroupMemberMetadataValue:
    """What a member said of itself; the timeout is in ms."""

    @nested
    class ClassicProtocol:
        """One of the protocols that a member of the classic kind offers."""

        name: str
        metadata: bytes

    @nested
    class ClassicMemberMetadata:
        """What else is known of a member that uses the classic protocol; the timeout is in ms."""

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
    """The group that a `ConsumerGroupTargetAssignmentMetadataValue` is about."""

    group_id: str


@message(versions="0-0", flexible="0+")
class ConsumerGroupTargetAssignmentMetadataValue:
    """For which epoch of the group the targets are, and when they were made (ms, 0 if not known)."""

    assignment_epoch: Int32
    assignment_timestamp: Int64 = wire(tag=0, default=0)


@message(versions="7-7")
class ConsumerGroupTargetAssignmentMemberKey:
    """The member that a `ConsumerGroupTargetAssignmentMemberValue` is about."""

    group_id: str
    member_id: str


@message(versions="0-0", flexible="0+")
class ConsumerGroupTargetAssignmentMemberValue:
    """What a member shall have in the end."""

    @nested
    class TopicPartition:
        """Partitions of one topic."""

        topic_id: Uuid
        partitions: list[Int32]

    topic_partitions: list[TopicPartition]


@message(versions="8-8")
class ConsumerGroupCurrentMemberAssignmentKey:
    """The member that a `ConsumerGroupCurrentMemberAssignmentValue` is about."""

    group_id: str
    member_id: str


@message(versions="0-0", flexible="0+")
class ConsumerGroupCurrentMemberAssignmentValue:
    """What a member has now."""

    @nested
    class TopicPartitions:
        """Partitions of one topic, and in which epoch the member got each."""

        topic_id: Uuid = ZERO_UUID
        partitions: list[Int32] = wire()
        assignment_epochs: list[Int32] | None = wire(tag=0, default=None)
        """As many as partitions; other numbers say nothing (Kafka before 4.3 writes none)."""

    member_epoch: Int32
    previous_member_epoch: Int32
    state: Int8
    """0 stable, 1 it has to give partitions back, 2 it waits for those that others give back."""
    assigned_partitions: list[TopicPartitions]
    partitions_pending_revocation: list[TopicPartitions]


@message(versions="16-16")
class ConsumerGroupRegularExpressionKey:
    """The regular expression that a `ConsumerGroupRegularExpressionValue` is about."""

    group_id: str
    regular_expression: str


@message(versions="0-0", flexible="0+")
class ConsumerGroupRegularExpressionValue:
    """The topics that fit, the version of the cluster's metadata and the time (ms) of the look."""

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
