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
# Maximum number of characters of a client's text in a message or in a path.
SHOWN_MAX = 100
# Possessive quantifiers: a string without its closing quote is searched once.
_BRACKETS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[{]|[\]}]', re.DOTALL)


class Budget:
    """Number of steps that may still be spent on a schema."""

    def __init__(self, steps: int = STEPS_MAX) -> None:
        self._left = steps

    def spend(self, steps: int = 1) -> None:
        """Use some steps. Raises RegistryError if none are left."""
        self._left -= steps
        if self._left < 0:
            raise invalid_schema(
                "it is too large: it needs too many steps to be read or to be compared"
            )


def parse_json(text: str) -> Json:
    """Parse JSON with a nesting limit. Raises RegistryError."""
    check_nesting(text)
    try:
        document: Json = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise invalid_schema(f"invalid JSON: {error}") from None
    return document


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:SHOWN_MAX]} is too large")
    return value


def check_name(name: str) -> None:
    """Raise RegistryError if a full name is too long."""
    if len(name) > NAME_MAX:
        raise invalid_schema(f"name {name[:SHOWN_MAX]}: longer than {NAME_MAX} characters")


def below(path: str, part: str) -> str:
    """Return a path with a part added, which may be a long name from a client."""
    return f"{path}/{part[:SHOWN_MAX]}"


def check_nesting(text: str) -> None:
    """Raise RegistryError if brackets are nested too deeply."""
    depth = 0
    for found in _BRACKETS.finditer(text):
        each = found.group()
        if each in "[{":
            depth += 1
            if depth > 2 * DEPTH_MAX:
                raise invalid_schema(f"nested deeper than {DEPTH_MAX} levels")
        elif each in "]}":
            depth -= 1
