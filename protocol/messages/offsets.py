"""Committed offsets of groups."""

from ..schema import Int16, Int32, Int64, Uuid, message, struct, wire


@message(key=8, versions="0-10", flexible="8+")
class OffsetCommitRequest:
    """Request to commit offsets of a group.

    Sent by members and, with generation -1, by tools and by consumers without group management.
    """

    @struct
    class Partition:
        partition_index: Int32 = 0
        committed_offset: Int64 = 0
        committed_leader_epoch: Int32 = wire(since=6, default=-1)
        commit_timestamp: Int64 = wire(since=1, until=1, default=-1)
        """Version 1 only; -1: the current time."""
        committed_metadata: str | None = None

    @struct
    class Topic:
        name: str = wire(until=9)
        topic_id: Uuid = wire(since=10)
        partitions: list["OffsetCommitRequest.Partition"] = wire()

    group_id: str = ""
    generation_id_or_member_epoch: Int32 = wire(since=1, default=-1)
    """-1 for a client that is not a member."""
    member_id: str = wire(since=1)
    group_instance_id: str | None = wire(since=7)
    """Static membership (KIP-345)."""
    retention_time_ms: Int64 = wire(since=2, until=4, default=-1)
    """-1: default of the broker (removed by KIP-211)."""
    topics: list[Topic] = wire()


@message(key=8, versions="0-10", flexible="8+")
class OffsetCommitResponse:
    """Per-partition outcome of an `OffsetCommitRequest`."""

    @struct
    class Partition:
        partition_index: Int32 = 0
        error_code: Int16 = 0

    @struct
    class Topic:
        name: str = wire(until=9)
        topic_id: Uuid = wire(since=10)
        partitions: list["OffsetCommitResponse.Partition"] = wire()

    throttle_time_ms: Int32 = wire(since=3)
    topics: list[Topic] = wire()


@message(key=9, versions="0-10", flexible="6+")
class OffsetFetchRequest:
    """Request for committed offsets.

    Up to version 7 one group, in `group_id` and `topics`; from version 8 several (KIP-709).
    """

    @struct
    class Topic:
        name: str = wire(until=9)
        topic_id: Uuid = wire(since=10)
        partition_indexes: list[Int32] = wire()

    @struct
    class Group:
        group_id: str = ""
        member_id: str | None = wire(since=9)
        """Null or the ID of a consumer group member (KIP-848)."""
        member_epoch: Int32 = wire(since=9, default=-1)
        topics: list["OffsetFetchRequest.Topic"] | None = None
        """Null means all topics of the group."""

    group_id: str = wire(until=7)
    topics: list[Topic] | None = wire(until=7, nullable_since=2)
    """Null means all topics of the group."""
    groups: list[Group] = wire(since=8)
    require_stable: bool = wire(since=7)
    """Return UNSTABLE_OFFSET_COMMIT if a pending transaction contains offsets (KIP-447)."""


@message(key=9, versions="0-10", flexible="6+")
class OffsetFetchResponse:
    """Committed offsets: up to version 7 in `topics`, from version 8 by group in `groups`."""

    @struct
    class Partition:
        partition_index: Int32 = 0
        committed_offset: Int64 = 0
        committed_leader_epoch: Int32 = wire(since=5, default=-1)
        metadata: str | None = None
        error_code: Int16 = 0

    @struct
    class Topic:
        name: str = wire(until=9)
        topic_id: Uuid = wire(since=10)
        partitions: list["OffsetFetchResponse.Partition"] = wire()

    @struct
    class Group:
        group_id: str = ""
        topics: list["OffsetFetchResponse.Topic"] = wire()
        error_code: Int16 = 0

    throttle_time_ms: Int32 = wire(since=3)
    topics: list[Topic] = wire(until=7)
    error_code: Int16 = wire(since=2, until=7)
    groups: list[Group] = wire(since=8)


@message(key=47, versions="0")
class OffsetDeleteRequest:
    """Request to delete committed offsets of a group (KIP-496)."""

    @struct
    class Partition:
        partition_index: Int32 = 0

    @struct
    class Topic:
        name: str = ""
        partitions: list["OffsetDeleteRequest.Partition"] = wire()

    group_id: str = ""
    topics: list[Topic] = wire()


@message(key=47, versions="0")
class OffsetDeleteResponse:
    """Outcome per partition."""

    @struct
    class Partition:
        partition_index: Int32 = 0
        error_code: Int16 = 0

    @struct
    class Topic:
        name: str = ""
        partitions: list["OffsetDeleteResponse.Partition"] = wire()

    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: list[Topic] = wire()
