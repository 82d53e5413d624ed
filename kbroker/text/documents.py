"""JSON and TOML that others have written: what nests too deeply is an error like any other."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

NESTING_MAX = 100
"""Python's own limit depends on who calls, and ends in a RecursionError wherever it is met."""


def read_json(text: str | bytes, *, exact: bool = False) -> Any:
    """Read a document; with `exact` numbers that are not whole are Decimals. Raises ValueError."""
    parse_float: Callable[[str], Any] | None = None
    if exact:
        from decimal import Decimal

        parse_float = Decimal
    try:
        return _checked(json.loads(text, parse_float=parse_float))
    except RecursionError:
        raise _too_deep() from None


def read_toml(text: str) -> dict[str, Any]:
    """Read a document. Raises ValueError."""
    import tomllib

    try:
        found: dict[str, Any] = _checked(tomllib.loads(text))
    except RecursionError:
        raise _too_deep() from None
    return found


def _checked(document: Any) -> Any:
    level = _containers([document])
    for _ in range(NESTING_MAX):
        if not level:
            return document
        level = [each for one in level for each in _containers(one)]
    if level:
        raise _too_deep()
    return document


def _containers(one: dict[str, Any] | list[Any]) -> list[Any]:
    inside = one.values() if isinstance(one, dict) else one
    return [each for each in inside if isinstance(each, dict | list)]


def _too_deep() -> ValueError:
    return ValueError(f"it nests more than {NESTING_MAX} deep")
