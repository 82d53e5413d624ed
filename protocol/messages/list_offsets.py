"""Offsets by timestamp and by leader epoch."""

from ..schema import Int8, Int16, Int32, Int64, message, struct, wire


@message(key=2, versions="0-11", flexible="6+")
class ListOffsetsRequest:
    """Find the offset for a timestamp, or the first or last offset.

    Negative timestamps are names: -1 latest, -2 earliest, -3 the record with the greatest timestamp
    (KIP-734), -4 earliest local, -5 latest tiered (KIP-405, KIP-1005), -6 earliest pending upload
    (KIP-1023).
    """

    @struct
    class Partition:
        partition_index: Int32 = 0
        current_leader_epoch: Int32 = wire(since=4, default=-1)
        timestamp: Int64 = 0
        max_num_offsets: Int32 = wire(until=0, default=1)
        """Version 0 answers with this many segment starts."""

    @struct
    class Topic:
        name: str = ""
        partitions: list["ListOffsetsRequest.Partition"] = wire()

    replica_id: Int32 = 0
    """-1 for consumers, -2 for debugging."""
    isolation_level: Int8 = wire(since=2)
    topics: list[Topic] = wire()
    timeout_ms: Int32 = wire(since=10)
    """How long the broker may ask remote storage (KIP-1075)."""


@message(key=2, versions="0-11", flexible="6+")
class ListOffsetsResponse:
    """The offsets found for a `ListOffsetsRequest`; offset -1 says that no record matches."""

    @struct
    class Partition:
        partition_index: Int32 = 0
        error_code: Int16 = 0
        old_style_offsets: list[Int64] = wire(until=0)
        """Version 0 only: offsets of segment starts, newest first."""
        timestamp: Int64 = wire(since=1, default=-1)
        offset: Int64 = wire(since=1, default=-1)
        leader_epoch: Int32 = wire(since=4, default=-1)

    @struct
    class Topic:
        name: str = ""
        partitions: list["ListOffsetsResponse.Partition"] = wire()

    throttle_time_ms: Int32 = wire(since=2)
    topics: list[Topic] = wire()


@message(key=23, versions="0-4", flexible="4+")
class OffsetForLeaderEpochRequest:
    """Ask where leader epochs ended, to find where two logs part (KIP-101, KIP-320)."""

    @struct
    class Partition:
        partition: Int32 = 0
        current_leader_epoch: Int32 = wire(since=2, default=-1)
        leader_epoch: Int32 = 0

    @struct
    class Topic:
        topic: str = ""
        partitions: list["OffsetForLeaderEpochRequest.Partition"] = wire()

    replica_id: Int32 = wire(since=3, default=-2)
    """-1 for consumers, -2 for debugging."""
    topics: list[Topic] = wire()


@message(key=23, versions="0-4", flexible="4+")
class OffsetForLeaderEpochResponse:
    """The last epoch not above the one asked for, and the offset at which it ended."""

    @struct
    class Partition:
        error_code: Int16 = 0
        partition: Int32 = 0
        leader_epoch: Int32 = wire(since=1, default=-1)
        end_offset: Int64 = -1

    @struct
    class Topic:
        topic: str = ""
        partitions: list["OffsetForLeaderEpochResponse.Partition"] = wire()

    throttle_time_ms: Int32 = wire(since=2)
    topics: list[Topic] = wire()
