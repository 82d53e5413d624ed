"""Conversion of records to JSON rows for the console, with guesses about undecoded bytes."""

from __future__ import annotations

import base64
import json
from typing import NamedTuple

from kbroker.client.ndjson import timestamp_type
from kbroker.coordinator_runtime.log_records import coordinator_record
from kbroker.protocol.errors import KafkaError
from kbroker.protocol.primitives import DecodeError
from kbroker.protocol.record_stream import OversizedRecord
from kbroker.protocol.records import BatchHeader, Record
from kbroker.text.documents import read_json

from .schemas import NOT_DECODED, Decoded, DecodedParts

# Maximum size of a key or value in a row; the rest is loaded on demand.
SHOWN_BYTES = 4096
# Maximum number of characters of a decoded key or value.
TEXT_MAX = 4 * SHOWN_BYTES
HEADERS_MAX = 64
HEADER_BYTES = 1024
# Size of Confluent's frame: a zero byte and a 4-byte schema ID.
SCHEMA_HEAD = 5
INTEGERS = {2: "int16", 4: "int32", 8: "int64"}


class ShownRecord(NamedTuple):
    """A record, truncated to what a row shows.

    Attributes:
        meaning: Content of a coordinator's record (internal topics).
        oversized_bytes: Size of a record that is too large to read; 0 for others.
    """

    partition: int
    record: Record
    batch: BatchHeader
    key_size: int | None
    value_size: int | None
    meaning: dict[str, object] | None
    key_decoded: Decoded | None
    value_decoded: Decoded | None
    oversized_bytes: int = 0


def seen(
    topic: str,
    partition: int,
    record: Record,
    batch: BatchHeader,
    decoded: DecodedParts = NOT_DECODED,
) -> ShownRecord:
    """Truncate a record for display."""
    key, value = record.key, record.value
    meaning = None
    if is_internal_topic(topic) and key is not None and len(key) + len(value or b"") < 65_536:
        try:
            meaning = coordinator_record(topic, key, value)
        except (DecodeError, KafkaError, ValueError):
            meaning = None
    headers = [
        (name[:HEADER_BYTES], text if text is None else text[: HEADER_BYTES + 1])
        for name, text in record.headers[:HEADERS_MAX]
    ]
    kept = record._replace(
        key=key if key is None else key[:SHOWN_BYTES],
        value=value if value is None else value[:SHOWN_BYTES],
        headers=headers,
    )
    sizes = None if key is None else len(key), None if value is None else len(value)
    return ShownRecord(
        partition, kept, batch, *sizes, meaning, _kept(decoded.key), _kept(decoded.value)
    )


def oversized(partition: int, record: OversizedRecord, batch: BatchHeader) -> ShownRecord:
    """Return a placeholder for a record that is too large to read."""
    return ShownRecord(
        partition,
        Record(timestamp=record.timestamp, offset=record.offset),
        batch,
        None,
        None,
        None,
        None,
        None,
        record.size,
    )


def _kept(decoded: Decoded | None) -> Decoded | None:
    """Truncate a decoded part, with one extra character that marks the truncation."""
    if decoded is None or decoded.text is None:
        return decoded
    return decoded._replace(document=None, text=decoded.text[: TEXT_MAX + 1])


def row(topic: str, one: ShownRecord) -> dict[str, object]:
    """Return the JSON row of a record."""
    record = one.record
    is_internal = is_internal_topic(topic)
    fields: dict[str, object] = {
        "topic": topic,
        "partition": one.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": timestamp_type(one.batch),
        **_shown("key", record.key, one.key_size, one.key_decoded, is_internal=is_internal),
        **_shown("value", record.value, one.value_size, one.value_decoded, is_internal=is_internal),
        "headers": [_header(name, value) for name, value in record.headers],
    }
    if one.meaning is not None:
        text = json.dumps(one.meaning, ensure_ascii=False)
        fields |= {"value_format": "coordinator", "value_text": text[:TEXT_MAX]}
    if one.oversized_bytes:
        fields["oversized_bytes"] = one.oversized_bytes
    if one.batch.is_transactional:
        fields["producer_id"] = one.batch.producer_id
    return fields


