"""How records say which schema their keys and values are written with, as Confluent's serializers do it."""

from __future__ import annotations

import uuid
from typing import NamedTuple

BY_ID, BY_GUID = 0, 1
"""The first byte: an id of four bytes stands behind it, or a GUID of sixteen."""
ID_END, GUID_END = 5, 17


class Frame(NamedTuple):
    """A key or a value, and what is told of its schema."""

    schema: int | str
    """An id, or a GUID."""
    indexes: bytes | None
    """Behind a schema in a header; None where that stands in front of the value itself."""
    body: bytes


def frame_of(data: bytes, header: bytes | None) -> Frame | None:
    """None where nothing tells of a schema; `header` goes before what the bytes begin with."""
    if header is not None and (found := _schema_in(header)) is not None:
        schema, end = found
        return Frame(schema, header[end:], data)
    if (found := _schema_in(data)) is None:
        return None
    schema, end = found
    return Frame(schema, None, data[end:])


def _schema_in(data: bytes) -> tuple[int | str, int] | None:
    if data[:1] == b"\0" and len(data) >= ID_END:
        return int.from_bytes(data[1:ID_END], "big"), ID_END
    if data[:1] == b"\1" and len(data) >= GUID_END:
        return str(uuid.UUID(bytes=data[1:GUID_END])), GUID_END
    return None
