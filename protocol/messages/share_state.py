"""Share state, in requests between brokers (KIP-932)."""

from ..schema import ZERO_UUID, Int8, Int16, Int32, Int64, Uuid, message, struct, wire


@message(key=83, versions="0", flexible="0+")
class InitializeShareGroupStateRequest:
    """Request of a group coordinator to initialize the share state of partitions (KIP-932)."""

    @struct
    class Partition:
        partition: Int32 = 0
        state_epoch: Int32 = 0
        start_offset: Int64 = 0

    @struct
    class Topic:
        topic_id: Uuid = ZERO_UUID
        partitions: list["InitializeShareGroupStateRequest.Partition"] = wire()

    group_id: str = ""
    topics: list[Topic] = wire()


@message(key=83, versions="0", flexible="0+")
class InitializeShareGroupStateResponse:
    """Outcome per partition."""

    @struct
    class Partition:
        partition: Int32 = 0
        error_code: Int16 = 0
        error_message: str | None = None

    @struct
    class Topic:
        topic_id: Uuid = ZERO_UUID
        partitions: list["InitializeShareGroupStateResponse.Partition"] = wire()

    results: list[Topic] = wire()


@message(key=84, versions="0", flexible="0+")
class ReadShareGroupStateRequest:
    """Request of a share-partition leader for the share state of partitions (KIP-932)."""

    @struct
    class Partition:
        partition: Int32 = 0
        leader_epoch: Int32 = 0

    @struct
    class Topic:
        topic_id: Uuid = ZERO_UUID
        partitions: list["ReadShareGroupStateRequest.Partition"] = wire()

    group_id: str = ""
    topics: list[Topic] = wire()


@message(key=84, versions="0", flexible="0+")
class ReadShareGroupStateResponse:
    """Share state by partition."""

    @struct
    class StateBatch:
        """A range of offsets in one state."""

        first_offset: Int64 = 0
        last_offset: Int64 = 0
        delivery_state: Int8 = 0
        delivery_count: Int16 = 0

    @struct
    class Partition:
        partition: Int32 = 0
        error_code: Int16 = 0
        error_message: str | None = None
        state_epoch: Int32 = 0
        start_offset: Int64 = 0
        state_batches: list["ReadShareGroupStateResponse.StateBatch"] = wire()

    @struct
    class Topic:
        topic_id: Uuid = ZERO_UUID
        partitions: list["ReadShareGroupStateResponse.Partition"] = wire()

    results: list[Topic] = wire()


@message(key=85, versions="0-1", flexible="0+")
class WriteShareGroupStateRequest:
    """Request of a share-partition leader to write changes of the share state (KIP-932)."""

    @struct
    class StateBatch:
        """A range of offsets in one state."""

        first_offset: Int64 = 0
        last_offset: Int64 = 0
        delivery_state: Int8 = 0
        delivery_count: Int16 = 0

    @struct
    class Partition:
        partition: Int32 = 0
        state_epoch: Int32 = 0
        leader_epoch: Int32 = 0
        start_offset: Int64 = 0
        delivery_complete_count: Int32 = wire(since=1, default=-1)
        state_batches: list["WriteShareGroupStateRequest.StateBatch"] = wire()

    @struct
    class Topic:
        topic_id: Uuid = ZERO_UUID
        partitions: list["WriteShareGroupStateRequest.Partition"] = wire()

    group_id: str = ""
    topics: list[Topic] = wire()


@message(key=85, versions="0-1", flexible="0+")
class WriteShareGroupStateResponse:
    """Outcome per partition."""

    @struct
    class Partition:
        partition: Int32 = 0
        error_code: Int16 = 0
        error_message: str | None = None

    @struct
    class Topic:
        topic_id: Uuid = ZERO_UUID
        partitions: list["WriteShareGroupStateResponse.Partition"] = wire()

    results: list[Topic] = wire()


@message(key=86, versions="0", flexible="0+")
class DeleteShareGroupStateRequest:
    """Request of a group coordinator to delete the share state of partitions (KIP-932)."""

    @struct
    class Partition:
        partition: Int32 = 0

    @struct
    class Topic:
        topic_id: Uuid = ZERO_UUID
        partitions: list["DeleteShareGroupStateRequest.Partition"] = wire()

    group_id: str = ""
    topics: list[Topic] = wire()


@message(key=86, versions="0", flexible="0+")
class DeleteShareGroupStateResponse:
    """Outcome per partition."""

    @struct
    class Partition:
        partition: Int32 = 0
        error_code: Int16 = 0
        error_message: str | None = None

    @struct
    class Topic:
        topic_id: Uuid = ZERO_UUID
        partitions: list["DeleteShareGroupStateResponse.Partition"] = wire()

    results: list[Topic] = wire()


@message(key=87, versions="0-1", flexible="0+")
class ReadShareGroupStateSummaryRequest:
    """Request of a group coordinator for the share-partition start offsets (KIP-932)."""

    @struct
    class Partition:
        partition: Int32 = 0
        leader_epoch: Int32 = 0

    @struct
    class Topic:
        topic_id: Uuid = ZERO_UUID
        partitions: list["ReadShareGroupStateSummaryRequest.Partition"] = wire()

    group_id: str = ""
    topics: list[Topic] = wire()


@message(key=87, versions="0-1", flexible="0+")
class ReadShareGroupStateSummaryResponse:
    """Start offsets by partition."""

    @struct
    class Partition:
        partition: Int32 = 0
        error_code: Int16 = 0
        error_message: str | None = None
        state_epoch: Int32 = 0
        leader_epoch: Int32 = 0
        start_offset: Int64 = 0
        delivery_complete_count: Int32 = wire(since=1, default=-1)

    @struct
    class Topic:
        topic_id: Uuid = ZERO_UUID
        partitions: list["ReadShareGroupStateSummaryResponse.Partition"] = wire()

    results: list[Topic] = wire()
