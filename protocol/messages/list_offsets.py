"""Offsets by timestamp and by leader epoch."""

from ..schema import Int8, Int16, Int32, Int64, message, struct, wire


@message(key=2, versions="0-11", flexible="6+")
class ListOffsetsRequest:
    """Request for the offset of a timestamp, or for the first or last offset.

    Negative timestamps are special: -1 latest, -2 earliest, -3 record with the maximum timestamp
    (KIP-734), -4 earliest local, -5 latest tiered (KIP-405, KIP-1005), -6 earliest pending upload
    (KIP-1023).
    """

    @struct
    class Partition:
        partition_index: Int32 = 0
        current_leader_epoch: Int32 = wire(since=4, default=-1)
        timestamp: Int64 = 0
        max_num_offsets: Int32 = wire(until=0, default=1)
        """Maximum number of segment base offsets in version 0."""

    @struct
    class Topic:
        name: str = ""
        partitions: list["ListOffsetsRequest.Partition"] = wire()

    replica_id: Int32 = 0
    """-1 for consumers, -2 for debugging."""
    isolation_level: Int8 = wire(since=2)
    topics: list[Topic] = wire()
    timeout_ms: Int32 = wire(since=10)
    """Maximum time in ms for a look-up in remote storage (KIP-1075)."""


@message(key=2, versions="0-11", flexible="6+")
class ListOffsetsResponse:
    """The offsets that were found; offset -1 means that no record matches."""

    @struct
    class Partition:
        partition_index: Int32 = 0
        error_code: Int16 = 0
        old_style_offsets: list[Int64] = wire(until=0)
        """Version 0 only: segment base offsets, newest first."""
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
    """Request for the end offsets of leader epochs, to detect diverging logs (KIP-101, KIP-320)."""

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
    """The largest epoch up to the requested one, and its end offset."""

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
