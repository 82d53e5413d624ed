"""Wire format of Confluent's serializers: the schema ID or GUID of a key or value."""

from __future__ import annotations

import uuid
from typing import NamedTuple

# Value of the first byte before a 4-byte schema ID and before a 16-byte GUID.
BY_ID, BY_GUID = 0, 1
# Size of the first byte with the ID or with the GUID.
ID_END, GUID_END = 5, 17


class Frame(NamedTuple):
    """A key or value, split into the identifier of its schema and the encoded data.

    Attributes:
        schema: Schema ID or GUID.
        indexes: Message indexes from the header; None if the schema prefix is in the data itself.
        body: The encoded data.
    """

    schema: int | str
    indexes: bytes | None
    body: bytes


def frame_of(data: bytes, header: bytes | None) -> Frame | None:
    """Return the frame of a key or value, or None if it has no schema identifier.

    Args:
        data: The key or value.
        header: Record header with the schema identifier, or None; has precedence over `data`.
    """
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


def prefix_of(schema_id: int) -> bytes:
    """Return the bytes before data with a schema ID."""
    return bytes([BY_ID]) + schema_id.to_bytes(ID_END - 1, "big")
