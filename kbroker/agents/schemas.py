"""Decoding of keys and values that start with the ID of a schema in a registry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from kbroker.client.consumer import Read
from kbroker.client.decoded import Decoded, schema_header_of

# Maximum length of a problem, which may quote a schema.
PROBLEM_LENGTH_MAX = 500
# Fields of a schema that a result contains.
IDENTIFIERS = ("id", "guid")


class SchemaDecoder(Protocol):
    """Decoder of the data of one schema registry."""

    async def decoded(self, data: bytes, header: bytes | None, subject: str) -> Decoded | None:
        """Decode a key or value; return None if it has no schema.

        Args:
            data: The bytes.
            header: Value of the record's header with the schema ID, if any.
            subject: Preferred subject, if several subjects have the schema.
        """
        ...


class DecodedRead(NamedTuple):
    """A consumed record with decoded key and value, and fields that describe the decoding."""

    read: Read
    fields: dict[str, object]


async def decode(schemas: SchemaDecoder | None, found: Sequence[Read]) -> list[DecodedRead]:
    """Decode the keys and values of records; data without a schema stays as it is.

    Args:
        schemas: The decoder, or None to decode nothing.
        found: The records.

    Returns:
        The records. Their fields are the schema, or why the data was not decoded.
    """
    if schemas is None:
        return [DecodedRead(read, {}) for read in found]
    return [await _decode_read(schemas, read) for read in found]


async def _decode_read(schemas: SchemaDecoder, read: Read) -> DecodedRead:
    fields: dict[str, object] = {}
    record = read.record
    key = await _decode_part(schemas, read, "key", record.key, fields)
    value = await _decode_part(schemas, read, "value", record.value, fields)
    return DecodedRead(read._replace(record=record._replace(key=key, value=value)), fields)


async def _decode_part(
    schemas: SchemaDecoder, read: Read, name: str, data: bytes | None, fields: dict[str, object]
) -> bytes | None:
    """Return the decoded text of a part, or its data, and add fields that describe the result."""
    if data is None:
        return None
    header = schema_header_of(read.record, name)
    found = await schemas.decoded(data, header, f"{read.partition[0]}-{name}")
    if found is None:
        return data
    if found.text is None:
        if not found.is_plain_long(data):
            fields[f"{name}_problem"] = found.problem[:PROBLEM_LENGTH_MAX]
        return data
    for each in IDENTIFIERS:
        if found.schema is not None and each in found.schema:
            fields[f"{name}_schema_{each}"] = found.schema[each]
    text = found.document if isinstance(found.document, str) else found.text
    return text.encode(errors="surrogatepass")
