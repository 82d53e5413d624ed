"""Fetch (key 1), by consumers and followers."""

from typing import Annotated

from ..schema import BrokerEpoch, Int8, Int16, Int32, Int64, Records, Uuid, message, struct, wire


@message(key=1, versions="0-18", flexible="12+")
class FetchRequest:
    """Request to read batches from partitions, as a consumer or as a follower.

    Kafka 4 supports versions 4 and later; 0 to 3 contained the message formats before v2. Fetch
    sessions (KIP-227) omit unchanged partitions. From version 13 topics are identified by ID
    (KIP-516).
    """

    @struct
    class ReplicaState:
        """ID and epoch of the follower (KIP-903)."""

        replica_id: Int32 = -1
        replica_epoch: Annotated[BrokerEpoch, "q"] = BrokerEpoch(-1)

    @struct
    class Partition:
        partition: Int32 = 0
        current_leader_epoch: Int32 = wire(since=9, default=-1)
        fetch_offset: Int64 = 0
        last_fetched_epoch: Int32 = wire(since=12, default=-1)
        """The follower's last leader epoch, to detect a diverging log (KIP-595)."""
        log_start_offset: Int64 = wire(since=5, default=-1)
        """Log start offset of the follower; -1 for consumers (KIP-107)."""
        partition_max_bytes: Int32 = 0
        replica_directory_id: Uuid = wire(since=17, tag=0)
        """KIP-853."""
        high_watermark: Int64 = wire(since=18, tag=1, default=0x7FFF_FFFF_FFFF_FFFF)
        """High watermark of the follower; the leader responds at once to a lower one (KIP-1166)."""

    @struct
    class Topic:
        topic: str = wire(until=12)
        topic_id: Uuid = wire(since=13)
        partitions: list["FetchRequest.Partition"] = wire()

    @struct
    class ForgottenTopic:
        """Partitions to remove from the session."""

        topic: str = wire(until=12)
        topic_id: Uuid = wire(since=13)
        partitions: list[Int32] = wire()

    cluster_id: str | None = wire(since=12, tag=0)
    """Checked by the metadata quorum only (KIP-595)."""
    replica_id: Int32 = wire(until=14, default=-1)
    """-1 for consumers."""
    replica_state: ReplicaState | None = wire(since=15, tag=1)
    """ID and epoch of a follower; absent for consumers (KIP-903)."""
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = wire(since=3, default=0x7FFFFFFF)
    isolation_level: Int8 = wire(since=4)
    """0: up to the high watermark, 1: up to the last stable offset (KIP-98)."""
    session_id: Int32 = wire(since=7)
    """0 with epoch 0 creates a session, epoch -1 uses none (KIP-227)."""
    session_epoch: Int32 = wire(since=7, default=-1)
    topics: list[Topic] = wire()
    forgotten_topics_data: list[ForgottenTopic] = wire(since=7)
    """Partitions to remove from the session."""
    rack_id: str = wire(since=11)
    """Rack of the consumer, to read from the nearest replica (KIP-392)."""


@message(key=1, versions="0-18", flexible="12+")
class FetchResponse:
    """Batches, with the high watermark and other offsets of each partition."""

    @struct
    class EpochEnd:
        """The latest epoch that both logs may share, and its end offset in the leader's log."""

        epoch: Int32 = -1
        end_offset: Int64 = -1

    @struct
    class Leader:
        """The current leader, -1 if the responding broker does not know it."""

        leader_id: Int32 = -1
        leader_epoch: Int32 = -1

    @struct
    class Snapshot:
        """The snapshot of the metadata log to load."""

        end_offset: Int64 = -1
        epoch: Int32 = -1

    @struct
    class AbortedTransaction:
        """Records of this producer from here up to its abort marker are aborted."""

        producer_id: Int64 = 0
        first_offset: Int64 = 0

    @struct
    class Partition:
        partition_index: Int32 = 0
        error_code: Int16 = 0
        high_watermark: Int64 = 0
        last_stable_offset: Int64 = wire(since=4, default=-1)
        log_start_offset: Int64 = wire(since=5, default=-1)
        diverging_epoch: "FetchResponse.EpochEnd | None" = wire(since=12, tag=0)
        """Offset to truncate to before the next fetch (KIP-595)."""
        current_leader: "FetchResponse.Leader | None" = wire(since=12, tag=1)
        """The new leader, after NOT_LEADER_OR_FOLLOWER (KIP-951)."""
        snapshot_id: "FetchResponse.Snapshot | None" = wire(since=12, tag=2)
        """Snapshot of the metadata log if the offset is before its start (KIP-630)."""
        aborted_transactions: list["FetchResponse.AbortedTransaction"] | None = wire(
            since=4, default=None
        )
        """Transactions that a read_committed consumer must skip; null for other consumers."""
        preferred_read_replica: Int32 = wire(since=11, default=-1)
        """-1: continue with this broker (KIP-392)."""
        records: Records = None

    @struct
    class Topic:
        topic: str = wire(until=12)
        topic_id: Uuid = wire(since=13)
        partitions: list["FetchResponse.Partition"] = wire()

    @struct
    class Endpoint:
        """Address of a leader."""

        node_id: Int32 = 0
        host: str = ""
        port: Int32 = 0
        rack: str | None = None

    throttle_time_ms: Int32 = wire(since=1)
    error_code: Int16 = wire(since=7)
    session_id: Int32 = wire(since=7)
    responses: list[Topic] = wire()
    node_endpoints: list[Endpoint] = wire(since=16, tag=0)
    """Addresses of the leaders named above (KIP-951)."""
