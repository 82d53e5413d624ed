"""Record filters by patterns of the key, the value, headers and JSON fields."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable

from kbroker.protocol.records import Record
from kbroker.text.documents import read_json
from kbroker.text.expression import Test

from .record_fields import FieldsOfRecord

RecordPredicate = Callable[[Record], bool]
# Selects records by topic, partition and record; topic and partition are None if unknown.
Select = Callable[[str | None, int | None, Record], bool]
_MISSING = object()


class BadFilter(ValueError):
    """A filter is malformed; the message states why."""


class Selection:
    """Selects records that pass all filters and match an expression.

    Args:
        wanted: Filters, or None.
        where: Expression, or None.

    Attributes:
        too_large: Number of records that the expression did not search completely.
    """

    def __init__(self, wanted: RecordPredicate | None, where: Test | None) -> None:
        self._wanted = wanted
        self._where = where
        self.too_large = 0

    def __call__(self, topic: str | None, partition: int | None, record: Record) -> bool:
        """Return True if a record is selected."""
        if self._wanted is not None and not self._wanted(record):
            return False
        if self._where is None:
            return True
        fields = FieldsOfRecord(topic, partition, record)
        found = self._where(fields)
        self.too_large += fields.is_too_large
        return found


def record_filter(
    *,
    keys: Iterable[str] = (),
    values: Iterable[str] = (),
    headers: Iterable[str] = (),
    fields: Iterable[str] = (),
) -> RecordPredicate | None:
    """Return a predicate that accepts records that pass every filter; None without filters.

    Args:
        keys: Regular expressions to find in the key bytes. A null key never matches.
        values: Regular expressions to find in the value bytes. A null value never matches.
        headers: NAME or NAME=REGEX; at least one header of that name must match.
        fields: PATH=REGEX; PATH is a dotted path into a JSON value (`user.country`). A value that
            is not a string is matched in its JSON form (`true`, `12`). PATH may start with
            `value.`, as in expressions.

    Raises:
        BadFilter: A filter is malformed.
    """
    tests: list[RecordPredicate] = []
    tests += [_by_key(_pattern(text)) for text in keys]
    tests += [_by_value(_pattern(text)) for text in values]
    tests += [_by_header(*_parse_filter(text)) for text in headers]
    tests += [_by_field(*_parse_filter(text, needs_pattern=True)) for text in fields]
    if not tests:
        return None
    return lambda record: all(test(record) for test in tests)


def _pattern(text: str) -> re.Pattern[bytes]:
    try:
        return re.compile(text.encode(errors="surrogateescape"), re.DOTALL)
    except re.error as error:
        raise BadFilter(f"invalid regular expression {text!r}: {error}") from None


def _parse_filter(text: str, *, needs_pattern: bool = False) -> tuple[str, re.Pattern[bytes]]:
    name, separator, pattern = text.partition("=")
    if not name or (needs_pattern and not separator):
        raise BadFilter(f"invalid filter {text!r}: expected NAME=REGEX")
    return name, _pattern(pattern)


def _by_key(pattern: re.Pattern[bytes]) -> RecordPredicate:
    return lambda record: record.key is not None and pattern.search(record.key) is not None


def _by_value(pattern: re.Pattern[bytes]) -> RecordPredicate:
    return lambda record: record.value is not None and pattern.search(record.value) is not None


def _by_header(name: str, pattern: re.Pattern[bytes]) -> RecordPredicate:
    return lambda record: any(
        key == name and pattern.search(value or b"") for key, value in record.headers
    )


def _by_field(path: str, pattern: re.Pattern[bytes]) -> RecordPredicate:
    names = path.split(".")

    def test(record: Record) -> bool:
        found = _field(record.value, names)
        if found is _MISSING and names[0] == "value":
            found = _field(record.value, names[1:])
        if found is _MISSING:
            return False
        text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
        return pattern.search(text.encode(errors="surrogatepass")) is not None

    return test


def _field(value: bytes | None, names: list[str]) -> object:
    """Return the value at a path, `_MISSING` if the path is absent or the value is not JSON."""
    try:
        found = read_json(value or b"")
    except ValueError:
        return _MISSING
    for name in names:
        if not isinstance(found, dict) or name not in found:
            return _MISSING
        found = found[name]
    return found
