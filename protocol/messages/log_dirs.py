"""Log directories (KIP-113)."""

from ..schema import Int16, Int32, Int64, message, struct, wire


@message(key=34, versions="0-2", flexible="2+")
class AlterReplicaLogDirsRequest:
    """Request to move replicas between the log directories of a broker (KIP-113)."""

    @struct
    class Topic:
        name: str = ""
        partitions: list[Int32] = wire()

    @struct
    class Dir:
        """One log directory."""

        path: str = ""
        topics: list["AlterReplicaLogDirsRequest.Topic"] = wire()

    dirs: list[Dir] = wire()


@message(key=34, versions="0-2", flexible="2+")
class AlterReplicaLogDirsResponse:
    """Outcome per partition."""

    @struct
    class Partition:
        partition_index: Int32 = 0
        error_code: Int16 = 0

    @struct
    class Topic:
        topic_name: str = ""
        partitions: list["AlterReplicaLogDirsResponse.Partition"] = wire()

    throttle_time_ms: Int32 = 0
    results: list[Topic] = wire()


@message(key=35, versions="0-5", flexible="2+")
class DescribeLogDirsRequest:
    """Request for the log directories of a broker and the sizes of their logs (KIP-113)."""

    @struct
    class Topic:
        topic: str = ""
        partitions: list[Int32] = wire()

    topics: list[Topic] | None = None


@message(key=35, versions="0-5", flexible="2+")
class DescribeLogDirsResponse:
    """Log directories and their logs."""

    @struct
    class Partition:
        partition_index: Int32 = 0
        partition_size: Int64 = 0
        offset_lag: Int64 = 0
        is_future_key: bool = False

    @struct
    class Topic:
        name: str = ""
        partitions: list["DescribeLogDirsResponse.Partition"] = wire()

    @struct
    class Dir:
        """One log directory."""

        error_code: Int16 = 0
        log_dir: str = ""
        topics: list["DescribeLogDirsResponse.Topic"] = wire()
        total_bytes: Int64 = wire(since=4, default=-1)
        usable_bytes: Int64 = wire(since=4, default=-1)
        is_cordoned: bool = wire(since=5)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = wire(since=3)
    results: list[Dir] = wire()
