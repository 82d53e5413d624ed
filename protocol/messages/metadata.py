"""Topics, partitions and brokers."""

from ..schema import ZERO_UUID, Int16, Int32, Uuid, message, struct, wire


@message(key=3, versions="0-13", flexible="9+")
class MetadataRequest:
    """Request for the brokers, and for the partitions of some or all topics.

    In version 0 an empty array means all topics, in later versions null.
    """

    @struct
    class Topic:
        topic_id: Uuid = wire(since=10)
        """ID of a topic with a null name (KIP-516)."""
        name: str | None = wire(nullable_since=10)

    topics: list[Topic] | None = wire(nullable_since=1)
    """Null means all topics; see the class for version 0."""
    allow_auto_topic_creation: bool = wire(since=4, default=True)
    include_cluster_authorized_operations: bool = wire(since=8, until=10)
    """KIP-430; moved to DescribeCluster by KIP-700."""
    include_topic_authorized_operations: bool = wire(since=8)


@message(key=3, versions="0-13", flexible="9+")
class MetadataResponse:
    """The cluster metadata of the responding broker."""

    @struct
    class Broker:
        node_id: Int32 = 0
        host: str = ""
        port: Int32 = 0
        rack: str | None = wire(since=1)

    @struct
    class Partition:
        error_code: Int16 = 0
        partition_index: Int32 = 0
        leader_id: Int32 = 0
        leader_epoch: Int32 = wire(since=7, default=-1)
        replica_nodes: list[Int32] = wire()
        isr_nodes: list[Int32] = wire()
        offline_replicas: list[Int32] = wire(since=5)

    @struct
    class Topic:
        error_code: Int16 = 0
        name: str | None = wire(nullable_since=12)
        """Null for a requested ID that does not exist."""
        topic_id: Uuid = wire(since=10)
        is_internal: bool = wire(since=1)
        partitions: list["MetadataResponse.Partition"] = wire()
        topic_authorized_operations: Int32 = wire(since=8, default=-(2**31))
        """Bit set; the minimum int32 if it was not requested (KIP-430)."""

    throttle_time_ms: Int32 = wire(since=3)
    brokers: list[Broker] = wire()
    cluster_id: str | None = wire(since=2)
    controller_id: Int32 = wire(since=1, default=-1)
    topics: list[Topic] = wire()
    cluster_authorized_operations: Int32 = wire(since=8, until=10, default=-(2**31))
    """Bit set; the minimum int32 if it was not requested (KIP-430)."""
    error_code: Int16 = wire(since=13)


@message(key=75, versions="0", flexible="0+")
class DescribeTopicPartitionsRequest:
    """Request for a page of the partitions of topics (KIP-966)."""

    @struct
    class Topic:
        name: str = ""

    @struct
    class Cursor:
        """The first partition of a page."""

        topic_name: str = ""
        partition_index: Int32 = 0

    topics: list[Topic] = wire()
    response_partition_limit: Int32 = 2000
    cursor: Cursor | None = None


@message(key=75, versions="0", flexible="0+")
class DescribeTopicPartitionsResponse:
    """A page of partitions; `next_cursor` is the start of the next page."""

    @struct
    class Partition:
        error_code: Int16 = 0
        partition_index: Int32 = 0
        leader_id: Int32 = 0
        leader_epoch: Int32 = -1
        replica_nodes: list[Int32] = wire()
        isr_nodes: list[Int32] = wire()
        eligible_leader_replicas: list[Int32] | None = None
        last_known_elr: list[Int32] | None = None
        offline_replicas: list[Int32] = wire()

    @struct
    class Topic:
        error_code: Int16 = 0
        name: str | None = None
        topic_id: Uuid = ZERO_UUID
        is_internal: bool = False
        partitions: list["DescribeTopicPartitionsResponse.Partition"] = wire()
        topic_authorized_operations: Int32 = -(2**31)

    @struct
    class Cursor:
        """The first partition of a page."""

        topic_name: str = ""
        partition_index: Int32 = 0

    throttle_time_ms: Int32 = 0
    topics: list[Topic] = wire()
    next_cursor: Cursor | None = None
