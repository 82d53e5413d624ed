"""Records of the codec matrix: every library writes the same records with every codec."""

from __future__ import annotations

from typing import Any

from .clients import LIBRARIES, Library

WRITERS = [(library, codec) for library in LIBRARIES.values() for codec in library.codecs]

# Records with edge cases, and enough compressible data for batches of several records.
RECORDS: list[dict[str, Any]] = [
    {"key": "plain", "value": "plain"},
    {"key": None, "value": "null key"},
    {"key": "null value", "value": None},
    {"key": None, "value": ""},
    {"key": "", "value": "empty key"},
    {"key": "bytes", "value": "".join(map(chr, range(256)))},
    {"key": "headers", "value": "x", "headers": [["a", "1"], ["b", ""], ["a", "2"]]},
    {"key": "null header", "value": "x", "headers": [["null", None]]},
    {"key": "big", "value": "kbroker " * 12_500},
    {"key": "back in time", "value": "x", "timestamp": 1_357_020_000_000},
    *({"key": f"key {i}", "value": f"value {i} " * 20} for i in range(200)),
]


def topic_of(library: Library, codec: str) -> str:
    """Return the topic that a library writes with a codec."""
    return f"codecs-{library.name}-{codec}"


def records_of(library: Library) -> list[dict[str, Any]]:
    """Return RECORDS, adapted to what the library can write."""
    return [_adapted(record, library) for record in RECORDS]


def _adapted(record: dict[str, Any], library: Library) -> dict[str, Any]:
    adapted = dict(record)
    if not library.null_headers:
        adapted["headers"] = [[name, value or ""] for name, value in record.get("headers", [])]
    if not library.far_timestamps:
        adapted.pop("timestamp", None)
    return adapted


def read_through(record: dict[str, Any], writer: Library, reader: Library) -> dict[str, Any]:
    """Return the parts of a record that both libraries preserve, for comparison."""
    kinds = {writer.headers, reader.headers}
    kept = (lambda text: text) if reader.reads_empty else (lambda text: text or None)
    headers = [(name, kept(value)) for name, value in record.get("headers", [])]
    return {
        "key": kept(record["key"]),
        "value": kept(record["value"]),
        "headers": _headers_to_compare(headers, kinds),
    }


def _headers_to_compare(headers: list[tuple[str, str | None]], kinds: set[str]) -> Any:
    if "map" in kinds:
        return dict(headers)
    return sorted(headers, key=lambda one: one[0]) if "grouped" in kinds else headers
