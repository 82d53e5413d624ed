"""Brokers, features, leader elections and partition reassignments."""

from ..schema import Int8, Int16, Int32, message, struct, wire


@message(key=60, versions="0-2", flexible="0+")
class DescribeClusterRequest:
    """Request for the brokers of the cluster (KIP-700)."""

    include_cluster_authorized_operations: bool = False
    endpoint_type: Int8 = wire(since=1, default=1)
    """1: brokers, 2: controllers (KIP-919)."""
    include_fenced_brokers: bool = wire(since=2)


@message(key=60, versions="0-2", flexible="0+")
class DescribeClusterResponse:
    """The brokers of the cluster."""

    @struct
    class Broker:
        broker_id: Int32 = 0
        host: str = ""
        port: Int32 = 0
        rack: str | None = None
        is_fenced: bool = wire(since=2)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    endpoint_type: Int8 = wire(since=1, default=1)
    cluster_id: str = ""
    controller_id: Int32 = -1
    brokers: list[Broker] = wire()
    cluster_authorized_operations: Int32 = -(2**31)


@message(key=57, versions="0-2", flexible="0+")
class UpdateFeaturesRequest:
    """Request to upgrade or downgrade finalized features (KIP-584)."""

    @struct
    class Feature:
        feature: str = ""
        max_version_level: Int16 = 0
        allow_downgrade: bool = wire(until=0)
        upgrade_type: Int8 = wire(since=1, default=1)
        """1: upgrade, 2: safe downgrade, 3: unsafe downgrade (KIP-778)."""

    timeout_ms: Int32 = 60000
    feature_updates: list[Feature] = wire()
    validate_only: bool = wire(since=1)


@message(key=57, versions="0-2", flexible="0+")
class UpdateFeaturesResponse:
    """Outcome of an `UpdateFeaturesRequest`."""

    @struct
    class Feature:
        feature: str = ""
        error_code: Int16 = 0
        error_message: str | None = None

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    results: list[Feature] = wire(until=1)


@message(key=64, versions="0", flexible="0+")
class UnregisterBrokerRequest:
    """Request to unregister a removed broker (KIP-631)."""

    broker_id: Int32 = 0


@message(key=64, versions="0", flexible="0+")
class UnregisterBrokerResponse:
    """Outcome of an `UnregisterBrokerRequest`."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None


@message(key=43, versions="0-2", flexible="2+")
class ElectLeadersRequest:
    """Request for leader elections; null means all partitions (KIP-183, KIP-460)."""

    @struct
    class Topic:
        topic: str = ""
        partitions: list[Int32] = wire()

    election_type: Int8 = wire(since=1)
    """0: preferred, 1: unclean (KIP-460)."""
    topic_partitions: list[Topic] | None = None
    timeout_ms: Int32 = 60000


@message(key=43, versions="0-2", flexible="2+")
class ElectLeadersResponse:
    """Outcome per partition."""

    @struct
    class Partition:
        partition_id: Int32 = 0
        error_code: Int16 = 0
        error_message: str | None = None

    @struct
    class Topic:
        topic: str = ""
        partition_result: list["ElectLeadersResponse.Partition"] = wire()

    throttle_time_ms: Int32 = 0
    error_code: Int16 = wire(since=1)
    replica_election_results: list[Topic] = wire()


@message(key=45, versions="0-1", flexible="0+")
class AlterPartitionReassignmentsRequest:
    """Request to reassign partitions; null replicas cancel a reassignment (KIP-455)."""

    @struct
    class Partition:
        partition_index: Int32 = 0
        replicas: list[Int32] | None = None

    @struct
    class Topic:
        name: str = ""
        partitions: list["AlterPartitionReassignmentsRequest.Partition"] = wire()

    timeout_ms: Int32 = 60000
    allow_replication_factor_change: bool = wire(since=1, default=True)
    topics: list[Topic] = wire()


@message(key=45, versions="0-1", flexible="0+")
class AlterPartitionReassignmentsResponse:
    """Outcome per partition."""

    @struct
    class Partition:
        partition_index: Int32 = 0
        error_code: Int16 = 0
        error_message: str | None = None

    @struct
    class Topic:
        name: str = ""
        partitions: list["AlterPartitionReassignmentsResponse.Partition"] = wire()

    throttle_time_ms: Int32 = 0
    allow_replication_factor_change: bool = wire(since=1, default=True)
    error_code: Int16 = 0
    error_message: str | None = None
    responses: list[Topic] = wire()


@message(key=46, versions="0", flexible="0+")
class ListPartitionReassignmentsRequest:
    """Request for the ongoing reassignments; null means all topics (KIP-455)."""

    @struct
    class Topic:
        name: str = ""
        partition_indexes: list[Int32] = wire()

    timeout_ms: Int32 = 60000
    topics: list[Topic] | None = None


@message(key=46, versions="0", flexible="0+")
class ListPartitionReassignmentsResponse:
    """Ongoing reassignments."""

    @struct
    class Partition:
        partition_index: Int32 = 0
        replicas: list[Int32] = wire()
        adding_replicas: list[Int32] = wire()
        removing_replicas: list[Int32] = wire()

    @struct
    class Topic:
        name: str = ""
        partitions: list["ListPartitionReassignmentsResponse.Partition"] = wire()

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    topics: list[Topic] = wire()
