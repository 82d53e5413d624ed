"""Records of the internal topics, and their encoding."""

from __future__ import annotations

from typing import Any, TypeAlias

from kbroker.protocol import (
    consumer_group_metadata,
    group_metadata,
    share_group_metadata,
    share_state_log,
    streams_group_metadata,
)
from kbroker.protocol.primitives import Buffer
from kbroker.protocol.transaction_log import TransactionLogKey, TransactionLogValue
from kbroker.protocol.versioned import RecordKinds, UnreadValue, version_of

RecordKey: TypeAlias = (
    group_metadata.Key
    | consumer_group_metadata.Key
    | share_group_metadata.Key
    | streams_group_metadata.Key
    | share_state_log.Key
    | TransactionLogKey
)
RecordValue: TypeAlias = (
    group_metadata.Value
    | consumer_group_metadata.Value
    | share_group_metadata.Value
    | streams_group_metadata.Value
    | share_state_log.Value
    | TransactionLogValue
    | UnreadValue
)


# Encoded key and value of a record.
Stored: TypeAlias = tuple[bytes, bytes | None]


class CoordinatorRecord:
    """A record of an internal topic. A value of None (tombstone) deletes the entry.

    A coordinator replays the record that it created, not its encoded bytes. So a record must equal
    the result of decoding its bytes: set no field that the record version does not store.

    Attributes:
        stored: Encoded key and value, once the record was encoded. They are cached because memory
            is counted by the encoded size.
    """

    __slots__ = ("key", "stored", "value")

    def __init__(
        self, key: RecordKey, value: RecordValue | None, stored: Stored | None = None
    ) -> None:
        self.key = key
        self.value = value
        self.stored = stored

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CoordinatorRecord):
            return NotImplemented
        return (self.key, self.value) == (other.key, other.value)

    __hash__ = None  # type: ignore[assignment]


class CoordinatorRecordSerde:
    """Encoder and decoder for the records of one internal topic.

    Args:
        kinds: Record types of the topic.
    """

    def __init__(self, *kinds: RecordKinds[Any, Any]) -> None:
        self._by_kind = {kind: each for each in kinds for kind in each.keys}
        self._by_class = {cls: each for each in kinds for cls in each.keys.values()}

    def encode(self, record: CoordinatorRecord) -> Stored:
        """Encode a record. The result is cached in the record.

        Returns:
            Key and value.

        Raises:
            EncodeError: A field is too large.
        """
        if record.stored is None:
            key, value = record.key, record.value
            kinds = self._by_class[type(key)]
            encoded = None if value is None else kinds.encode_value(value)
            record.stored = kinds.encode_key(key), encoded
        return record.stored

    def decode(self, key: Buffer, value: Buffer | None) -> CoordinatorRecord | None:
        """Decode a stored record.

        Returns:
            The record, or None for a record type of a later release.

        Raises:
            DecodeError: The bytes are not a record of this topic.
        """
        kinds = self._by_kind.get(version_of(key))
        if kinds is None:
            return None
        entry = kinds.decode_key(key)
        assert entry is not None, "record type is known"
        decoded = None if value is None else kinds.decode_value(entry, value)
        stored = bytes(key), None if value is None else bytes(value)
        return CoordinatorRecord(entry, decoded, stored)


# Encoder and decoder for `__consumer_offsets`.
OFFSETS_SERDE = CoordinatorRecordSerde(
    group_metadata.KINDS,
    consumer_group_metadata.KINDS,
    streams_group_metadata.KINDS,
    share_group_metadata.KINDS,
)
