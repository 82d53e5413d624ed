"""Consumer groups with server-side assignment (KIP-848)."""

from ..schema import ZERO_UUID, Int8, Int16, Int32, Uuid, message, struct, wire


@message(key=68, versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatRequest:
    """Heartbeat of a consumer group member, to join, stay, report partitions or leave (KIP-848).

    Null and -1 mean "unchanged since the last heartbeat". Epoch 0 joins, -1 leaves, -2 leaves
    temporarily as a static member.
    """

    @struct
    class Topic:
        topic_id: Uuid = ZERO_UUID
        partitions: list[Int32] = wire()

    group_id: str = ""
    member_id: str = ""
    member_epoch: Int32 = 0
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: list[str] | None = None
    subscribed_topic_regex: str | None = wire(since=1)
    """RE2 syntax, evaluated by the coordinator."""
    server_assignor: str | None = None
    topic_partitions: list[Topic] | None = None


@message(key=68, versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatResponse:
    """The member's epoch and, if it changed, its assignment."""

    @struct
    class Topic:
        topic_id: Uuid = ZERO_UUID
        partitions: list[Int32] = wire()

    @struct
    class Assignment:
        topic_partitions: list["ConsumerGroupHeartbeatResponse.Topic"] = wire()

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: Assignment | None = None


@message(key=69, versions="0-1", flexible="0+")
class ConsumerGroupDescribeRequest:
    """Request for the state and the members of consumer groups (KIP-848)."""

    group_ids: list[str] = wire()
    include_authorized_operations: bool = False


@message(key=69, versions="0-1", flexible="0+")
class ConsumerGroupDescribeResponse:
    """State and members of consumer groups."""

    @struct
    class Topic:
        topic_id: Uuid = ZERO_UUID
        topic_name: str = ""
        partitions: list[Int32] = wire()

    @struct
    class Assignment:
        topic_partitions: list["ConsumerGroupDescribeResponse.Topic"] = wire()

    @struct
    class Member:
        member_id: str = ""
        instance_id: str | None = None
        rack_id: str | None = None
        member_epoch: Int32 = 0
        client_id: str = ""
        client_host: str = ""
        subscribed_topic_names: list[str] = wire()
        subscribed_topic_regex: str | None = None
        assignment: "ConsumerGroupDescribeResponse.Assignment" = wire()
        target_assignment: "ConsumerGroupDescribeResponse.Assignment" = wire()
        member_type: Int8 = wire(since=1, default=-1)

    @struct
    class Group:
        error_code: Int16 = 0
        error_message: str | None = None
        group_id: str = ""
        group_state: str = ""
        group_epoch: Int32 = 0
        assignment_epoch: Int32 = 0
        assignor_name: str = ""
        members: list["ConsumerGroupDescribeResponse.Member"] = wire()
        authorized_operations: Int32 = -(2**31)

    throttle_time_ms: Int32 = 0
    groups: list[Group] = wire()
