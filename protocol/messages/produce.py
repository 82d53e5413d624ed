"""Produce (key 0)."""

from ..schema import Int16, Int32, Int64, Records, Uuid, message, struct, wire


@message(key=0, versions="0-13", flexible="9+")
class ProduceRequest:
    """Request to append record batches to partitions.

    Kafka 4 supports versions 3 and later; 0 to 2 contained the message formats before v2. From
    version 13 topics are identified by ID (KIP-516).
    """

    @struct
    class Partition:
        index: Int32 = 0
        records: Records = None

    @struct
    class Topic:
        name: str = wire(until=12)
        topic_id: Uuid = wire(since=13)
        partition_data: list["ProduceRequest.Partition"] = wire()

    transactional_id: str | None = wire(since=3)
    """Null outside of transactions (KIP-98)."""
    acks: Int16 = 0
    """-1: all in-sync replicas, 1: the leader, 0: no response."""
    timeout_ms: Int32 = 0
    topic_data: list[Topic] = wire()


@message(key=0, versions="0-13", flexible="9+")
class ProduceResponse:
    """Offsets of the appended batches, or errors."""

    @struct
    class RecordError:
        """Error of one record of a rejected batch."""

        batch_index: Int32 = 0
        batch_index_error_message: str | None = None

    @struct
    class Leader:
        """The current leader, -1 if the responding broker does not know it."""

        leader_id: Int32 = -1
        leader_epoch: Int32 = -1

    @struct
    class Partition:
        index: Int32 = 0
        error_code: Int16 = 0
        base_offset: Int64 = 0
        log_append_time_ms: Int64 = wire(since=2, default=-1)
        """-1 unless the topic uses LogAppendTime (KIP-32)."""
        log_start_offset: Int64 = wire(since=5, default=-1)
        record_errors: list["ProduceResponse.RecordError"] = wire(since=8)
        """Invalid records of a rejected batch (KIP-467)."""
        error_message: str | None = wire(since=8)
        current_leader: "ProduceResponse.Leader | None" = wire(since=10, tag=0)
        """The new leader, after NOT_LEADER_OR_FOLLOWER (KIP-951)."""

    @struct
    class Topic:
        name: str = wire(until=12)
        topic_id: Uuid = wire(since=13)
        partition_responses: list["ProduceResponse.Partition"] = wire()

    @struct
    class Endpoint:
        """Address of a leader."""

        node_id: Int32 = 0
        host: str = ""
        port: Int32 = 0
        rack: str | None = None

    responses: list[Topic] = wire()
    throttle_time_ms: Int32 = wire(since=1)
    node_endpoints: list[Endpoint] = wire(since=10, tag=0)
    """Addresses of the leaders named above (KIP-951)."""
