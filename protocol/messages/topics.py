"""Creation and deletion of topics, partitions and records."""

from ..schema import ZERO_UUID, Int8, Int16, Int32, Int64, Uuid, message, struct, wire


@message(key=19, versions="0-7", flexible="5+")
class CreateTopicsRequest:
    """Request to create topics."""

    @struct
    class Assignment:
        partition_index: Int32 = 0
        broker_ids: list[Int32] = wire()

    @struct
    class Config:
        name: str = ""
        value: str | None = None

    @struct
    class Topic:
        name: str = ""
        num_partitions: Int32 = 0
        """-1: the broker's default (KIP-464), or see `assignments`."""
        replication_factor: Int16 = 0
        """-1: the broker's default (KIP-464), or see `assignments`."""
        assignments: list["CreateTopicsRequest.Assignment"] = wire()
        configs: list["CreateTopicsRequest.Config"] = wire()

    topics: list[Topic] = wire()
    timeout_ms: Int32 = 60000
    validate_only: bool = wire(since=1)


@message(key=19, versions="0-7", flexible="5+")
class CreateTopicsResponse:
    """Outcome per topic, from version 5 on with the settings of the new topic (KIP-525)."""

    @struct
    class Config:
        name: str = ""
        value: str | None = None
        read_only: bool = False
        config_source: Int8 = -1
        is_sensitive: bool = False

    @struct
    class Topic:
        name: str = ""
        topic_id: Uuid = wire(since=7)
        error_code: Int16 = 0
        error_message: str | None = wire(since=1)
        topic_config_error_code: Int16 = wire(since=5, tag=0)
        """Set if the sender may create topics but not describe settings."""
        num_partitions: Int32 = wire(since=5, default=-1)
        replication_factor: Int16 = wire(since=5, default=-1)
        configs: list["CreateTopicsResponse.Config"] | None = wire(since=5)

    throttle_time_ms: Int32 = wire(since=2)
    topics: list[Topic] = wire()


@message(key=20, versions="0-6", flexible="4+")
class DeleteTopicsRequest:
    """Request to delete topics by name, or from version 6 by name or ID (KIP-516)."""

    @struct
    class Topic:
        name: str | None = None
        topic_id: Uuid = ZERO_UUID

    topics: list[Topic] = wire(since=6)
    topic_names: list[str] = wire(until=5)
    timeout_ms: Int32 = 0


@message(key=20, versions="0-6", flexible="4+")
class DeleteTopicsResponse:
    """Outcome per topic."""

    @struct
    class Topic:
        name: str | None = wire(nullable_since=6)
        topic_id: Uuid = wire(since=6)
        error_code: Int16 = 0
        error_message: str | None = wire(since=5)

    throttle_time_ms: Int32 = wire(since=1)
    responses: list[Topic] = wire()


@message(key=21, versions="0-2", flexible="2+")
class DeleteRecordsRequest:
    """Request to raise the log start offsets of partitions (KIP-107)."""

    @struct
    class Partition:
        partition_index: Int32 = 0
        offset: Int64 = 0
        """-1: up to the high watermark."""

    @struct
    class Topic:
        name: str = ""
        partitions: list["DeleteRecordsRequest.Partition"] = wire()

    topics: list[Topic] = wire()
    timeout_ms: Int32 = 0


@message(key=21, versions="0-2", flexible="2+")
class DeleteRecordsResponse:
    """The new log start offsets."""

    @struct
    class Partition:
        partition_index: Int32 = 0
        low_watermark: Int64 = 0
        error_code: Int16 = 0

    @struct
    class Topic:
        name: str = ""
        partitions: list["DeleteRecordsResponse.Partition"] = wire()

    throttle_time_ms: Int32 = 0
    topics: list[Topic] = wire()


@message(key=37, versions="0-3", flexible="2+")
class CreatePartitionsRequest:
    """Request to raise the partition count of topics (KIP-195)."""

    @struct
    class Assignment:
        broker_ids: list[Int32] = wire()

    @struct
    class Topic:
        name: str = ""
        count: Int32 = 0
        assignments: list["CreatePartitionsRequest.Assignment"] | None = None

    topics: list[Topic] = wire()
    timeout_ms: Int32 = 0
    validate_only: bool = False


@message(key=37, versions="0-3", flexible="2+")
class CreatePartitionsResponse:
    """Outcome per topic."""

    @struct
    class Topic:
        name: str = ""
        error_code: Int16 = 0
        error_message: str | None = None

    throttle_time_ms: Int32 = 0
    results: list[Topic] = wire()
