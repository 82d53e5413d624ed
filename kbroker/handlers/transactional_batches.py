"""Verification of transactional batches before their append."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from kbroker.coordinator.common.version_adapters import transaction_error
from kbroker.coordinator_runtime.add_partitions_to_txn import Writer
from kbroker.coordinator_runtime.partition_writer import LeaderReplica
from kbroker.partitions.replica import Replica
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.records import claims_transaction, read_header

from .context import Context

# First version of Produce that knows TRANSACTION_ABORTABLE.
ABORTABLE_SINCE = 11
# First version of Produce in which a write adds its partition to the transaction.
IMPLICIT_SINCE = 12

# Partitions by the ID and epoch of the producer that writes to them.
Missing: TypeAlias = dict[tuple[int, int], list[Replica]]

# Errors that producers do not expect in a Produce response and would not retry.
UNEXPECTED_ERRORS = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)


class PartitionSnapshot(NamedTuple):
    """State of a partition when the transaction coordinator verified a transaction in it.

    If the state has changed since, the transaction may have ended in the partition.

    Attributes:
        term: Term of the replica's leadership.
        markers: Number of transaction markers of the producer.
    """

    term: int
    markers: int

    @classmethod
    def of(cls, replica: LeaderReplica, producer_id: int) -> PartitionSnapshot:
        """Return the current state of a partition."""
        return cls(replica.term, replica.log.producers.ended_transactions(producer_id))


class ProduceTransaction:
    """Verification of one request's batches against their transaction.

    If the producer's transaction is open in the log, its batches are appended directly. The first
    batch of a transaction in a partition is verified with the transaction coordinator. Otherwise
    the log could have a hanging transaction, for which no marker is ever written (KIP-890).
    """

    __slots__ = ("_codes", "_node", "_snapshots", "_transactional_id", "_version")

    def __init__(self, ctx: Context, transactional_id: str) -> None:
        self._node = ctx.node
        self._version = ctx.version
        self._transactional_id = transactional_id
        self._snapshots: dict[tuple[str, int], PartitionSnapshot] = {}
        self._codes: dict[tuple[str, int], ErrorCode] = {}

    @property
    def _is_implicit(self) -> bool:
        """True if a write adds its partition to the transaction (transaction protocol 2)."""
        return self._version >= IMPLICIT_SINCE

    @property
    def needs_verification(self) -> bool:
        """True if the coordinator verifies the first batch in each partition."""
        return self._is_implicit or self._node.config.transaction_partition_verification_enable

    async def verify(self, missing: Missing) -> None:
        """Ask the coordinator to verify or add partitions. `check` rejects failed partitions."""
        for (producer_id, epoch), replicas in missing.items():
            for replica in replicas:
                self._snapshots[_place(replica)] = PartitionSnapshot.of(replica, producer_id)
            writer = Writer(self._transactional_id, producer_id, epoch)
            self._codes |= await self._node.transactions.add_or_verify_transaction(
                writer, [_place(replica) for replica in replicas], adds=self._is_implicit
            )

    def check(self, replica: Replica, records: memoryview | None) -> None:
        """Reject a batch that would leave a hanging transaction.

        Args:
            replica: The partition.
            records: The batch.

        Raises:
            KafkaError: INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING, INVALID_TXN_STATE,
                TRANSACTION_ABORTABLE or OUT_OF_ORDER_SEQUENCE_NUMBER. CONCURRENT_TRANSACTIONS or
                NOT_ENOUGH_REPLICAS if the client can retry.
        """
        producer = producer_of_first_batch(replica, records)
        if producer is None or records is None or not self.needs_verification:
            return
        place = _place(replica)
        code = self._codes.get(place, ErrorCode.NONE)
        if not code and self._snapshots.get(place) != PartitionSnapshot.of(replica, producer[0]):
            # The transaction may have ended during recompression or verification.
            code = ErrorCode.NOT_COORDINATOR
        if code:
            raise KafkaError(
                self._adapt_error(code), "the transaction is not open in this partition"
            )
        if self._is_implicit:
            replica.log.producers.check_begins_at_zero(read_header(records))

    def _adapt_error(self, code: ErrorCode) -> ErrorCode:
        """Map an error of the coordinator to one that producers of this version handle."""
        concurrent = code is ErrorCode.CONCURRENT_TRANSACTIONS and not self._is_implicit
        if concurrent or code in UNEXPECTED_ERRORS:
            # Retriable without a metadata refresh.
            return ErrorCode.NOT_ENOUGH_REPLICAS
        return transaction_error(code, knows_abortable=self._version >= ABORTABLE_SINCE)


def _place(replica: Replica) -> tuple[str, int]:
    return replica.topic.name, replica.index


def producer_of_first_batch(replica: Replica, records: memoryview | None) -> tuple[int, int] | None:
    """Return producer ID and epoch of a batch that begins its transaction in the partition.

    For any other batch, return None.
    """
    if records is None or not claims_transaction(records):
        return None
    header = read_header(records)
    producer = header.producer_id, header.producer_epoch
    if header.producer_id < 0 or replica.log.producers.has_open_transaction(*producer):
        return None
    return producer
