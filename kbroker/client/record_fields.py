"""Fields of records for filter expressions, with bounds on the work per record."""

from __future__ import annotations

from itertools import islice

from kbroker.protocol.records import Record
from kbroker.text.documents import read_json
from kbroker.text.expression import text_of

# Maximum size of a JSON value that is searched: larger ones exceed a time slice.
JSON_BYTES_MAX = 256 * 1024
# Maximum number of headers of a record that are searched.
HEADERS_MAX = 10_000
# Maximum number of characters of one record that all terms of an expression search together.
CHARACTERS_SEARCHED_MAX = 8 * 1024 * 1024
# Cost of serializing a part of a JSON document, relative to searching a string of that length.
SERIALIZING_COST = 4


class FieldsOfRecord:
    """Fields of a record, whose key and value are strings or JSON.

    Args:
        topic: Topic of the record, or None if it is unknown.
        partition: Partition of the record, or None if it is unknown.
        record: The record.

    Attributes:
        is_too_large: True if a value was too large to evaluate.
    """

    def __init__(self, topic: str | None, partition: int | None, record: Record) -> None:
        self._topic = topic
        self._partition = partition
        self._record = record
        self._documents: dict[str, object] = {}
        self._whole: dict[str, str] = {}
        self._texts: dict[str, str] = {}
        self._characters_left = CHARACTERS_SEARCHED_MAX
        self.is_too_large = False

    def text(self, path: list[str]) -> str:
        """Return the value at a path as a string.

        After `CHARACTERS_SEARCHED_MAX` characters, return "" and set `is_too_large`.
        """
        name = ".".join(path)
        if name not in self._texts:
            if self._characters_left <= 0:
                self.is_too_large = True
                return ""
            found = self(path)
            text = text_of(found)
            self._texts[name] = text
            self._characters_left -= len(text) * (1 if isinstance(found, str) else SERIALIZING_COST)
        text = self._texts[name]
        self._characters_left -= len(text)
        if self._characters_left < 0 and text:
            self.is_too_large = True
            return ""
        return text

    def __call__(self, path: list[str]) -> object:
        """Return the value at a path, None if it is absent."""
        record, (first, *rest) = self._record, path
        if first in ("key", "value"):
            return self.part(first, record.key if first == "key" else record.value, rest)
        if first == "headers":
            name = ".".join(rest)
            headers = islice(record.headers, HEADERS_MAX)
            texts = (value for key, value in headers if key == name)
            found = next(texts, None)
            return None if found is None else found.decode(errors="replace")
        return {
            "topic": self._topic,
            "partition": self._partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "size": len(record.value or b""),
        }[first]

    def part(self, name: str, data: bytes | None, path: list[str]) -> object:
        """Return the value at a path in the key or value.

        Args:
            name: "key" or "value".
            data: The bytes of this part.
            path: Path in the JSON document; if empty, the bytes as a string.
        """
        if data is None:
            return None
        if not path:
            if name not in self._whole:
                self._whole[name] = data.decode(errors="replace")
            return self._whole[name]
        if name not in self._documents:
            self.is_too_large |= len(data) > JSON_BYTES_MAX
            try:
                self._documents[name] = read_json(data) if len(data) <= JSON_BYTES_MAX else None
            except ValueError:
                self._documents[name] = None
        return value_at(self._documents[name], path)


def value_at(found: object, path: list[str]) -> object:
    """Return the value at a path of objects and lists, None if it is absent."""
    for step in path:
        if isinstance(found, dict):
            found = found.get(step)
        elif isinstance(found, list) and step.isascii() and step.isdigit() and len(step) < 9:
            found = found[int(step)] if int(step) < len(found) else None
        else:
            return None
    return found
