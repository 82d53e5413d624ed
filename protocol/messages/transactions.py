"""Producer IDs and transactions."""

from ..schema import Int8, Int16, Int32, Int64, Uuid, message, struct, wire


@message(key=22, versions="0-6", flexible="2+")
class InitProducerIdRequest:
    """Request for a producer ID and epoch, which fences earlier producers (KIP-98).

    Version 6, with two-phase commit (KIP-939), is not stable yet.
    """

    transactional_id: str | None = None
    """Null for a producer that is idempotent but not transactional."""
    transaction_timeout_ms: Int32 = 0
    producer_id: Int64 = wire(since=3, default=-1)
    """With `producer_epoch`: the ID to bump (KIP-360); -1: a new ID."""
    producer_epoch: Int16 = wire(since=3, default=-1)
    enable2_pc: bool = wire(since=6)
    keep_prepared_txn: bool = wire(since=6)


@message(key=22, versions="0-6", flexible="2+")
class InitProducerIdResponse:
    """The new producer ID and epoch."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = 0
    ongoing_txn_producer_id: Int64 = wire(since=6, default=-1)
    ongoing_txn_producer_epoch: Int16 = wire(since=6, default=-1)


@message(key=24, versions="0-5", flexible="3+")
class AddPartitionsToTxnRequest:
    """Request to add partitions to an ongoing transaction.

    Up to version 3 it is sent by a producer, in the `v3_and_below` fields. From version 4 it is
    sent by a partition leader, to verify one or more transactions (KIP-890).
    """

    @struct
    class Topic:
        name: str = ""
        partitions: list[Int32] = wire()

    @struct
    class Transaction:
        transactional_id: str = ""
        producer_id: Int64 = 0
        producer_epoch: Int16 = 0
        verify_only: bool = False
        topics: list["AddPartitionsToTxnRequest.Topic"] = wire()

    transactions: list[Transaction] = wire(since=4)
    v3_and_below_transactional_id: str = wire(until=3)
    v3_and_below_producer_id: Int64 = wire(until=3)
    v3_and_below_producer_epoch: Int16 = wire(until=3)
    v3_and_below_topics: list[Topic] = wire(until=3)


@message(key=24, versions="0-5", flexible="3+")
class AddPartitionsToTxnResponse:
    """Outcome per partition: up to version 3 in `results_by_topic_v3_and_below`."""

    @struct
    class Partition:
        partition_index: Int32 = 0
        partition_error_code: Int16 = 0

    @struct
    class Topic:
        name: str = ""
        results_by_partition: list["AddPartitionsToTxnResponse.Partition"] = wire()

    @struct
    class Transaction:
        transactional_id: str = ""
        topic_results: list["AddPartitionsToTxnResponse.Topic"] = wire()

    throttle_time_ms: Int32 = 0
    error_code: Int16 = wire(since=4)
    results_by_transaction: list[Transaction] = wire(since=4)
    results_by_topic_v3_and_below: list[Topic] = wire(until=3)


@message(key=25, versions="0-4", flexible="3+")
class AddOffsetsToTxnRequest:
    """Request to add the offsets of a group to an ongoing transaction."""

    transactional_id: str = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    group_id: str = ""


@message(key=25, versions="0-4", flexible="3+")
class AddOffsetsToTxnResponse:
    """Outcome of an `AddOffsetsToTxnRequest`."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0


@message(key=26, versions="0-5", flexible="3+")
class EndTxnRequest:
    """Request to commit or abort the ongoing transaction."""

    transactional_id: str = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    committed: bool = False


