"""Parsing of untrusted JSON and TOML with limits on nesting and, in requests, on the elements."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Literal, TypeAlias, TypeVar, overload

# Maximum nesting depth. Python's own limit depends on the call stack and raises RecursionError.
NESTING_MAX = 100
# Maximum number of strings, commas, lists and objects of a JSON document in a request. Parsing that
# many takes 10 ms, which cannot be interrupted.
REQUEST_ELEMENTS_MAX = 50_000
# A string without escaped quotes, also without its end.
_STRING = re.compile(r'"[^"]*"?')
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
# A parsed JSON document.
Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
Container: TypeAlias = dict[str, object] | list[object]
T = TypeVar("T")


@overload
def read_json(text: str | bytes) -> Json: ...


@overload
def read_json(text: str | bytes, *, exact: Literal[True]) -> object: ...


def read_json(text: str | bytes, *, exact: bool = False) -> object:
    """Parse a JSON document.

    Args:
        text: The document.
        exact: Return non-integer numbers as Decimal.

    Raises:
        ValueError: The document is malformed or nested too deeply.
    """
    parse_float: Callable[[str], object] | None = None
    if exact:
        from decimal import Decimal

        parse_float = Decimal
    try:
        return _checked(json.loads(text, parse_float=parse_float))
    except RecursionError:
        raise _too_deep() from None


def read_request_json(data: bytes) -> Json:
    """Parse the JSON document of a request, which a broker reads in its event loop.

    Raises:
        ValueError: The document is malformed or not UTF-8, is nested too deeply, has too many
            elements, or has a string that is not valid Unicode.
    """
    text = data.decode("utf-8-sig")
    check_elements(text)
    document = read_json(text)
    if _SURROGATE.search(text):
        try:
            json.dumps(document, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("a string contains half of a surrogate pair") from None
    return document


def check_elements(text: str) -> None:
    """Raise ValueError if a JSON document of a request has too many elements."""
    if _separators(text) + text.count('"') <= REQUEST_ELEMENTS_MAX:
        return
    text = text.replace("\\\\", "").replace('\\"', "")  # leave no escaped quotes
    rest, strings = _STRING.subn("", text, REQUEST_ELEMENTS_MAX + 1)
    if strings + _separators(rest) > REQUEST_ELEMENTS_MAX:
        raise ValueError(f"more than {REQUEST_ELEMENTS_MAX} elements")


def _separators(text: str) -> int:
    return text.count(",") + text.count("[") + text.count("{")


def read_toml(text: str) -> dict[str, object]:
    """Parse a TOML document. Raises ValueError if it is malformed or nested too deeply."""
    import tomllib

    try:
        return _checked(tomllib.loads(text))
    except RecursionError:
        raise _too_deep() from None


def _checked(document: T) -> T:
    level = _containers([document])
    for _ in range(NESTING_MAX):
        if not level:
            return document
        level = [each for one in level for each in _containers(one)]
    if level:
        raise _too_deep()
    return document


def _containers(one: Container) -> list[Container]:
    inside = one.values() if isinstance(one, dict) else one
    return [each for each in inside if isinstance(each, dict | list)]


def _too_deep() -> ValueError:
    return ValueError(f"nested more than {NESTING_MAX} levels deep")
