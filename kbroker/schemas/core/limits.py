"""How much of a schema is looked at: what clients send decides neither time nor memory."""

from __future__ import annotations

import json
from typing import Any

from .errors import invalid_schema

TEXT_MAX = 1024 * 1024
"""Characters of a schema."""
DEPTH_MAX = 64
"""How deep a schema is nested."""
REFERENCES_MAX = 1000
"""Schemas that one refers to, directly and through others."""
STEPS_MAX = 300_000
"""Comparisons of parts of two schemas, before they are called too large to compare."""
DIFFERENCES_MAX = 100
"""Reasons that are told for one pair of schemas."""
_OPENING, _CLOSING = frozenset("[{"), frozenset("]}")


class Budget:
    """What may be spent on one comparison. `spend` raises RegistryError when it is used up."""

    def __init__(self, steps: int = STEPS_MAX) -> None:
        self._left = steps

    def spend(self, steps: int = 1) -> None:
        """Take so many steps."""
        self._left -= steps
        if self._left < 0:
            raise invalid_schema("it is too large to be compared with another one")


def parse_json(text: str) -> Any:
    """Read JSON that is not nested too deep. Raises RegistryError."""
    check_nesting(text)
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise invalid_schema(f"it is no JSON: {error}") from None


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def check_nesting(text: str) -> None:
    """Raises RegistryError for brackets that are nested too deep, wherever they stand."""
    depth = 0
    is_quoted = is_escaped = False
    for each in text:
        if is_quoted:
            if is_escaped:
                is_escaped = False
            elif each == "\\":
                is_escaped = True
            elif each == '"':
                is_quoted = False
        elif each == '"':
            is_quoted = True
        elif each in _OPENING:
            depth += 1
            if depth > 2 * DEPTH_MAX:
                raise invalid_schema(f"it is nested deeper than {DEPTH_MAX} levels")
        elif each in _CLOSING:
            depth -= 1
