"""Limits on the size and complexity of schemas, which bound time and memory per request."""

from __future__ import annotations

import json
import math
import re

from kbroker.text.documents import Json

from .errors import invalid_schema

# Maximum number of characters of a schema.
TEXT_MAX = 1024 * 1024
# Maximum nesting depth of a schema.
DEPTH_MAX = 64
# Maximum number of direct and indirect references of a schema.
REFERENCES_MAX = 1000
# Maximum number of references of all versions that a schema is compared with.
COMPARED_REFERENCES_MAX = 10_000
# Maximum number of steps to compare two schemas.
STEPS_MAX = 300_000
# Maximum number of scopes that are searched for the types of the fields of one file.
RESOLUTIONS_MAX = 1_000_000
# Maximum number of differences that are reported for one pair of schemas.
DIFFERENCES_MAX = 100
# Maximum number of characters of a full name: namespace or package, outer types and own name.
NAME_MAX = 1000
# Maximum number of characters of a number in a Protobuf file; 64 bits need up to 24.
DIGITS_MAX = 40
# Maximum number of characters of a client's text that is quoted in a message or in a path.
SHOWN_MAX = 100
# Possessive quantifiers avoid repeated searches of a string without a closing quote.
_BRACKETS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[{]|[\]}]', re.DOTALL)


class Budget:
    """Number of steps that may still be spent on a schema."""

    def __init__(self, steps: int = STEPS_MAX) -> None:
        self._steps_left = steps

    def spend(self, steps: int = 1) -> None:
        """Use some steps. Raises RegistryError if too few are left."""
        self._steps_left -= steps
        if self._steps_left < 0:
            raise invalid_schema(
                "it is too large: it needs too many steps to be read or to be compared"
            )


def parse_json(text: str) -> Json:
    """Parse JSON with a nesting limit. Raises RegistryError."""
    check_nesting(text)
    try:
        document: Json = json.loads(
            text, parse_constant=_reject_constant, parse_float=_parse_finite
        )
    except (ValueError, RecursionError) as error:
        raise invalid_schema(f"invalid JSON: {error}") from None
    return document


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _parse_finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:SHOWN_MAX]} is too large")
    return value


def check_name(name: str) -> None:
    """Raise RegistryError if a full name is too long."""
    if len(name) > NAME_MAX:
        raise invalid_schema(f"name {name[:SHOWN_MAX]}: longer than {NAME_MAX} characters")


def child_path(path: str, part: str) -> str:
    """Return a path with a part added. The part is shortened, because it may be any name of a client."""
    return f"{path}/{part[:SHOWN_MAX]}"


def check_nesting(text: str) -> None:
    """Raise RegistryError if brackets are nested too deeply."""
    depth = 0
    for match in _BRACKETS.finditer(text):
        each = match.group()
        if each in "[{":
            depth += 1
            if depth > 2 * DEPTH_MAX:
                raise invalid_schema(f"nested deeper than {DEPTH_MAX} levels")
        elif each in "]}":
            depth -= 1
