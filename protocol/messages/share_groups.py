"""Share groups (KIP-932)."""

from ..schema import ZERO_UUID, Int8, Int16, Int32, Int64, Records, Uuid, message, struct, wire


@message(key=76, versions="1", flexible="0+")
class ShareGroupHeartbeatRequest:
    """Heartbeat of a share group member, to join, stay or leave (KIP-932)."""

    group_id: str = ""
    member_id: str = ""
    member_epoch: Int32 = 0
    rack_id: str | None = None
    subscribed_topic_names: list[str] | None = None


@message(key=76, versions="1", flexible="0+")
class ShareGroupHeartbeatResponse:
    """The member's epoch and, if it changed, its assignment."""

    @struct
    class Topic:
        topic_id: Uuid = ZERO_UUID
        partitions: list[Int32] = wire()

    @struct
    class Assignment:
        topic_partitions: list["ShareGroupHeartbeatResponse.Topic"] = wire()

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: Assignment | None = None


@message(key=77, versions="1", flexible="0+")
class ShareGroupDescribeRequest:
    """Request for the state and the members of share groups (KIP-932)."""

    group_ids: list[str] = wire()
    include_authorized_operations: bool = False


@message(key=77, versions="1", flexible="0+")
class ShareGroupDescribeResponse:
    """State and members of share groups."""

    @struct
    class Topic:
        topic_id: Uuid = ZERO_UUID
        topic_name: str = ""
        partitions: list[Int32] = wire()

    @struct
    class Assignment:
        topic_partitions: list["ShareGroupDescribeResponse.Topic"] = wire()

    @struct
    class Member:
        member_id: str = ""
        rack_id: str | None = None
        member_epoch: Int32 = 0
        client_id: str = ""
        client_host: str = ""
        subscribed_topic_names: list[str] = wire()
        assignment: "ShareGroupDescribeResponse.Assignment" = wire()

    @struct
    class Group:
        error_code: Int16 = 0
        error_message: str | None = None
        group_id: str = ""
        group_state: str = ""
        group_epoch: Int32 = 0
        assignment_epoch: Int32 = 0
        assignor_name: str = ""
        members: list["ShareGroupDescribeResponse.Member"] = wire()
        authorized_operations: Int32 = -(2**31)

    throttle_time_ms: Int32 = 0
    groups: list[Group] = wire()


@message(key=78, versions="1-2", flexible="0+")
class ShareFetchRequest:
    """Request to acquire records as a share group member, and to acknowledge others (KIP-932)."""

    @struct
    class AcknowledgementBatch:
        """A range of offsets, and the acknowledgement types of its records."""

        first_offset: Int64 = 0
        last_offset: Int64 = 0
        acknowledge_types: list[Int8] = wire()
        """0 gap, 1 accept, 2 release, 3 reject, 4 renew; one for all or one per record."""

    @struct
    class Partition:
        partition_index: Int32 = 0
        acknowledgement_batches: list["ShareFetchRequest.AcknowledgementBatch"] = wire()

    @struct
    class Topic:
        topic_id: Uuid = ZERO_UUID
        partitions: list["ShareFetchRequest.Partition"] = wire()

    @struct
    class ForgottenTopic:
        topic_id: Uuid = ZERO_UUID
        partitions: list[Int32] = wire()

    group_id: str | None = None
    member_id: str | None = None
    share_session_epoch: Int32 = 0
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = 0x7FFFFFFF
    max_records: Int32 = 0
    batch_size: Int32 = 0
    share_acquire_mode: Int8 = wire(since=2)
    is_renew_ack: bool = wire(since=2)
    topics: list[Topic] = wire()
    forgotten_topics_data: list[ForgottenTopic] = wire()


@message(key=78, versions="1-2", flexible="0+")
class ShareFetchResponse:
    """Acquired records by partition."""

    @struct
    class Leader:
        """The current leader, -1 if the responding broker does not know it."""

        leader_id: Int32 = 0
        leader_epoch: Int32 = 0

    @struct
    class AcquiredRecords:
        """A range of offsets that the member has acquired."""

        first_offset: Int64 = 0
        last_offset: Int64 = 0
        delivery_count: Int16 = 0

    @struct
    class Partition:
        partition_index: Int32 = 0
        error_code: Int16 = 0
        error_message: str | None = None
        acknowledge_error_code: Int16 = 0
        acknowledge_error_message: str | None = None
        current_leader: "ShareFetchResponse.Leader" = wire()
        records: Records = b""
        acquired_records: list["ShareFetchResponse.AcquiredRecords"] = wire()

    @struct
    class Topic:
        topic_id: Uuid = ZERO_UUID
        partitions: list["ShareFetchResponse.Partition"] = wire()

    @struct
    class Endpoint:
        """Address of a leader."""

        node_id: Int32 = 0
        host: str = ""
        port: Int32 = 0
        rack: str | None = None

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    acquisition_lock_timeout_ms: Int32 = 0
    responses: list[Topic] = wire()
    node_endpoints: list[Endpoint] = wire()


