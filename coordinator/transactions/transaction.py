"""State of one transactional ID: its producer and its transaction (KIP-98, KIP-890)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from types import MappingProxyType
from typing import TypeAlias

from kbroker.protocol.transaction_log import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TransactionLogValue

# Highest epoch that a client can get. One more epoch is reserved for fencing that client.
LAST_EPOCH_GIVEN = (1 << 15) - 2

# Level of `transaction.version` from which producers use the protocol of KIP-890 (TV2).
SECOND_PROTOCOL = 2

TopicPartition: TypeAlias = tuple[str, int]


class TransactionState(IntEnum):
    """State of a transaction, with the values of the transaction log."""

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
        """State name as in Kafka's protocol, for example "PrepareCommit"."""
        return self.name.title().replace("_", "")

    @property
    def is_prepared(self) -> bool:
        """True if the outcome is decided and the markers are being written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


EMPTY, ONGOING, DEAD = TransactionState.EMPTY, TransactionState.ONGOING, TransactionState.DEAD
PREPARE_COMMIT, COMPLETE_COMMIT = TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT
PREPARE_ABORT, COMPLETE_ABORT = TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT

# Valid next states. A state is entered by replaying its record, Dead by replaying a tombstone.
VALID_TRANSITIONS: Mapping[TransactionState, frozenset[TransactionState]] = MappingProxyType(
    {
        # With TV2, aborting an empty transaction also bumps the epoch.
        EMPTY: frozenset({ONGOING, PREPARE_ABORT, DEAD}),
        ONGOING: frozenset({PREPARE_COMMIT, PREPARE_ABORT}),
        PREPARE_COMMIT: frozenset({COMPLETE_COMMIT}),
        PREPARE_ABORT: frozenset({COMPLETE_ABORT}),
        # If EndTxn is retried with the last epoch, the end is repeated with a new producer ID.
        COMPLETE_COMMIT: frozenset({EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, DEAD}),
        COMPLETE_ABORT: frozenset({EMPTY, ONGOING, PREPARE_ABORT, DEAD}),
        DEAD: frozenset(),
        # Kafka defines this value but never stores it.
        TransactionState.PREPARE_EPOCH_FENCE: frozenset(),
    }
)


def check_transition(before: TransactionState, after: TransactionState) -> None:
    """Check a state transition. Staying in the same state is valid.

    This is the only check: replay accepts any stored state.

    Raises:
        ValueError: The transition is not valid.
    """
    if after is not before and after not in VALID_TRANSITIONS[before]:
        raise ValueError(f"{before.label} cannot become {after.label}")


@dataclass(frozen=True, slots=True)
class TransactionMetadata:
    """State of a transactional ID, from its newest record.

    Attributes:
        previous_producer_id: Value of `producer_id` before the newest record.
        next_producer_id: Replaces `producer_id` when the transaction completes, because its epochs
            are exhausted; -1 for none.
        timeout_ms: Transaction timeout.
        partitions: Partitions of the transaction. Empty after completion.
        started_ms, updated_ms: Times in ms since 1970; -1 before the first transaction.
        second_protocol: True if the newest transaction uses KIP-890 (TV2).
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
        """True if no epoch of the producer ID is left for a client."""
        return self.epoch >= LAST_EPOCH_GIVEN

    @property
    def deadline_ms(self) -> int:
        """Time at which the open transaction times out, in ms since 1970."""
        return self.started_ms + self.timeout_ms

    def completed(self, now_ms: int) -> TransactionMetadata:
        """Return the state after all markers were written."""
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
    """Return the state that a record contains.

    Raises:
        ValueError: The state number is unknown.
    """
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
    """Return the record value of a state. In the state Empty, partitions are null, as in Kafka."""
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
    """Return partitions in ascending order, grouped by topic."""
    grouped: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        grouped.setdefault(topic, []).append(index)
    return grouped
