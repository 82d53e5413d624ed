"""Keys and values decoded by the schema that their record names."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

from kbroker.protocol.records import Record

# Maximum number of headers that are searched for a schema ID.
HEADERS_SEARCHED_MAX = 1_000
LONG_BYTES = 8


class Decoded(NamedTuple):
    """A key or value with a schema prefix.

    Attributes:
        schema: Subject, version, ID and type; None if the schema is unknown.
        text: The whole document as JSON; None if decoding failed.
        problem: Why decoding failed, as a sentence.
        is_too_large: True if decoding failed because of the size.
        is_guess: True if the bytes may have no schema prefix at all.
    """

    schema: Mapping[str, object] | None = None
    document: object = None
    text: str | None = None
    problem: str = ""
    is_too_large: bool = False
    is_guess: bool = False

    def is_plain_long(self, data: bytes) -> bool:
        """Return True if the decoded data is probably a big-endian long without a schema.

        Small longs begin with a zero byte, as data with a schema ID does.

        Args:
            data: The bytes that were decoded.
        """
        return self.is_guess and len(data) == LONG_BYTES


def schema_header_of(record: Record, name: str) -> bytes | None:
    """Return the value of the header with the schema ID of the `key` or `value`, or None."""
    wanted = f"__{name}_schema_id"
    headers = islice(record.headers, HEADERS_SEARCHED_MAX)
    return next((text for each, text in headers if each == wanted), None)
