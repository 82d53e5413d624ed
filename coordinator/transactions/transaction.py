"""One transactional id: its producer, and where its transaction stands (KIP-98, KIP-890)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from types import MappingProxyType
from typing import TypeAlias

from kbroker.protocol.transaction_log import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TransactionLogValue

LAST_EPOCH_GIVEN = (1 << 15) - 2
"""Above it is one more, so that whoever has the last epoch can still be fenced."""

SECOND_PROTOCOL = 2
"""Level of `transaction.version` from which producers do what KIP-890 describes."""

TopicPartition: TypeAlias = tuple[str, int]


class TransactionState(IntEnum):
    """Where a transaction stands, by the number that is stored."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """As clients and tools write it: "PrepareCommit"."""
        return self.name.title().replace("_", "")

    @property
    def is_prepared(self) -> bool:
        """It is decided how the transaction ends, and markers say so to its partitions."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


EMPTY, ONGOING, DEAD = TransactionState.EMPTY, TransactionState.ONGOING, TransactionState.DEAD
PREPARE_COMMIT, COMPLETE_COMMIT = TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT
PREPARE_ABORT, COMPLETE_ABORT = TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT

FOLLOWS: Mapping[TransactionState, frozenset[TransactionState]] = MappingProxyType(
    {
        # In the second protocol an abort of nothing raises the epoch as well.
        EMPTY: frozenset({ONGOING, PREPARE_ABORT, DEAD}),
        ONGOING: frozenset({PREPARE_COMMIT, PREPARE_ABORT}),
        PREPARE_COMMIT: frozenset({COMPLETE_COMMIT}),
        PREPARE_ABORT: frozenset({COMPLETE_ABORT}),
        # Asked again with the last epoch that there is, the end is told once more with another id.
        COMPLETE_COMMIT: frozenset({EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, DEAD}),
        COMPLETE_ABORT: frozenset({EMPTY, ONGOING, PREPARE_ABORT, DEAD}),
        DEAD: frozenset(),
        # Kafka's number for what it never stores.
        TransactionState.PREPARE_EPOCH_FENCE: frozenset(),
    }
)
"""Which states may follow: each is entered by replaying the record that says so, Dead by one without
a value."""


def check_follows(before: TransactionState, after: TransactionState) -> None:
    """Raise ValueError when a transaction cannot go from one state to the other; to stay is no change.

    Nothing else notices: what is stored is believed.
    """
    if after is not before and after not in FOLLOWS[before]:
        raise ValueError(f"{before.label} cannot become {after.label}")


@dataclass(frozen=True, slots=True)
class TransactionMetadata:
    """State of a transactional ID, from its newest record.

    Attributes:
      previous_producer_id: What `producer_id` was before the newest record.
      next_producer_id: Takes the place of `producer_id`, whose epochs are used up, when the
        transaction is complete; -1 for none.
      timeout_ms: How long a transaction may last.
      partitions: What belongs to the transaction. Emptied when it is complete.
      started_ms, updated_ms: Log time; -1 before the first transaction.
      second_protocol: Whether the producer's newest transaction is one of KIP-890.
    """

    producer_id: int
    timeout_ms: int
    updated_ms: int
    epoch: int = NO_PRODUCER_EPOCH
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = -1
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    second_protocol: bool = False

    @property
    def is_exhausted(self) -> bool:
        """The producer id has no epoch left that could be given to a client."""
        return self.epoch >= LAST_EPOCH_GIVEN

    @property
    def deadline_ms(self) -> int:
        """Log time at which the open transaction has lasted too long."""
        return self.started_ms + self.timeout_ms

    def completed(self, now_ms: int) -> TransactionMetadata:
        """The same when all markers are written."""
        rotated = self.next_producer_id != NO_PRODUCER_ID
        return replace(
            self,
            producer_id=self.next_producer_id if rotated else self.producer_id,
            epoch=0 if rotated else self.epoch,
            next_producer_id=NO_PRODUCER_ID,
            state=(
                TransactionState.COMPLETE_COMMIT
                if self.state is TransactionState.PREPARE_COMMIT
                else TransactionState.COMPLETE_ABORT
            ),
            partitions=frozenset(),
            updated_ms=now_ms,
        )


def from_value(value: TransactionLogValue) -> TransactionMetadata:
    """What a record says. Raises ValueError for a state that nobody knows."""
    return TransactionMetadata(
        producer_id=value.producer_id,
        epoch=value.producer_epoch,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        timeout_ms=value.timeout_ms,
        state=TransactionState(value.status),
        partitions=frozenset(
            (topic.topic, index) for topic in value.partitions or () for index in topic.partitions
        ),
        updated_ms=value.last_update_timestamp,
        started_ms=value.start_timestamp,
        second_protocol=value.client_transaction_version >= SECOND_PROTOCOL,
    )


def to_value(transaction: TransactionMetadata) -> TransactionLogValue:
    """The record of a transactional id; as in Kafka, partitions are null before the first one."""
    partitions = [
        TransactionLogValue.Topic(topic=topic, partitions=indexes)
        for topic, indexes in by_topic(transaction.partitions).items()
    ]
    return TransactionLogValue(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        timeout_ms=transaction.timeout_ms,
        status=transaction.state,
        partitions=None if transaction.state is TransactionState.EMPTY else partitions,
        last_update_timestamp=transaction.updated_ms,
        start_timestamp=transaction.started_ms,
        client_transaction_version=SECOND_PROTOCOL if transaction.second_protocol else 0,
    )


def by_topic(partitions: frozenset[TopicPartition]) -> dict[str, list[int]]:
    """Partitions in order, grouped by topic."""
    grouped: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        grouped.setdefault(topic, []).append(index)
    return grouped
