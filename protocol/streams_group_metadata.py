"""The records that keep streams groups of KIP-1071 in `__consumer_offsets`.

As with `consumer_group_metadata`, the int16 in front of a key says what kind of record it is:

    17  the group: its epoch
    19  one member: who it is and where
    20  the target assignment: of which epoch it is
    21  the target of one member
    22  what one member has now, and how far it is on the way to its target
    23  the topology of the application

A null value (tombstone) takes the entry away. Values are written as Kafka 4.3 writes them: version 0
with the tagged fields of later releases, which older ones pass over.
"""

from __future__ import annotations

from typing import TypeAlias

from .schema import Int8, Int16, Int32, Int64, Uint16, message, wire
from .schema import struct as nested
from .versioned import RecordKinds

VALUE_VERSION = 0


@message(versions="17-17")
class StreamsGroupMetadataKey:
    """The group that a `StreamsGroupMetadataValue` is about."""

    group_id: str


@message(versions="0-0", flexible="0+")
class StreamsGroupMetadataValue:
    """The epoch of a group, which rises whenever tasks are to be shared anew."""

    @nested
    class AssignmentConfig:
        """A setting with which tasks were shared."""

        key: str
        value: str

    epoch: Int32
    metadata_hash: Int64 = 0
    """Of the topics of the topology; who computes another one shares tasks anew."""
    validated_topology_epoch: Int32 = wire(tag=0, default=-1)
    """Of the topology whose topics are as they must be; -1 while they are not."""
    last_assignment_configs: list[StreamsGroupMetadataValue.AssignmentConfig] | None = wire(
        tag=1, default=None
    )


@message(versions="19-19")
class StreamsGroupMemberMetadataKey:
    """The member that a `StreamsGroupMemberMetadataValue` is about."""

    group_id: str
    member_id: str


@message(versions="0-0", flexible="0+")
class StreamsGroupMemberMetadataValue:
    """What a member said of itself; the timeout is in ms."""

    @nested
    class Endpoint:
        """Where an instance answers interactive queries."""

        host: str
        port: Uint16

    @nested
    class KeyValue:
        """A tag of a client."""

        key: str
        value: str

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: Int32 = -1
    topology_epoch: Int32 = 0
    process_id: str = ""
    """Of the instance, which may have several members."""
    user_endpoint: Endpoint | None = None
    client_tags: list[KeyValue] = wire()


@message(versions="20-20")
class StreamsGroupTargetAssignmentMetadataKey:
    """The group that a `StreamsGroupTargetAssignmentMetadataValue` is about."""

    group_id: str


@message(versions="0-0", flexible="0+")
class StreamsGroupTargetAssignmentMetadataValue:
    """For which epoch of the group the targets are, and when they were made (ms, 0 if not known)."""

    assignment_epoch: Int32
    assignment_timestamp: Int64 = wire(tag=0, default=0)


@message(versions="21-21")
class StreamsGroupTargetAssignmentMemberKey:
    """The member that a `StreamsGroupTargetAssignmentMemberValue` is about."""

    group_id: str
    member_id: str


@message(versions="0-0", flexible="0+")
class StreamsGroupTargetAssignmentMemberValue:
    """What a member shall have in the end."""

    @nested
    class TaskIds:
        """Tasks of one subtopology."""

        subtopology_id: str
        partitions: list[Int32]

    active_tasks: list[TaskIds]
    standby_tasks: list[TaskIds]
    warmup_tasks: list[TaskIds]


@message(versions="22-22")
class StreamsGroupCurrentMemberAssignmentKey:
    """The member that a `StreamsGroupCurrentMemberAssignmentValue` is about."""

    group_id: str
    member_id: str


