"""Which records are wanted, said by patterns of their key, value, headers and fields of JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable

from kbroker.protocol.records import Record
from kbroker.text.documents import read_json

Wanted = Callable[[Record], bool]
_MISSING = object()


class BadFilter(ValueError):
    """A text that is no filter; it says what is wrong."""


def record_filter(
    *,
    keys: Iterable[str] = (),
    values: Iterable[str] = (),
    headers: Iterable[str] = (),
    fields: Iterable[str] = (),
) -> Wanted | None:
    """Whether a record is wanted: it must pass every filter that is given. None without filters.

    Parameters: `keys` and `values` are regular expressions that must be found in the bytes, so
    `^` and `$` stand for their ends; a null has nothing to be found. `headers` are NAME or
    NAME=REGEX: some header of that name must match. `fields` are PATH=REGEX, where PATH leads into a
    value that is JSON (`user.country`); what is not a string is compared as JSON writes it (`true`,
    `12`). Raises BadFilter.
    """
    tests: list[Wanted] = []
    tests += [_by_key(_pattern(text)) for text in keys]
    tests += [_by_value(_pattern(text)) for text in values]
    tests += [_by_header(*_named(text)) for text in headers]
    tests += [_by_field(*_named(text, needs_pattern=True)) for text in fields]
    if not tests:
        return None
    return lambda record: all(test(record) for test in tests)


def _pattern(text: str) -> re.Pattern[bytes]:
    try:
        return re.compile(text.encode(errors="surrogateescape"), re.DOTALL)
    except re.error as error:
        raise BadFilter(f"{text!r} is no regular expression: {error}") from None


def _named(text: str, *, needs_pattern: bool = False) -> tuple[str, re.Pattern[bytes]]:
    name, separator, pattern = text.partition("=")
    if not name or (needs_pattern and not separator):
        raise BadFilter(f"{text!r} is not NAME=REGEX")
    return name, _pattern(pattern)


def _by_key(pattern: re.Pattern[bytes]) -> Wanted:
    return lambda record: record.key is not None and pattern.search(record.key) is not None


def _by_value(pattern: re.Pattern[bytes]) -> Wanted:
    return lambda record: record.value is not None and pattern.search(record.value) is not None


def _by_header(name: str, pattern: re.Pattern[bytes]) -> Wanted:
    return lambda record: any(
        key == name and pattern.search(value or b"") for key, value in record.headers
    )


def _by_field(path: str, pattern: re.Pattern[bytes]) -> Wanted:
    names = path.split(".")

    def test(record: Record) -> bool:
        found = _field(record.value, names)
        if found is _MISSING:
            return False
        text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
        return pattern.search(text.encode(errors="surrogatepass")) is not None

    return test


def _field(value: bytes | None, names: list[str]) -> object:
    """What a path leads to in a value, `_MISSING` where it leads nowhere or there is no JSON."""
    try:
        found = read_json(value or b"")
    except ValueError:
        return _MISSING
    for name in names:
        if not isinstance(found, dict) or name not in found:
            return _MISSING
        found = found[name]
    return found