def _header(name: str, value: bytes | None) -> dict[str, object]:
    size = None if value is None else len(value)
    shown = None if value is None else value[:HEADER_BYTES]
    encoded = name.encode(errors="surrogateescape")
    return _shown("key", encoded, len(encoded)) | _shown("value", shown, size)


def is_internal_topic(topic: str) -> bool:
    """Return True for topics in which Kafka keeps its own state, which use no schema registry."""
    return topic.startswith("__")


def _shown(
    name: str,
    data: bytes | None,
    size: int | None,
    decoded: Decoded | None = None,
    *,
    is_internal: bool = False,
) -> dict[str, object]:
    """Return the fields of a key, value or header.

    Args:
        name: Prefix of the fields, "key" or "value".
        data: The bytes, possibly truncated; None for null.
        size: Size of the whole in bytes.
        decoded: The part as decoded by its schema.
        is_internal: True for internal topics, where a leading zero byte is not Confluent's frame.

    Returns:
        `name` or `name_base64`, the size, format and text where they differ from the bytes, the schema,
        and the reason if the schema could not be applied.
    """
    if data is None:
        return {name: None}
    is_cut = size is not None and size > len(data)
    fields: dict[str, object] = {}
    text = _text(data, is_cut)
    if text is None:
        fields[f"{name}_base64"] = base64.b64encode(data).decode()
    else:
        fields[name] = text
    form, shown = _meaning(data, text, is_cut, may_have_schema=not is_internal)
    fields[f"{name}_format"] = form
    if shown is not None:
        fields[f"{name}_text"] = shown
    if is_cut:
        fields |= {f"{name}_size": size, f"{name}_cut": True}
    if decoded is None or (decoded.is_guess and form != "schema"):
        return fields
    return fields | _by_schema(name, decoded)


def _by_schema(name: str, decoded: Decoded) -> dict[str, object]:
    if decoded.schema is None:
        return {f"{name}_trouble": decoded.trouble}
    fields: dict[str, object] = {f"{name}_schema": decoded.schema}
    if decoded.text is None:
        return fields | {f"{name}_trouble": decoded.trouble}
    fields |= {
        f"{name}_format": str(decoded.schema["type"]).lower(),
        f"{name}_text": decoded.text[:TEXT_MAX],
    }
    if len(decoded.text) > TEXT_MAX:
        fields[f"{name}_text_cut"] = True
    return fields


def _text(data: bytes, is_cut: bool) -> str | None:
    """Return the text if the bytes are UTF-8; tolerate a truncated last character."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if is_cut and error.start > len(data) - 4:
            return data[: error.start].decode()
        return None


def _meaning(
    data: bytes, text: str | None, is_cut: bool, *, may_have_schema: bool
) -> tuple[str, str | None]:
    if text is not None and all(c.isprintable() or c in "\n\r\t" for c in text):
        return ("json" if _is_json(text, is_cut) else "text"), None
    if not is_cut and len(data) in INTEGERS:
        return INTEGERS[len(data)], str(int.from_bytes(data, "big", signed=True))
    if may_have_schema and data[0] == 0 and len(data) > SCHEMA_HEAD:
        schema_id = int.from_bytes(data[1:SCHEMA_HEAD], "big")
        return "schema", f"schema {schema_id}: {data[SCHEMA_HEAD:].hex()}"
    return ("text", None) if text is not None else ("hex", data.hex())


def _is_json(text: str, is_cut: bool) -> bool:
    if not text.lstrip()[:1] in tuple("{["):
        return False
    if is_cut:
        return True
    try:
        read_json(text)
    except ValueError:
        return False
    return True
