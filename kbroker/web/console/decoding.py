"""Conversion of records to JSON rows for the console, with guesses about undecoded bytes."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from kbroker.client.decoded import Decoded
from kbroker.client.ndjson import timestamp_type
from kbroker.protocol.compression import Codec
from kbroker.protocol.record_stream import OversizedRecord
from kbroker.protocol.records import BatchHeader, Record
from kbroker.text.documents import read_json

from .internal_records import InternalRecord, decode_internal, is_internal_topic
from .schemas import NOT_DECODED, DecodedParts
from .summaries import SCHEMAS_TOPIC, key_summary_of, schema_summary, summary_of

# Maximum size of a key or value in a row; the rest is loaded on demand.
SHOWN_BYTES = 4096
# Maximum number of characters of a decoded key or value.
TEXT_MAX = 4 * SHOWN_BYTES
# Maximum number of headers in a row.
HEADERS_MAX = 64
# Maximum number of characters of a summary.
SUMMARY_MAX = 1_000
# Maximum number of headers whose total size is determined.
HEADERS_MEASURED_MAX = 1_000
# Maximum size of a header's name, and of its value.
HEADER_BYTES = 1024
# Size of Confluent's frame: a zero byte and a 4-byte schema ID.
SCHEMA_HEAD = 5
INTEGERS = {2: "int16", 4: "int32", 8: "int64"}


# State of the transaction of a record: `open` is true of all transactions from the last stable offset
# on, because read_committed consumers wait for them. Empty without a transaction, or if unknown.
TransactionState: TypeAlias = Literal["", "open", "aborted", "committed"]


class ShownRecord(NamedTuple):
    """A record, truncated to what a row shows.

    Attributes:
        meaning: Decoded coordinator's record; None outside internal topics.
        oversized_bytes: Size of a record that is too large to read; 0 for others.
        headers_size: Size of the names and values of all headers; None if there are too many.
        header_count: Number of headers.
        fields: Fields that the page shows as columns.
        summary: Sentence about a record of an internal topic; empty for others.
        key_summary: Description of the key of a coordinator's record; empty for others.
        transaction: State of the record's transaction.
    """

    partition: int
    record: Record
    batch: BatchHeader
    key_size: int | None
    value_size: int | None
    meaning: InternalRecord | None
    key_decoded: Decoded | None
    value_decoded: Decoded | None
    oversized_bytes: int = 0
    headers_size: int | None = 0
    header_count: int = 0
    fields: Mapping[str, object] | None = None
    summary: str = ""
    key_summary: str = ""
    transaction: TransactionState = ""


def truncate_record(
    topic: str,
    partition: int,
    record: Record,
    batch: BatchHeader,
    decoded: DecodedParts = NOT_DECODED,
) -> ShownRecord:
    """Truncate a record for display."""
    key, value = record.key, record.value
    meaning = decode_internal(topic, record)
    summary = key_summary = ""
    if meaning is not None:
        summary = summary_of(topic, meaning.fields)[:SUMMARY_MAX]
        key_summary = key_summary_of(meaning.key)[:SUMMARY_MAX]
    if topic == SCHEMAS_TOPIC and key is not None:
        summary = schema_summary(key, is_deleted=value is None)[:SUMMARY_MAX]
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
        partition,
        kept,
        batch,
        *sizes,
        meaning,
        _truncate_decoded(decoded.key),
        _truncate_decoded(decoded.value),
        headers_size=_headers_size(record),
        header_count=len(record.headers),
        summary=summary,
        key_summary=key_summary,
    )


def _headers_size(record: Record) -> int | None:
    if len(record.headers) > HEADERS_MEASURED_MAX:
        return None
    return sum(
        len(name.encode(errors="surrogateescape")) + len(text or b"")
        for name, text in record.headers
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


def _truncate_decoded(decoded: Decoded | None) -> Decoded | None:
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
        **_part_fields("key", record.key, one.key_size, one.key_decoded, is_internal=is_internal),
        **_part_fields(
            "value", record.value, one.value_size, one.value_decoded, is_internal=is_internal
        ),
        "headers": [_header(name, value) for name, value in record.headers],
    }
    if one.meaning is not None:
        for name, part in (("key", one.meaning.key), ("value", one.meaning.fields)):
            text = json.dumps(part, ensure_ascii=False)
            fields |= {f"{name}_format": "coordinator", f"{name}_text": text[:TEXT_MAX]}
    if one.oversized_bytes:
        fields["oversized_bytes"] = one.oversized_bytes
    if one.key_size is not None:
        fields["key_size"] = one.key_size
    if one.value_size is not None:
        fields["value_size"] = one.value_size
    if one.summary:
        fields["summary"] = one.summary
    if one.key_summary:
        fields["key_summary"] = one.key_summary
    if one.fields is not None:
        fields["fields"] = dict(one.fields)
    if one.batch.is_transactional:
        fields |= {"producer_id": one.batch.producer_id, "transaction": one.transaction or None}
    return fields


def details_row(topic: str, one: ShownRecord) -> dict[str, object]:
    """Return the JSON row of a record with its sizes and a description of its batch."""
    batch = one.batch
    codec = Codec(batch.codec).name.lower() if batch.codec in list(Codec) else str(batch.codec)
    return row(topic, one) | {
        "headers_size": one.headers_size,
        "header_count": one.header_count,
        "batch": {
            "base_offset": batch.base_offset,
            "records": batch.record_count,
            "bytes": batch.size,
            "codec": codec,
            "leader_epoch": batch.leader_epoch,
            "producer_id": batch.producer_id,
            "producer_epoch": batch.producer_epoch,
            "transactional": batch.is_transactional,
        },
    }


def _header(name: str, value: bytes | None) -> dict[str, object]:
    size = None if value is None else len(value)
    shown = None if value is None else value[:HEADER_BYTES]
    encoded = name.encode(errors="surrogateescape")
    return _part_fields("key", encoded, len(encoded)) | _part_fields("value", shown, size)


def _part_fields(
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
        size: Size before truncation, in bytes.
        decoded: The part as decoded by its schema.
        is_internal: True for internal topics, where a leading zero byte is not Confluent's frame.

    Returns:
        `name` or `name_base64`, and the format. Further fields are present if they apply: the text, the
        size before truncation, the schema, and the problem if the schema could not be applied.
    """
    if data is None:
        return {name: None}
    is_truncated = size is not None and size > len(data)
    fields: dict[str, object] = {}
    text = _text(data, is_truncated)
    if text is None:
        fields[f"{name}_base64"] = base64.b64encode(data).decode()
    else:
        fields[name] = text
    form, shown = _format_and_text(data, text, is_truncated, may_have_schema=not is_internal)
    fields[f"{name}_format"] = form
    if shown is not None:
        fields[f"{name}_text"] = shown
    if is_truncated:
        fields |= {f"{name}_size": size, f"{name}_truncated": True}
    if decoded is None or (decoded.is_guess and form != "schema"):
        return fields
    return fields | _schema_fields(name, decoded)