@message(key=26, versions="0-5", flexible="3+")
class EndTxnResponse:
    """Outcome of an `EndTxnRequest`; from version 5 on with the producer's next epoch (KIP-890)."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = wire(since=5, default=-1)
    """-1 unless the transaction uses transactions V2 (KIP-890)."""
    producer_epoch: Int16 = wire(since=5, default=-1)


@message(key=27, versions="0-2", flexible="1+")
class WriteTxnMarkersRequest:
    """Request of a transaction coordinator to append commit or abort markers."""

    @struct
    class Topic:
        name: str = ""
        partition_indexes: list[Int32] = wire()

    @struct
    class Marker:
        """The result of one transaction."""

        producer_id: Int64 = 0
        producer_epoch: Int16 = 0
        transaction_result: bool = False
        topics: list["WriteTxnMarkersRequest.Topic"] = wire()
        coordinator_epoch: Int32 = 0
        transaction_version: Int8 = wire(since=2)
        """KIP-1228."""

    markers: list[Marker] = wire()


@message(key=27, versions="0-2", flexible="1+")
class WriteTxnMarkersResponse:
    """Outcome per partition of a `WriteTxnMarkersRequest`."""

    @struct
    class Partition:
        partition_index: Int32 = 0
        error_code: Int16 = 0

    @struct
    class Topic:
        name: str = ""
        partitions: list["WriteTxnMarkersResponse.Partition"] = wire()

    @struct
    class Marker:
        """The result of one transaction."""

        producer_id: Int64 = 0
        topics: list["WriteTxnMarkersResponse.Topic"] = wire()

    markers: list[Marker] = wire()


@message(key=28, versions="0-6", flexible="3+")
class TxnOffsetCommitRequest:
    """Request to commit offsets of a group as part of a transaction."""

    @struct
    class Partition:
        partition_index: Int32 = 0
        committed_offset: Int64 = 0
        committed_leader_epoch: Int32 = wire(since=2, default=-1)
        committed_metadata: str | None = None

    @struct
    class Topic:
        name: str = wire(until=5)
        topic_id: Uuid = wire(since=6)
        partitions: list["TxnOffsetCommitRequest.Partition"] = wire()

    transactional_id: str = ""
    group_id: str = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    generation_id_or_member_epoch: Int32 = wire(since=3, default=-1)
    member_id: str = wire(since=3)
    group_instance_id: str | None = wire(since=3)
    topics: list[Topic] = wire()


@message(key=28, versions="0-6", flexible="3+")
class TxnOffsetCommitResponse:
    """Per-partition outcome of a `TxnOffsetCommitRequest`."""

    @struct
    class Partition:
        partition_index: Int32 = 0
        error_code: Int16 = 0

    @struct
    class Topic:
        name: str = wire(until=5)
        topic_id: Uuid = wire(since=6)
        partitions: list["TxnOffsetCommitResponse.Partition"] = wire()

    throttle_time_ms: Int32 = 0
    topics: list[Topic] = wire()


@message(key=61, versions="0", flexible="0+")
class DescribeProducersRequest:
    """Request for the producers with state in partitions (KIP-664)."""

    @struct
    class Topic:
        name: str = ""
        partition_indexes: list[Int32] = wire()

    topics: list[Topic] = wire()


@message(key=61, versions="0", flexible="0+")
class DescribeProducersResponse:
    """Producers with state, by partition."""

    @struct
    class Producer:
        """State of a producer in a partition."""

        producer_id: Int64 = 0
        producer_epoch: Int32 = 0
        last_sequence: Int32 = -1
        last_timestamp: Int64 = -1
        coordinator_epoch: Int32 = 0
        current_txn_start_offset: Int64 = -1

    @struct
    class Partition:
        partition_index: Int32 = 0
        error_code: Int16 = 0
        error_message: str | None = None
        active_producers: list["DescribeProducersResponse.Producer"] = wire()

    @struct
    class Topic:
        name: str = ""
        partitions: list["DescribeProducersResponse.Partition"] = wire()

    throttle_time_ms: Int32 = 0
    topics: list[Topic] = wire()


@message(key=65, versions="0", flexible="0+")
class DescribeTransactionsRequest:
    """Request for the state of transactions of a coordinator (KIP-664)."""

    transactional_ids: list[str] = wire()


@message(key=65, versions="0", flexible="0+")
class DescribeTransactionsResponse:
    """State of transactions by transactional ID."""

    @struct
    class Topic:
        topic: str = ""
        partitions: list[Int32] = wire()

    @struct
    class Transaction:
        error_code: Int16 = 0
        transactional_id: str = ""
        transaction_state: str = ""
        transaction_timeout_ms: Int32 = 0
        transaction_start_time_ms: Int64 = 0
        producer_id: Int64 = 0
        producer_epoch: Int16 = 0
        topics: list["DescribeTransactionsResponse.Topic"] = wire()

    throttle_time_ms: Int32 = 0
    transaction_states: list[Transaction] = wire()


@message(key=66, versions="0-2", flexible="0+")
class ListTransactionsRequest:
    """Request for the transactions that a broker coordinates (KIP-664)."""

    state_filters: list[str] = wire()
    producer_id_filters: list[Int64] = wire()
    duration_filter: Int64 = wire(since=1, default=-1)
    transactional_id_pattern: str | None = wire(since=2)
    """A regular expression (KIP-1152)."""


@message(key=66, versions="0-2", flexible="0+")
class ListTransactionsResponse:
    """The transactions that match all filters of the request."""

    @struct
    class Transaction:
        transactional_id: str = ""
        producer_id: Int64 = 0
        transaction_state: str = ""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    unknown_state_filters: list[str] = wire()
    transaction_states: list[Transaction] = wire()
