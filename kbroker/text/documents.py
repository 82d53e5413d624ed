"""Parsing of untrusted JSON and TOML with a limit on the nesting depth."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Literal, TypeAlias, TypeVar, overload

# Maximum nesting depth. Python's own limit depends on the call stack and raises RecursionError.
NESTING_MAX = 100
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