def _schema_fields(name: str, decoded: Decoded) -> dict[str, object]:
    if decoded.schema is None:
        return {f"{name}_problem": decoded.problem}
    fields: dict[str, object] = {f"{name}_schema": decoded.schema}
    if decoded.text is None:
        return fields | {f"{name}_problem": decoded.problem}
    fields |= {
        f"{name}_format": str(decoded.schema["type"]).lower(),
        f"{name}_text": decoded.text[:TEXT_MAX],
    }
    if len(decoded.text) > TEXT_MAX:
        fields[f"{name}_text_truncated"] = True
    return fields


def _text(data: bytes, is_truncated: bool) -> str | None:
    """Return the text if the bytes are UTF-8; tolerate a truncated last character."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if is_truncated and error.start > len(data) - 4:
            return data[: error.start].decode()
        return None


def _format_and_text(
    data: bytes, text: str | None, is_truncated: bool, *, may_have_schema: bool
) -> tuple[str, str | None]:
    if text is not None and all(c.isprintable() or c in "\n\r\t" for c in text):
        return ("json" if _is_json(text, is_truncated) else "text"), None
    if not is_truncated and len(data) in INTEGERS:
        return INTEGERS[len(data)], str(int.from_bytes(data, "big", signed=True))
    if may_have_schema and data[0] == 0 and len(data) > SCHEMA_HEAD:
        schema_id = int.from_bytes(data[1:SCHEMA_HEAD], "big")
        return "schema", f"schema {schema_id}: {data[SCHEMA_HEAD:].hex()}"
    return ("text", None) if text is not None else ("hex", data.hex())


def _is_json(text: str, is_truncated: bool) -> bool:
    if not text.lstrip()[:1] in tuple("{["):
        return False
    if is_truncated:
        return True
    try:
        read_json(text)
    except ValueError:
        return False
    return True
