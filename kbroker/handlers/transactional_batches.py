"""Produce in a transaction: which batches may be appended to a partition."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from kbroker.coordinator.common.version_adapters import transaction_error
from kbroker.coordinator_runtime.add_partitions_to_txn import Writer
from kbroker.coordinator_runtime.partition_writer import LeaderReplica
from kbroker.partitions.replica import Replica
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.records import claims_transaction, read_header

from .context import Context

ABORTABLE_SINCE = 11
"""First version of Produce that knows TRANSACTION_ABORTABLE."""
IMPLICIT_SINCE = 12
"""First version of Produce in which being written makes a partition part of the transaction."""

Missing: TypeAlias = dict[tuple[int, int], list[Replica]]
"""Partitions by the id and epoch of the producer that writes to them."""

RETRY_ELSEWHERE = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
"""What clients do not expect in an answer to Produce, and would not retry."""


class PartitionSnapshot(NamedTuple):
    """State of a partition when the transaction coordinator was asked about a transaction in it.

    If the state has changed since, the transaction may have ended in the partition.
    """

    term: int
    markers: int

    @classmethod
    def of(cls, replica: LeaderReplica, producer_id: int) -> PartitionSnapshot:
        """Return the current state of a partition."""
        return cls(replica.term, replica.log.producers.markers_of(producer_id))


class ProduceTransaction:
    """The transaction that one request belongs to: which of its batches may be appended.

    A log that has the producer's transaction open takes its batches at once. For the first batch
    of a transaction in a partition the coordinator is asked, so that no data stay open for which
    nobody will ever write a marker (KIP-890).
    """

    __slots__ = ("_asked", "_codes", "_node", "_transactional_id", "_version")

    def __init__(self, ctx: Context, transactional_id: str) -> None:
        self._node = ctx.node
        self._version = ctx.version
        self._transactional_id = transactional_id
        self._asked: dict[tuple[str, int], PartitionSnapshot] = {}
        self._codes: dict[tuple[str, int], ErrorCode] = {}

    @property
    def _is_implicit(self) -> bool:
        """Whether partitions join by being written, as in the second protocol."""
        return self._version >= IMPLICIT_SINCE

    @property
    def asks(self) -> bool:
        """Whether the coordinator is asked about the first batch in a partition."""
        return self._is_implicit or self._node.config.transaction_partition_verification_enable

    async def ask(self, missing: Missing) -> None:
        """Ask the coordinator about partitions, which then are part of the transaction or are
        refused by `check`."""
        for (producer_id, epoch), replicas in missing.items():
            for replica in replicas:
                self._asked[_place(replica)] = PartitionSnapshot.of(replica, producer_id)
            writer = Writer(self._transactional_id, producer_id, epoch)
            self._codes |= await self._node.transactions.add_or_verify_transaction(
                writer, [_place(replica) for replica in replicas], adds=self._is_implicit
            )

    def check(self, replica: Replica, records: memoryview | None) -> None:
        """Refuse a batch that no marker would end.

        Raises:
            KafkaError: INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING, INVALID_TXN_STATE or
                TRANSACTION_ABORTABLE, CONCURRENT_TRANSACTIONS or NOT_ENOUGH_REPLICAS (to try
                again); OUT_OF_ORDER_SEQUENCE_NUMBER.
        """
        producer = new_in_transaction(replica, records)
        if producer is None or records is None or not self.asks:
            return
        place = _place(replica)
        code = self._codes.get(place, ErrorCode.NONE)
        if not code and self._asked.get(place) != PartitionSnapshot.of(replica, producer[0]):
            # It ended while a batch was recompressed, or while the coordinator was asked.
            code = ErrorCode.NOT_COORDINATOR
        if code:
            raise KafkaError(self._as_known(code), "the transaction is not open in this partition")
        if self._is_implicit:
            replica.log.producers.check_begins_at_zero(read_header(records))

    def _as_known(self, code: ErrorCode) -> ErrorCode:
        """An error of the coordinator as producers of this version understand it."""
        concurrent = code is ErrorCode.CONCURRENT_TRANSACTIONS and not self._is_implicit
        if concurrent or code in RETRY_ELSEWHERE:
            # Retriable, without the client asking for metadata first.
            return ErrorCode.NOT_ENOUGH_REPLICAS
        return transaction_error(code, knows_abortable=self._version >= ABORTABLE_SINCE)


def _place(replica: Replica) -> tuple[str, int]:
    return replica.topic.name, replica.index


def new_in_transaction(replica: Replica, records: memoryview | None) -> tuple[int, int] | None:
    """Producer id and epoch of a batch that is the first of its transaction in this partition."""
    if records is None or not claims_transaction(records):
        return None
    header = read_header(records)
    producer = header.producer_id, header.producer_epoch
    if header.producer_id < 0 or replica.log.producers.has_open_transaction(*producer):
        return None
    return producer