@message(versions="0-0", flexible="0+")
class StreamsGroupCurrentMemberAssignmentValue:
    """What a member has now, and what it has to give back."""

    @nested
    class TaskIds:
        """Tasks of one subtopology, and of active ones in which epoch the member got each."""

        subtopology_id: str = ""
        partitions: list[Int32] = wire()
        assignment_epochs: list[Int32] | None = wire(tag=0, default=None)
        """As many as partitions; other numbers say nothing."""

    member_epoch: Int32
    previous_member_epoch: Int32
    state: Int8
    """1 stable, 2 it has to give tasks back, 3 it waits for those that others give back."""
    active_tasks: list[TaskIds]
    standby_tasks: list[TaskIds]
    warmup_tasks: list[TaskIds]
    active_tasks_pending_revocation: list[TaskIds]
    standby_tasks_pending_revocation: list[TaskIds]
    warmup_tasks_pending_revocation: list[TaskIds]


@message(versions="23-23")
class StreamsGroupTopologyKey:
    """The group that a `StreamsGroupTopologyValue` is about."""

    group_id: str


@message(versions="0-0", flexible="0+")
class StreamsGroupTopologyValue:
    """What the application reads, keeps and writes in between."""

    @nested
    class TopicConfig:
        """A setting of an internal topic."""

        key: str
        value: str

    @nested
    class TopicInfo:
        """An internal topic; 0 partitions are for the coordinator to find out, 0 replicas the default."""

        name: str
        partitions: Int32
        replication_factor: Int16
        topic_configs: list[StreamsGroupTopologyValue.TopicConfig]

    @nested
    class CopartitionGroup:
        """Topics with equal partition counts, as indexes into the lists of the subtopology."""

        source_topics: list[Int16]
        source_topic_regex: list[Int16]
        repartition_source_topics: list[Int16]

    @nested
    class Subtopology:
        """A part of the topology that is assigned as a whole, partition by partition."""

        subtopology_id: str
        source_topics: list[str]
        source_topic_regex: list[str]
        state_changelog_topics: list[StreamsGroupTopologyValue.TopicInfo]
        repartition_sink_topics: list[str]
        repartition_source_topics: list[StreamsGroupTopologyValue.TopicInfo]
        copartition_groups: list[StreamsGroupTopologyValue.CopartitionGroup]

    epoch: Int32
    subtopologies: list[Subtopology]


Key: TypeAlias = (
    StreamsGroupMetadataKey
    | StreamsGroupMemberMetadataKey
    | StreamsGroupTargetAssignmentMetadataKey
    | StreamsGroupTargetAssignmentMemberKey
    | StreamsGroupCurrentMemberAssignmentKey
    | StreamsGroupTopologyKey
)
Value: TypeAlias = (
    StreamsGroupMetadataValue
    | StreamsGroupMemberMetadataValue
    | StreamsGroupTargetAssignmentMetadataValue
    | StreamsGroupTargetAssignmentMemberValue
    | StreamsGroupCurrentMemberAssignmentValue
    | StreamsGroupTopologyValue
)

KINDS: RecordKinds[Key, Value] = RecordKinds(
    {
        17: StreamsGroupMetadataKey,
        19: StreamsGroupMemberMetadataKey,
        20: StreamsGroupTargetAssignmentMetadataKey,
        21: StreamsGroupTargetAssignmentMemberKey,
        22: StreamsGroupCurrentMemberAssignmentKey,
        23: StreamsGroupTopologyKey,
    },
    {
        StreamsGroupMetadataKey: StreamsGroupMetadataValue,
        StreamsGroupMemberMetadataKey: StreamsGroupMemberMetadataValue,
        StreamsGroupTargetAssignmentMetadataKey: StreamsGroupTargetAssignmentMetadataValue,
        StreamsGroupTargetAssignmentMemberKey: StreamsGroupTargetAssignmentMemberValue,
        StreamsGroupCurrentMemberAssignmentKey: StreamsGroupCurrentMemberAssignmentValue,
        StreamsGroupTopologyKey: StreamsGroupTopologyValue,
    },
    VALUE_VERSION,
)
encode_key, encode_value = KINDS.encode_key, KINDS.encode_value
decode_key, decode_value = KINDS.decode_key, KINDS.decode_value
