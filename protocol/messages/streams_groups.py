"""Streams groups (KIP-1071)."""

from ..schema import Int8, Int16, Int32, Int64, Uint16, message, struct, wire


@struct
class TopologyDescriptionNode:
    """A node of the processing graph: 1 source, 2 processor, 3 sink."""

    name: str = ""
    node_type: Int8 = 0
    source_topics: list[str] = wire()
    sink_topic: str | None = None
    stores: list[str] = wire()
    successors: list[str] = wire()


@struct
class TopologyDescriptionSubtopology:
    """The nodes of a subtopology."""

    subtopology_id: str = ""
    nodes: list[TopologyDescriptionNode] = wire()


@struct
class TopologyDescriptionGlobalStore:
    """A global state store: its source and the processor that fills it."""

    source: TopologyDescriptionNode = wire()
    processor: TopologyDescriptionNode = wire()


@message(versions="0", flexible="0+")
class TopologyDescription:
    """The processing graph of a streams application (KIP-1331)."""

    subtopologies: list[TopologyDescriptionSubtopology] = wire()
    global_stores: list[TopologyDescriptionGlobalStore] = wire()


@message(key=88, versions="0-1", flexible="0+")
class StreamsGroupHeartbeatRequest:
    """Heartbeat of a streams group member, to join, stay, report tasks or leave (KIP-1071)."""

    @struct
    class KeyValue:
        key: str = ""
        value: str = ""

    @struct
    class TopicInfo:
        """An internal topic."""

        name: str = ""
        partitions: Int32 = 0
        replication_factor: Int16 = 0
        topic_configs: list["StreamsGroupHeartbeatRequest.KeyValue"] = wire()

    @struct
    class CopartitionGroup:
        """Topics with equal partition counts, as indexes into the lists of the subtopology."""

        source_topics: list[Int16] = wire()
        source_topic_regex: list[Int16] = wire()
        repartition_source_topics: list[Int16] = wire()

    @struct
    class Subtopology:
        """A part of the topology; each of its partitions is one task."""

        subtopology_id: str = ""
        source_topics: list[str] = wire()
        source_topic_regex: list[str] = wire()
        state_changelog_topics: list["StreamsGroupHeartbeatRequest.TopicInfo"] = wire()
        repartition_sink_topics: list[str] = wire()
        repartition_source_topics: list["StreamsGroupHeartbeatRequest.TopicInfo"] = wire()
        copartition_groups: list["StreamsGroupHeartbeatRequest.CopartitionGroup"] = wire()

    @struct
    class Topology:
        epoch: Int32 = 0
        subtopologies: list["StreamsGroupHeartbeatRequest.Subtopology"] = wire()

    @struct
    class TaskIds:
        """Tasks of one subtopology."""

        subtopology_id: str = ""
        partitions: list[Int32] = wire()

    @struct
    class Endpoint:
        """Address of an instance for interactive queries."""

        host: str = ""
        port: Uint16 = 0

    @struct
    class TaskOffset:
        """Offset of a task."""

        subtopology_id: str = ""
        partition: Int32 = 0
        offset: Int64 = 0

    group_id: str = ""
    member_id: str = ""
    member_epoch: Int32 = 0
    endpoint_information_epoch: Int32 = 0
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: Int32 = -1
    topology: Topology | None = None
    active_tasks: list[TaskIds] | None = None
    standby_tasks: list[TaskIds] | None = None
    warmup_tasks: list[TaskIds] | None = None
    process_id: str | None = None
    user_endpoint: Endpoint | None = None
    client_tags: list[KeyValue] | None = None
    task_offsets: list[TaskOffset] | None = None
    task_end_offsets: list[TaskOffset] | None = None
    shutdown_application: bool = False


@message(key=88, versions="0-1", flexible="0+")
class StreamsGroupHeartbeatResponse:
    """The member's epoch and, if they changed, its tasks."""

    @struct
    class Status:
        """A problem of the group."""

        status_code: Int8 = 0
        status_detail: str = ""

    @struct
    class TaskIds:
        """Tasks of one subtopology."""

        subtopology_id: str = ""
        partitions: list[Int32] = wire()

    @struct
    class Endpoint:
        """Address of an instance for interactive queries."""

        host: str = ""
        port: Uint16 = 0

    @struct
    class TopicPartition:
        topic: str = ""
        partitions: list[Int32] = wire()

    @struct
    class EndpointPartitions:
        """The partitions of the instance at an endpoint."""

        user_endpoint: "StreamsGroupHeartbeatResponse.Endpoint" = wire()
        active_partitions: list["StreamsGroupHeartbeatResponse.TopicPartition"] = wire()
        standby_partitions: list["StreamsGroupHeartbeatResponse.TopicPartition"] = wire()

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    member_id: str = ""
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    acceptable_recovery_lag_legacy: Int32 = wire(until=0)
    task_offset_interval_ms: Int32 = 0
    acceptable_recovery_lag: Int64 = wire(since=1, default=-1)
    status: list[Status] | None = None
    active_tasks: list[TaskIds] | None = None
    standby_tasks: list[TaskIds] | None = None
    warmup_tasks: list[TaskIds] | None = None
    topology_description_required: bool = wire(since=1)
    endpoint_information_epoch: Int32 = 0
    partitions_by_user_endpoint: list[EndpointPartitions] | None = None


