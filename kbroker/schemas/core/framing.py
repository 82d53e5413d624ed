"""Wire format of Confluent's serializers: the schema ID or GUID of a key or value."""

from __future__ import annotations

import uuid
from typing import NamedTuple

# First byte: a 4-byte schema ID or a 16-byte GUID follows.
BY_ID, BY_GUID = 0, 1
ID_END, GUID_END = 5, 17


class Frame(NamedTuple):
    """A key or value with the schema that it names.

    Attributes:
        schema: Schema ID or GUID.
        indexes: Message indexes from the header; None if the schema prefix is in the data itself.
        body: The encoded data.
    """

    schema: int | str
    indexes: bytes | None
    body: bytes


def frame_of(data: bytes, header: bytes | None) -> Frame | None:
    """Return the frame of some data, or None without a schema; a header takes precedence."""
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
