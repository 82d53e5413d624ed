"""The metadata quorum."""

from ..schema import ZERO_UUID, Int16, Int32, Int64, Uint16, Uuid, message, struct, wire


@message(key=55, versions="0-2", flexible="0+")
class DescribeQuorumRequest:
    """Request for the state of the metadata quorum (KIP-595)."""

    @struct
    class Partition:
        partition_index: Int32 = 0

    @struct
    class Topic:
        topic_name: str = ""
        partitions: list["DescribeQuorumRequest.Partition"] = wire()

    topics: list[Topic] = wire()


@message(key=55, versions="0-2", flexible="0+")
class DescribeQuorumResponse:
    """Leader, voters and observers of the metadata quorum."""

    @struct
    class Replica:
        """Replication progress of a voter or observer."""

        replica_id: Int32 = 0
        replica_directory_id: Uuid = wire(since=2)
        log_end_offset: Int64 = 0
        last_fetch_timestamp: Int64 = wire(since=1, default=-1)
        last_caught_up_timestamp: Int64 = wire(since=1, default=-1)

    @struct
    class Partition:
        partition_index: Int32 = 0
        error_code: Int16 = 0
        error_message: str | None = wire(since=2)
        leader_id: Int32 = 0
        leader_epoch: Int32 = 0
        high_watermark: Int64 = 0
        current_voters: list["DescribeQuorumResponse.Replica"] = wire()
        observers: list["DescribeQuorumResponse.Replica"] = wire()

    @struct
    class Topic:
        topic_name: str = ""
        partitions: list["DescribeQuorumResponse.Partition"] = wire()

    @struct
    class Listener:
        name: str = ""
        host: str = ""
        port: Uint16 = 0

    @struct
    class Node:
        node_id: Int32 = 0
        listeners: list["DescribeQuorumResponse.Listener"] = wire()

    error_code: Int16 = 0
    error_message: str | None = wire(since=2)
    topics: list[Topic] = wire()
    nodes: list[Node] = wire(since=2)


@message(key=80, versions="0-1", flexible="0+")
class AddRaftVoterRequest:
    """Request to add a voter to the metadata quorum (KIP-853)."""

    @struct
    class Listener:
        name: str = ""
        host: str = ""
        port: Uint16 = 0

    cluster_id: str | None = None
    timeout_ms: Int32 = 0
    voter_id: Int32 = 0
    voter_directory_id: Uuid = ZERO_UUID
    listeners: list[Listener] = wire()
    ack_when_committed: bool = wire(since=1, default=True)


@message(key=80, versions="0-1", flexible="0+")
class AddRaftVoterResponse:
    """Outcome of an `AddRaftVoterRequest`."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None


@message(key=81, versions="0", flexible="0+")
class RemoveRaftVoterRequest:
    """Request to remove a voter from the metadata quorum (KIP-853)."""

    cluster_id: str | None = None
    voter_id: Int32 = 0
    voter_directory_id: Uuid = ZERO_UUID


@message(key=81, versions="0", flexible="0+")
class RemoveRaftVoterResponse:
    """Outcome of a `RemoveRaftVoterRequest`."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None


@message(key=94, versions="0", flexible="0+")
class UnregisterControllerRequest:
    """Request to remove the registration of a controller that is down (KIP-1312)."""

    controller_id: Int32 = 0


@message(key=94, versions="0", flexible="0+")
class UnregisterControllerResponse:
    """Outcome of an `UnregisterControllerRequest`."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
