"""Records of the topic `_schemas`, byte for byte as Confluent's registry writes their keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from .values import Malformed

SCHEMA, CONFIG, MODE = "SCHEMA", "CONFIG", "MODE"
DELETE_SUBJECT, CLEAR_SUBJECT, NOOP = "DELETE_SUBJECT", "CLEAR_SUBJECT", "NOOP"
LAST_ID = "kbroker.last.id"
"""A header of NOOP records: the highest id that was given out, whatever became of its schemas."""


class Entry(NamedTuple):
    """A record: its key, and its value or None for a tombstone.

    `stored_key` holds the key's bytes as another registry wrote them, or None for our own form.
    """

    key: Mapping[str, Any]
    value: Mapping[str, Any] | None = None
    last_id: int | None = None
    stored_key: bytes | None = None

    def key_bytes(self) -> bytes:
        """The serialized key. Compaction compares these bytes."""
        return _bytes(self.key) if self.stored_key is None else self.stored_key

    def value_bytes(self) -> bytes | None:
        """As it is stored."""
        return None if self.value is None else _bytes(self.value)


def schema_key(subject: str, version: int) -> dict[str, object]:
    """Of one version."""
    return {"keytype": SCHEMA, "subject": subject, "version": version, "magic": 1}


def subject_key(kind: str, subject: str | None) -> dict[str, object]:
    """Of a setting or a deletion; None for what holds for all subjects."""
    return {"keytype": kind, "subject": subject, "magic": 0}


def noop(last_id: int | None = None) -> Entry:
    """Make a record that changes nothing, and that fences writers of earlier epochs.

    Its magic byte differs from that of other registries, so that compaction keeps the header with
    the highest schema ID when another registry writes a NOOP of its own.
    """
    return Entry({"keytype": NOOP, "magic": 1}, None, last_id)


def tombstone(key: bytes) -> Entry:
    """Create a tombstone for exactly these key bytes."""
    return Entry(_read(key) or {}, None, None, key)


def read_entry(key: bytes | None, value: bytes | None, last_id: bytes | None = None) -> Entry:
    """What a record says. Raises ValueError."""
    read = _read(key)
    if read is None:
        raise ValueError("a record of the registry has no key")
    known = int(last_id) if last_id is not None and last_id.isdigit() else None
    return Entry(read, _read(value), known, key)


def _read(data: bytes | None) -> dict[str, object] | None:
    if data is None:
        return None
    try:
        read = json.loads(data)
    except RecursionError:
        raise ValueError("a record of the registry is nested too deep") from None
    if not isinstance(read, dict):
        raise Malformed("a record of the registry is no object")
    return read


def _bytes(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(
        "utf-8", "surrogatepass"
    )
