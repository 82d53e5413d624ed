"""NDJSON format of records, which preserves every byte on export and import.

A line is an object::

    {"topic": "orders", "partition": 0, "offset": 5, "timestamp": 1700000000000,
     "timestamp_type": "CreateTime", "key": "k", "value": "v",
     "headers": [{"key": "h", "value": "x"}]}

Bytes that are not UTF-8 are stored in `key_base64` and `value_base64` instead, also in headers. A
null key or value is `null`. On import every field is optional. A missing timestamp means the current
time, and -1 means no timestamp. A missing offset is -1.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import NamedTuple

from kbroker.protocol.primitives import INT64_MAX
from kbroker.protocol.records import TIMESTAMP_MIN, BatchHeader, Record
from kbroker.text.documents import Json, read_json

FIELDS = frozenset(
    {
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestamp_type",
        "key",
        "key_base64",
        "value",
        "value_base64",
        "headers",
    }
)


# Fields with the schema of a key or value that `consume` has decoded.
SCHEMA_FIELDS = frozenset(
    {"key_schema_id", "key_schema_message", "value_schema_id", "value_schema_message"}
)


class BadLine(ValueError):
    """A line is not a valid record; the message states why."""


class LineSchema(NamedTuple):
    """Registered schema of a key or value, with the name of the message for Protobuf."""

    id: int
    message: str | None


class Line(NamedTuple):
    """A parsed line; values that the line does not specify are None.

    Attributes:
        key_schema: Schema with which the key must be encoded.
        value_schema: Schema with which the value must be encoded.
    """

    topic: str | None
    partition: int | None
    record: Record
    key_schema: LineSchema | None = None
    value_schema: LineSchema | None = None


def record_fields(
    topic: str, partition: int, record: Record, batch: BatchHeader, *, meta_only: bool = False
) -> dict[str, object]:
    """Return the fields of a record; with `meta_only` the size of the value replaces the value."""
    fields: dict[str, object] = {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": timestamp_type(batch),
        **bytes_field("key", record.key),
    }
    if meta_only:
        fields["value_size"] = None if record.value is None else len(record.value)
    else:
        fields |= bytes_field("value", record.value)
    fields["headers"] = headers_field(record)
    return fields


def timestamp_type(batch: BatchHeader) -> str:
    """Return Kafka's name of the batch's timestamp type."""
    return "LogAppendTime" if batch.is_log_append_time else "CreateTime"


def bytes_field(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return a key or value as a JSON field, in base64 if it is not UTF-8."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def headers_field(record: Record) -> list[dict[str, str | None]]:
    """Return the headers of a record, in order."""
    return [
        bytes_field("key", key.encode(errors="surrogateescape")) | bytes_field("value", value)
        for key, value in record.headers
    ]


def parse_line(text: bytes | str, now_ms: int, *, with_schemas: bool = False) -> Line:
    """Parse one line.

    Args:
        text: The line.
        now_ms: Timestamp of a record without one, in ms since the epoch.
        with_schemas: Permit schema IDs; the caller encodes the key and value.

    Raises:
        BadLine: The line is not a valid record.
    """
    try:
        fields = read_json(text)
    except ValueError as error:
        raise BadLine(f"invalid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BadLine('a line must be an object such as {"value": "hello"}')
    known = FIELDS | SCHEMA_FIELDS if with_schemas else FIELDS
    unknown = sorted(fields.keys() - known)
    if unknown:
        raise BadLine(f"unknown field {unknown[0]!r} (valid: {', '.join(sorted(known))})")
    record = Record(
        _bytes(fields, "key"),
        _bytes(fields, "value"),
        _number(fields, "timestamp", now_ms, least=TIMESTAMP_MIN),
        _headers(fields.get("headers") or []),
        _number(fields, "offset", -1),
    )
    topic = fields.get("topic")
    if topic is not None and not isinstance(topic, str):
        raise BadLine("topic must be a string")
    partition = _number(fields, "partition", -1)
    return Line(
        topic,
        partition if partition >= 0 else None,
        record,
        _schema(fields, "key_schema"),
        _schema(fields, "value_schema"),
    )


def _schema(fields: Mapping[str, Json], name: str) -> LineSchema | None:
    schema_id, message = _number(fields, f"{name}_id", -1), fields.get(f"{name}_message")
    if message is not None and not isinstance(message, str):
        raise BadLine(f"{name}_message must be a string")
    return None if schema_id < 0 else LineSchema(schema_id, message)


def _bytes(fields: Mapping[str, Json], name: str) -> bytes | None:
    encoded, value = fields.get(f"{name}_base64"), fields.get(name)
    if encoded is not None:
        if value is not None:
            raise BadLine(f"{name} and {name}_base64 are mutually exclusive")
        try:
            if isinstance(encoded, str):
                return base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            pass
        raise BadLine(f"{name}_base64: invalid base64")
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode(errors="surrogatepass")
    # Seed files written by hand contain the value as plain JSON.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _number(fields: Mapping[str, Json], name: str, default: int, *, least: int = -1) -> int:
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= INT64_MAX:
        raise BadLine(f"{name} must be an integer, not {value!r}")
    return value


def _headers(rows: Json) -> list[tuple[str, bytes | None]]:
    objects = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    if not isinstance(rows, list) or len(objects) < len(rows):
        raise BadLine('headers must be a list of {"key": ..., "value": ...}')
    headers = []
    for row in objects:
        key = _bytes(row, "key")
        if key is None:
            raise BadLine("each header must have a key")
        headers.append((key.decode(errors="surrogateescape"), _bytes(row, "value")))
    return headers