@message(key=89, versions="0-1", flexible="0+")
class StreamsGroupDescribeRequest:
    """Request for the state, topology and members of streams groups (KIP-1071)."""

    group_ids: list[str] = wire()
    include_authorized_operations: bool = False
    include_topology_description: bool = wire(since=1)


@message(key=89, versions="0-1", flexible="0+")
class StreamsGroupDescribeResponse:
    """State, topology and members of streams groups."""

    @struct
    class KeyValue:
        key: str = ""
        value: str = ""

    @struct
    class TopicInfo:
        """An internal topic."""

        name: str = ""
        partitions: Int32 = 0
        replication_factor: Int16 = 0
        topic_configs: list["StreamsGroupDescribeResponse.KeyValue"] = wire()

    @struct
    class Subtopology:
        """A part of the topology; each of its partitions is one task."""

        subtopology_id: str = ""
        source_topics: list[str] = wire()
        repartition_sink_topics: list[str] = wire()
        state_changelog_topics: list["StreamsGroupDescribeResponse.TopicInfo"] = wire()
        repartition_source_topics: list["StreamsGroupDescribeResponse.TopicInfo"] = wire()

    @struct
    class Topology:
        epoch: Int32 = 0
        subtopologies: list["StreamsGroupDescribeResponse.Subtopology"] | None = None

    @struct
    class Endpoint:
        """Address of an instance for interactive queries."""

        host: str = ""
        port: Uint16 = 0

    @struct
    class TaskOffset:
        """Offset of a task."""

        subtopology_id: str = ""
        partition: Int32 = 0
        offset: Int64 = 0

    @struct
    class TaskIds:
        """Tasks of one subtopology."""

        subtopology_id: str = ""
        partitions: list[Int32] = wire()

    @struct
    class Assignment:
        active_tasks: list["StreamsGroupDescribeResponse.TaskIds"] = wire()
        standby_tasks: list["StreamsGroupDescribeResponse.TaskIds"] = wire()
        warmup_tasks: list["StreamsGroupDescribeResponse.TaskIds"] = wire()

    @struct
    class Member:
        member_id: str = ""
        member_epoch: Int32 = 0
        instance_id: str | None = None
        rack_id: str | None = None
        client_id: str = ""
        client_host: str = ""
        topology_epoch: Int32 = 0
        process_id: str = ""
        user_endpoint: "StreamsGroupDescribeResponse.Endpoint | None" = None
        client_tags: list["StreamsGroupDescribeResponse.KeyValue"] = wire()
        task_offsets: list["StreamsGroupDescribeResponse.TaskOffset"] = wire()
        task_end_offsets: list["StreamsGroupDescribeResponse.TaskOffset"] = wire()
        assignment: "StreamsGroupDescribeResponse.Assignment" = wire()
        target_assignment: "StreamsGroupDescribeResponse.Assignment" = wire()
        is_classic: bool = False

    @struct
    class Group:
        error_code: Int16 = 0
        error_message: str | None = None
        group_id: str = ""
        group_state: str = ""
        group_epoch: Int32 = 0
        assignment_epoch: Int32 = 0
        topology: "StreamsGroupDescribeResponse.Topology | None" = None
        members: list["StreamsGroupDescribeResponse.Member"] = wire()
        authorized_operations: Int32 = -(2**31)
        topology_description: TopologyDescription | None = wire(since=1, default=None)
        # 0 not requested, 1 not stored, 2 error, 3 available.
        topology_description_status: Int8 = wire(since=1)
        assignor_name: str | None = wire(since=1, default=None)

    throttle_time_ms: Int32 = 0
    groups: list[Group] = wire()


@message(key=93, versions="0", flexible="0+")
class StreamsGroupTopologyDescriptionUpdateRequest:
    """A member's description of the topology of its group (KIP-1331)."""

    group_id: str = ""
    member_id: str = ""
    topology_epoch: Int32 = 0
    topology_description: TopologyDescription = wire()


@message(key=93, versions="0", flexible="0+")
class StreamsGroupTopologyDescriptionUpdateResponse:
    """The error of a description that was not stored."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
