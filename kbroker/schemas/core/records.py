"""Records of the topic `_schemas`; keys are byte-compatible with Confluent's registry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from .values import Malformed

SCHEMA, CONFIG, MODE = "SCHEMA", "CONFIG", "MODE"
DELETE_SUBJECT, CLEAR_SUBJECT, NOOP = "DELETE_SUBJECT", "CLEAR_SUBJECT", "NOOP"
# Header of NOOP records: the highest schema ID ever assigned.
LAST_ID = "kbroker.last.id"


class Entry(NamedTuple):
    """A record of the topic.

    Attributes:
        key: JSON object in the key.
        value: JSON object in the value; None for a tombstone.
        last_id: Highest schema ID ever assigned, which only NOOP records contain.
        stored_key: Key bytes as another registry wrote them; None to serialize `key` as Confluent does.
    """

    key: Mapping[str, Any]
    value: Mapping[str, Any] | None = None
    last_id: int | None = None
    stored_key: bytes | None = None

    def key_bytes(self) -> bytes:
        """Return the serialized key. Compaction compares these bytes."""
        return _bytes(self.key) if self.stored_key is None else self.stored_key

    def value_bytes(self) -> bytes | None:
        """Return the serialized value, None for a tombstone."""
        return None if self.value is None else _bytes(self.value)


def schema_key(subject: str, version: int) -> dict[str, object]:
    """Return the key of a schema version."""
    return {"keytype": SCHEMA, "subject": subject, "version": version, "magic": 1}


def subject_key(kind: str, subject: str | None) -> dict[str, object]:
    """Return the key of a setting or a subject deletion; None stands for all subjects."""
    return {"keytype": kind, "subject": subject, "magic": 0}


def noop(last_id: int | None = None) -> Entry:
    """Create a NOOP record, which also fences writers with earlier epochs.

    The magic number in its key differs from that of other registries. Therefore, compaction keeps the
    header with the highest schema ID when another registry writes a NOOP record.
    """
    return Entry({"keytype": NOOP, "magic": 1}, None, last_id)


def tombstone(key: bytes) -> Entry:
    """Create a tombstone for exactly these key bytes."""
    return Entry(_read_object(key) or {}, None, None, key)


def read_entry(key: bytes | None, value: bytes | None, last_id: bytes | None = None) -> Entry:
    """Parse a record. Raises ValueError."""
    read = _read_object(key)
    if read is None:
        raise ValueError("the record has no key")
    recorded_id = int(last_id) if last_id is not None and last_id.isdigit() else None
    return Entry(read, _read_object(value), recorded_id, key)


def _read_object(data: bytes | None) -> dict[str, object] | None:
    if data is None:
        return None
    try:
        read = json.loads(data)
    except RecursionError:
        raise ValueError("the record is nested too deeply") from None
    if not isinstance(read, dict):
        raise Malformed("the key or value is not a JSON object")
    return read


def _bytes(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(
        "utf-8", "surrogatepass"
    )
