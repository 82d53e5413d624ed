"""The records of streams groups in `__consumer_offsets` (KIP-1071).

As in `consumer_group_metadata`, the int16 prefix of a key is the record type:

    17  the group: its epoch
    19  one member: its identity and location
    20  the target assignment: its epoch
    21  the target assignment of one member
    22  the current assignment of one member
    23  the topology of the application

A null value (tombstone) removes the entry. Values are written as by Kafka 4.4: version 0 with the
tagged fields of later releases, which older releases ignore. kbroker adds one tagged field to the
topology, the description (KIP-1331), for which Kafka has no record.
"""

from __future__ import annotations

from typing import TypeAlias

from .schema import Int8, Int16, Int32, Int64, Uint16, message, wire
from .schema import struct as nested
from .versioned import RecordKinds

VALUE_VERSION = 0
# Tag of the topology description: far above the tags of Kafka, which skips unknown tags.
DESCRIPTION_TAG = 10_000


@message(versions="17-17")
class StreamsGroupMetadataKey:
    """The group of a `StreamsGroupMetadataValue`."""

    group_id: str


@message(versions="0-0", flexible="0+")
class StreamsGroupMetadataValue:
    """The epoch of a group, which is bumped whenever a new assignment is needed."""

    @nested
    class AssignmentConfig:
        """A setting of the last assignment."""

        key: str
        value: str

    epoch: Int32
    metadata_hash: Int64 = 0
    """Hash of the topics of the topology; if it changes, tasks are reassigned."""
    validated_topology_epoch: Int32 = wire(tag=0, default=-1)
    """Epoch of the topology whose topics were validated; -1 while topics are missing or invalid."""
    last_assignment_configs: list[StreamsGroupMetadataValue.AssignmentConfig] | None = wire(
        tag=1, default=None
    )
    stored_description_topology_epoch: Int32 = wire(tag=2, default=-1)
    """Epoch of the description that a plugin of Kafka stores, -1 if none, -2 if uncertain."""
    failed_description_topology_epoch: Int32 = wire(tag=3, default=-1)
    """Epoch of the topology whose description was permanently rejected, or -1."""


@message(versions="19-19")
class StreamsGroupMemberMetadataKey:
    """The member of a `StreamsGroupMemberMetadataValue`."""

    group_id: str
    member_id: str


@message(versions="0-0", flexible="0+")
class StreamsGroupMemberMetadataValue:
    """The metadata of a member; the timeout is in ms."""

    @nested
    class Endpoint:
        """Address of an instance for interactive queries."""

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
    """ID of the process (instance), which may have several members."""
    user_endpoint: Endpoint | None = None
    client_tags: list[KeyValue] = wire()


@message(versions="20-20")
class StreamsGroupTargetAssignmentMetadataKey:
    """The group of a `StreamsGroupTargetAssignmentMetadataValue`."""

    group_id: str


@message(versions="0-0", flexible="0+")
class StreamsGroupTargetAssignmentMetadataValue:
    """The epoch of the target assignment and its creation time (ms, 0 if unknown)."""

    assignment_epoch: Int32
    assignment_timestamp: Int64 = wire(tag=0, default=0)


@message(versions="21-21")
class StreamsGroupTargetAssignmentMemberKey:
    """The member of a `StreamsGroupTargetAssignmentMemberValue`."""

    group_id: str
    member_id: str


@message(versions="0-0", flexible="0+")
class StreamsGroupTargetAssignmentMemberValue:
    """The target assignment of a member."""

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
    """The member of a `StreamsGroupCurrentMemberAssignmentValue`."""

    group_id: str
    member_id: str


@message(versions="0-0", flexible="0+")
class StreamsGroupCurrentMemberAssignmentValue:
    """The current assignment of a member, and the tasks that it must revoke."""

    @nested
    class TaskIds:
        """Tasks of one subtopology; active tasks also have the epoch in which each was assigned."""

        subtopology_id: str = ""
        partitions: list[Int32] = wire()
        assignment_epochs: list[Int32] | None = wire(tag=0, default=None)
        """One per partition; otherwise the epochs are ignored."""

    member_epoch: Int32
    previous_member_epoch: Int32
    state: Int8
    """1 stable, 2 unrevoked tasks, 3 unreleased tasks (waits for other members to revoke)."""
    active_tasks: list[TaskIds]
    standby_tasks: list[TaskIds]
    warmup_tasks: list[TaskIds]
    active_tasks_pending_revocation: list[TaskIds]
    standby_tasks_pending_revocation: list[TaskIds]
    warmup_tasks_pending_revocation: list[TaskIds]


@message(versions="23-23")
class StreamsGroupTopologyKey:
    """The group of a `StreamsGroupTopologyValue`."""

    group_id: str


@message(versions="0-0", flexible="0+")
class StreamsGroupTopologyValue:
    """The topology: source topics, state stores and internal topics."""

    @nested
    class TopicConfig:
        """A setting of an internal topic."""

        key: str
        value: str

    @nested
    class TopicInfo:
        """An internal topic; 0 partitions: computed by the coordinator, 0 replicas: the default."""

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
        """A part of the topology; each of its partitions is one task."""

        subtopology_id: str
        source_topics: list[str]
        source_topic_regex: list[str]
        state_changelog_topics: list[StreamsGroupTopologyValue.TopicInfo]
        repartition_sink_topics: list[str]
        repartition_source_topics: list[StreamsGroupTopologyValue.TopicInfo]
        copartition_groups: list[StreamsGroupTopologyValue.CopartitionGroup]

    epoch: Int32
    subtopologies: list[Subtopology]
    description: bytes | None = wire(tag=DESCRIPTION_TAG, default=None)
    """A `TopologyDescription` with its version in front, or None if no member has sent it."""


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