@message(key=79, versions="1-2", flexible="0+")
class ShareAcknowledgeRequest:
    """Request to acknowledge records of a share group without fetching (KIP-932)."""

    @struct
    class AcknowledgementBatch:
        """A range of offsets, and the acknowledgement types of its records."""

        first_offset: Int64 = 0
        last_offset: Int64 = 0
        acknowledge_types: list[Int8] = wire()
        """0 gap, 1 accept, 2 release, 3 reject, 4 renew; one for all or one per record."""

    @struct
    class Partition:
        partition_index: Int32 = 0
        acknowledgement_batches: list["ShareAcknowledgeRequest.AcknowledgementBatch"] = wire()

    @struct
    class Topic:
        topic_id: Uuid = ZERO_UUID
        partitions: list["ShareAcknowledgeRequest.Partition"] = wire()

    group_id: str | None = None
    member_id: str | None = None
    share_session_epoch: Int32 = 0
    is_renew_ack: bool = wire(since=2)
    topics: list[Topic] = wire()


@message(key=79, versions="1-2", flexible="0+")
class ShareAcknowledgeResponse:
    """Outcome per partition."""

    @struct
    class Leader:
        """The current leader, -1 if the responding broker does not know it."""

        leader_id: Int32 = 0
        leader_epoch: Int32 = 0

    @struct
    class Partition:
        partition_index: Int32 = 0
        error_code: Int16 = 0
        error_message: str | None = None
        current_leader: "ShareAcknowledgeResponse.Leader" = wire()

    @struct
    class Topic:
        topic_id: Uuid = ZERO_UUID
        partitions: list["ShareAcknowledgeResponse.Partition"] = wire()

    @struct
    class Endpoint:
        """Address of a leader."""

        node_id: Int32 = 0
        host: str = ""
        port: Int32 = 0
        rack: str | None = None

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    acquisition_lock_timeout_ms: Int32 = wire(since=2)
    responses: list[Topic] = wire()
    node_endpoints: list[Endpoint] = wire()


@message(key=90, versions="0-1", flexible="0+")
class DescribeShareGroupOffsetsRequest:
    """Request for the share-partition start offsets of groups; null topics: all (KIP-932)."""

    @struct
    class Topic:
        topic_name: str = ""
        partitions: list[Int32] = wire()

    @struct
    class Group:
        group_id: str = ""
        topics: list["DescribeShareGroupOffsetsRequest.Topic"] | None = None

    groups: list[Group] = wire()


@message(key=90, versions="0-1", flexible="0+")
class DescribeShareGroupOffsetsResponse:
    """Start offsets by group and partition."""

    @struct
    class Partition:
        partition_index: Int32 = 0
        start_offset: Int64 = 0
        leader_epoch: Int32 = 0
        lag: Int64 = wire(since=1, default=-1)
        error_code: Int16 = 0
        error_message: str | None = None

    @struct
    class Topic:
        topic_name: str = ""
        topic_id: Uuid = ZERO_UUID
        partitions: list["DescribeShareGroupOffsetsResponse.Partition"] = wire()

    @struct
    class Group:
        group_id: str = ""
        topics: list["DescribeShareGroupOffsetsResponse.Topic"] = wire()
        error_code: Int16 = 0
        error_message: str | None = None

    throttle_time_ms: Int32 = 0
    groups: list[Group] = wire()


@message(key=91, versions="0", flexible="0+")
class AlterShareGroupOffsetsRequest:
    """Request to set share-partition start offsets of an empty group (KIP-932)."""

    @struct
    class Partition:
        partition_index: Int32 = 0
        start_offset: Int64 = 0

    @struct
    class Topic:
        topic_name: str = ""
        partitions: list["AlterShareGroupOffsetsRequest.Partition"] = wire()

    group_id: str = ""
    topics: list[Topic] = wire()


@message(key=91, versions="0", flexible="0+")
class AlterShareGroupOffsetsResponse:
    """Outcome per partition."""

    @struct
    class Partition:
        partition_index: Int32 = 0
        error_code: Int16 = 0
        error_message: str | None = None

    @struct
    class Topic:
        topic_name: str = ""
        topic_id: Uuid = ZERO_UUID
        partitions: list["AlterShareGroupOffsetsResponse.Partition"] = wire()

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    responses: list[Topic] = wire()


@message(key=92, versions="0", flexible="0+")
class DeleteShareGroupOffsetsRequest:
    """Request to delete the offsets of topics of an empty share group (KIP-932)."""

    @struct
    class Topic:
        topic_name: str = ""

    group_id: str = ""
    topics: list[Topic] = wire()


@message(key=92, versions="0", flexible="0+")
class DeleteShareGroupOffsetsResponse:
    """Outcome per topic."""

    @struct
    class Topic:
        topic_name: str = ""
        topic_id: Uuid = ZERO_UUID
        error_code: Int16 = 0
        error_message: str | None = None

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    responses: list[Topic] = wire()
