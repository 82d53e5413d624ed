"""Decoded records of internal topics, with key and value apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kbroker.coordinator_runtime.log_records import coordinator_record
from kbroker.protocol.errors import KafkaError
from kbroker.protocol.primitives import DecodeError
from kbroker.protocol.records import Record

# Maximum size of a key and value, in bytes, that are decoded.
DECODED_BYTES_MAX = 65_535
DELETED = "tombstone"


class InternalRecord(NamedTuple):
    """A record that a coordinator wrote.

    Attributes:
        key: Fields of the key.
        fields: Fields of key and value; `tombstone` is true if the value is null.
    """

    key: Mapping[str, object]
    fields: Mapping[str, object]


def is_internal_topic(topic: str) -> bool:
    """Return True for topics with Kafka's own state, whose records have no registered schema."""
    return topic.startswith("__")


def decode_internal(topic: str, record: Record) -> InternalRecord | None:
    """Decode a record of an internal topic.

    Returns:
        The fields, or None for other topics, unknown types of records, and large records.
    """
    key, value = record.key, record.value
    if not is_internal_topic(topic) or key is None:
        return None
    if len(key) + len(value or b"") > DECODED_BYTES_MAX:
        return None
    try:
        fields = coordinator_record(topic, key, value)
        alone = fields and coordinator_record(topic, key, None)
    except (DecodeError, KafkaError, ValueError):
        return None
    if not fields or not alone:
        return None
    return InternalRecord({name: each for name, each in alone.items() if name != DELETED}, fields)
