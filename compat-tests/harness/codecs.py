"""What the codec matrix writes: every library, every codec, the same records."""

from __future__ import annotations

from typing import Any

from .clients import LIBRARIES, Library

WRITERS = [(library, codec) for library in LIBRARIES.values() for codec in library.codecs]

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
"""Mixed on purpose; compressible, and enough for real batches."""


def topic_of(library: Library, codec: str) -> str:
    """The topic that one library writes with one codec."""
    return f"codecs-{library.name}-{codec}"


def records_of(library: Library) -> list[dict[str, Any]]:
    """What this library writes: all RECORDS, with an empty header where it cannot do null."""
    if library.null_headers:
        return RECORDS
    return [
        {**record, "headers": [[name, value or ""] for name, value in record.get("headers", [])]}
        for record in RECORDS
    ]
