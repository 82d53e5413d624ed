"""The records of `__transaction_state`: the state of each transactional ID (KIP-98, KIP-890).

A key or value is an int16 version and a struct in that version. A null value (tombstone) removes
the transactional ID. Kafka writes value version 1 if `transaction.version` is 1 or 2, and version 0
if it is 0.
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
    """The transactional ID of a record."""

    transactional_id: str


@message(versions="0-1", flexible="1+")
class TransactionLogValue:
    """The state of a transactional ID; timestamps are in ms since the epoch."""

    @nested
    class Topic:
        """Partitions of one topic."""

        topic: str
        partitions: list[Int32]

    producer_id: Int64
    previous_producer_id: Int64 = wire(since=1, tag=0, default=NO_PRODUCER_ID)
    """The previous producer ID, to recognize a retry of the last EndTxn (KIP-890)."""
    next_producer_id: Int64 = wire(since=1, tag=1, default=NO_PRODUCER_ID)
    """The next producer ID, if the epochs of the current one are exhausted."""
    producer_epoch: Int16
    next_producer_epoch: Int16 = wire(since=1, tag=3, default=NO_PRODUCER_EPOCH)
    """Epoch of `next_producer_id` (KIP-939)."""
    timeout_ms: Int32
    status: Int8
    """0 Empty, 1 Ongoing, 2 PrepareCommit, 3 PrepareAbort, 4 CompleteCommit, 5 CompleteAbort,
    6 Dead, 7 PrepareEpochFence."""
    partitions: list[Topic] | None
    """Partitions in the transaction; null before the first one."""
    last_update_timestamp: Int64
    start_timestamp: Int64
    """-1 if no transaction was started."""
    client_transaction_version: Int16 = wire(since=1, tag=2, default=0)
    """The `transaction.version` that the producer used."""


KINDS: RecordKinds[TransactionLogKey, TransactionLogValue] = RecordKinds(
    {KEY_VERSION: TransactionLogKey}, {TransactionLogKey: TransactionLogValue}, VALUE_VERSION
)


def encode_key(transactional_id: str) -> bytes:
    """Encode the key of a record. Raises EncodeError if the ID has more than 32767 bytes."""
    return KINDS.encode_key(TransactionLogKey(transactional_id=transactional_id))


def encode_value(value: TransactionLogValue, version: int) -> bytes:
    """Encode the value of a record in `version`; version 0 omits the tagged fields.

    Raises:
        EncodeError: A field does not fit, or the version is unknown.
    """
    return encode_versioned(value, version)


def decode_key(buffer: Buffer) -> str | None:
    """Decode the key of a record; return None for an unknown record type.

    Raises:
        DecodeError: The bytes are not a key.
    """
    key = KINDS.decode_key(buffer)
    return None if key is None else key.transactional_id


def decode_value(buffer: Buffer) -> TransactionLogValue:
    """Decode the value of a record. Raises DecodeError, also for an unknown version."""
    return decode_versioned(TransactionLogValue, buffer)
