"""Produce in a transaction: which batches may be appended to a partition."""

from __future__ import annotations

from typing import TypeAlias

from kbroker.context import Context
from kbroker.coordinator.shapes import transaction_error
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.records import claims_transaction, read_header
from kbroker.replica import Replica

ABORTABLE_SINCE = 11
"""First version of Produce that knows TRANSACTION_ABORTABLE."""
IMPLICIT_SINCE = 12
"""First version of Produce in which being written makes a partition part of the transaction."""

Missing: TypeAlias = dict[tuple[int, int], list[tuple[str, int]]]
"""Partitions by the id and epoch of the producer that writes to them."""

RETRY_ELSEWHERE = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
"""What clients do not expect in an answer to Produce, and would not retry."""


class ProduceTransaction:
    """The transaction that one request belongs to: which of its batches may be appended.

    A log that has the producer's transaction open takes its batches at once. For the first batch
    of a transaction in a partition the coordinator is asked, so that no data stay open for which
    nobody will ever write a marker (KIP-890).
    """

    __slots__ = ("_node", "_refused", "_transactional_id", "_version")

    def __init__(self, ctx: Context, transactional_id: str) -> None:
        self._node = ctx.node
        self._version = ctx.version
        self._transactional_id = transactional_id
        self._refused: dict[tuple[str, int], ErrorCode] = {}

    @property
    def is_implicit(self) -> bool:
        """Whether partitions join by being written, as in the second protocol."""
        return self._version >= IMPLICIT_SINCE

    async def join(self, missing: Missing) -> None:
        """Let partitions join the transaction, durably; `check` knows of those that could not."""
        for (producer_id, epoch), partitions in missing.items():
            code = await self._node.transactions.join(
                self._transactional_id, producer_id, epoch, partitions
            )
            if code:
                self._refused.update(dict.fromkeys(partitions, code))

    def check(self, replica: Replica, records: memoryview | None) -> None:
        """Refuse a batch that no marker would end.

        Raises:
            KafkaError: INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING, INVALID_TXN_STATE or
                TRANSACTION_ABORTABLE, CONCURRENT_TRANSACTIONS or NOT_ENOUGH_REPLICAS (to try
                again); OUT_OF_ORDER_SEQUENCE_NUMBER.
        """
        producer = new_in_transaction(replica, records)
        if producer is None or records is None:
            return
        code = self._verified(producer, (replica.topic.name, replica.index))
        if code:
            raise KafkaError(self._as_known(code), "the transaction is not open in this partition")
        if self.is_implicit:
            replica.log.producers.check_begins_at_zero(read_header(records))

    def _verified(self, producer: tuple[int, int], partition: tuple[str, int]) -> ErrorCode:
        refused = self._refused.get(partition)
        if refused is not None:
            return refused
        if not (self.is_implicit or self._node.config.transaction_partition_verification_enable):
            return ErrorCode.NONE
        # After a join too: the transaction may have ended while a batch was recompressed.
        return self._node.transactions.verify(self._transactional_id, *producer, partition)

    def _as_known(self, code: ErrorCode) -> ErrorCode:
        """An error of the coordinator as producers of this version understand it."""
        concurrent = code is ErrorCode.CONCURRENT_TRANSACTIONS and not self.is_implicit
        if concurrent or code in RETRY_ELSEWHERE:
            # Retriable, without the client asking for metadata first.
            return ErrorCode.NOT_ENOUGH_REPLICAS
        return transaction_error(code, knows_abortable=self._version >= ABORTABLE_SINCE)


def new_in_transaction(replica: Replica, records: memoryview | None) -> tuple[int, int] | None:
    """Producer id and epoch of a batch that is the first of its transaction in this partition."""
    if records is None or not claims_transaction(records):
        return None
    header = read_header(records)
    producer = header.producer_id, header.producer_epoch
    if header.producer_id < 0 or replica.log.producers.has_open_transaction(*producer):
        return None
    return producer
