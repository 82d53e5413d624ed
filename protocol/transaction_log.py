"""The records of `__transaction_state`: how each transactional id stands (KIP-98, KIP-890).

A key or value is an int16 and a struct in the form of that version. A null value (tombstone) takes
the transactional id away. Kafka writes value version 1 when `transaction.version` is 1 or 2, and
0 when it is 0.
"""

from __future__ import annotations

from .primitives import Buffer
from .schema import Int8, Int16, Int32, Int64, message, wire
from .schema import struct as nested
from .versioned import RecordKinds, decode_versioned, encode_versioned

KEY_VERSION = 0
VALUE_VERSION = 1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1


@message(versions="0-0")
class TransactionLogKey:
    """Whose state it is."""

    transactional_id: str


@message(versions="0-1", flexible="1+")
class TransactionLogValue:
    """The state of a transactional id; timestamps are ms since the epoch."""

    @nested
    class Topic:
        """Partitions of one topic."""

        topic: str
        partitions: list[Int32]

    producer_id: Int64
    previous_producer_id: Int64 = wire(since=1, tag=0, default=NO_PRODUCER_ID)
    """The one before `producer_id`, so that a retry of the last EndTxn is known (KIP-890)."""
    next_producer_id: Int64 = wire(since=1, tag=1, default=NO_PRODUCER_ID)
    """The one that follows when the running transaction ends: epochs of this one are used up."""
    producer_epoch: Int16
    next_producer_epoch: Int16 = wire(since=1, tag=3, default=NO_PRODUCER_EPOCH)
    """Epoch of `next_producer_id` (KIP-939)."""
    timeout_ms: Int32
    status: Int8
    """0 Empty, 1 Ongoing, 2 PrepareCommit, 3 PrepareAbort, 4 CompleteCommit, 5 CompleteAbort,
    6 Dead, 7 PrepareEpochFence."""
    partitions: list[Topic] | None
    """Those in the transaction; null before the first one."""
    last_update_timestamp: Int64
    start_timestamp: Int64
    """-1 when no transaction was begun."""
    client_transaction_version: Int16 = wire(since=1, tag=2, default=0)
    """The `transaction.version` that the producer went by."""


KINDS: RecordKinds[TransactionLogKey, TransactionLogValue] = RecordKinds(
    {KEY_VERSION: TransactionLogKey}, {TransactionLogKey: TransactionLogValue}, VALUE_VERSION
)


def encode_key(transactional_id: str) -> bytes:
    """The key of a record. Raises EncodeError when the id has more than 32767 bytes."""
    return KINDS.encode_key(TransactionLogKey(transactional_id=transactional_id))


def encode_value(value: TransactionLogValue, version: int) -> bytes:
    """The value of a record in the form of `version`; 0 leaves the tagged fields out.

    Raises:
        EncodeError: a field does not fit, or there is no such version.
    """
    return encode_versioned(value, version)


def decode_key(buffer: Buffer) -> str | None:
    """The transactional id of a record; None for a kind of record that this module does not know.

    Raises:
        DecodeError: the bytes are no key.
    """
    key = KINDS.decode_key(buffer)
    return None if key is None else key.transactional_id


def decode_value(buffer: Buffer) -> TransactionLogValue:
    """The state in a record. Raises DecodeError, for unknown versions too."""
    return decode_versioned(TransactionLogValue, buffer)
