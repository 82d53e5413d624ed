"""Fetch (key 1), by consumers and followers."""

from typing import Annotated

from ..schema import BrokerEpoch, Int8, Int16, Int32, Int64, Records, Uuid, message, struct, wire


@message(key=1, versions="0-18", flexible="12+")
class FetchRequest:
    """Read batches from partitions, as a consumer or as a follower replica.

    Kafka 4 speaks versions 4 and later; 0 to 3 carried the message formats before v2. Sessions
    (KIP-227) leave out partitions that did not change; from 13 on topics are named by id
    (KIP-516).
    """

    @struct
    class ReplicaState:
        """Who the follower is, and which start of it (KIP-903)."""

        replica_id: Int32 = -1
        replica_epoch: Annotated[BrokerEpoch, "q"] = BrokerEpoch(-1)

    @struct
    class Partition:
        partition: Int32 = 0
        current_leader_epoch: Int32 = wire(since=9, default=-1)
        fetch_offset: Int64 = 0
        last_fetched_epoch: Int32 = wire(since=12, default=-1)
        """Lets the leader detect a diverging log at once (KIP-595)."""
        log_start_offset: Int64 = wire(since=5, default=-1)
        """The follower's; -1 for consumers (KIP-107)."""
        partition_max_bytes: Int32 = 0
        replica_directory_id: Uuid = wire(since=17, tag=0)
        """KIP-853."""
        high_watermark: Int64 = wire(since=18, tag=1, default=0x7FFF_FFFF_FFFF_FFFF)
        """The follower's: the leader answers at once when it has a newer one (KIP-1166)."""

    @struct
    class Topic:
        topic: str = wire(until=12)
        topic_id: Uuid = wire(since=13)
        partitions: list["FetchRequest.Partition"] = wire()

    @struct
    class ForgottenTopic:
        """Partitions that leave the session."""

        topic: str = wire(until=12)
        topic_id: Uuid = wire(since=13)
        partitions: list[Int32] = wire()

    cluster_id: str | None = wire(since=12, tag=0)
    """Checked by the metadata quorum only (KIP-595)."""
    replica_id: Int32 = wire(until=14, default=-1)
    """-1 for consumers."""
    replica_state: ReplicaState | None = wire(since=15, tag=1)
    """Id and epoch of a follower; absent for consumers (KIP-903)."""
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = wire(since=3, default=0x7FFFFFFF)
    isolation_level: Int8 = wire(since=4)
    """0: up to the high watermark, 1: up to the last stable offset (KIP-98)."""
    session_id: Int32 = wire(since=7)
    """0 with epoch 0 opens a session, epoch -1 does without one (KIP-227)."""
    session_epoch: Int32 = wire(since=7, default=-1)
    topics: list[Topic] = wire()
    forgotten_topics_data: list[ForgottenTopic] = wire(since=7)
    """Partitions to drop from the session."""
    rack_id: str = wire(since=11)
    """For reads from the nearest replica (KIP-392)."""


@message(key=1, versions="0-18", flexible="12+")
class FetchResponse:
    """Batches for a `FetchRequest`, with the marks of each partition."""

    @struct
    class EpochEnd:
        """The latest epoch that both logs may share, and where it ends in the leader's."""

        epoch: Int32 = -1
        end_offset: Int64 = -1

    @struct
    class Leader:
        """The leader that the answering broker knows of; -1 where it knows none."""

        leader_id: Int32 = -1
        leader_epoch: Int32 = -1

    @struct
    class Snapshot:
        """Which snapshot of the metadata log to load."""

        end_offset: Int64 = -1
        epoch: Int32 = -1

    @struct
    class AbortedTransaction:
        """Records of this producer do not count from here up to its abort marker."""

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
        """Truncate to here before the next fetch (KIP-595)."""
        current_leader: "FetchResponse.Leader | None" = wire(since=12, tag=1)
        """Where to go, after NOT_LEADER_OR_FOLLOWER (KIP-951)."""
        snapshot_id: "FetchResponse.Snapshot | None" = wire(since=12, tag=2)
        """Of the metadata log, when the offset is below its start (KIP-630)."""
        aborted_transactions: list["FetchResponse.AbortedTransaction"] | None = wire(
            since=4, default=None
        )
        """What a read_committed consumer must skip; null for others."""
        preferred_read_replica: Int32 = wire(since=11, default=-1)
        """-1: go on here (KIP-392)."""
        records: Records = None

    @struct
    class Topic:
        topic: str = wire(until=12)
        topic_id: Uuid = wire(since=13)
        partitions: list["FetchResponse.Partition"] = wire()

    @struct
    class Endpoint:
        """Where to reach a leader."""

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
