"""How much of a schema is looked at: what clients send decides neither time nor memory."""

from __future__ import annotations

import json
import math
import re

from kbroker.text.documents import Json

from .errors import invalid_schema

TEXT_MAX = 1024 * 1024
"""Characters of a schema."""
DEPTH_MAX = 64
"""How deep a schema is nested."""
REFERENCES_MAX = 1000
"""Schemas that one refers to, directly and through others."""
COMPARED_REFERENCES_MAX = 10_000
"""Maximum number of references of all versions that a schema is compared with."""
STEPS_MAX = 300_000
"""Comparisons of parts of two schemas, before they are called too large to compare."""
RESOLUTIONS_MAX = 1_000_000
"""Maximum number of scopes that are searched for the types of the fields of one file."""
DIFFERENCES_MAX = 100
"""Reasons that are told for one pair of schemas."""
NAME_MAX = 1000
"""Maximum number of characters of a full name: namespace or package, outer types and own name."""
DIGITS_MAX = 40
"""Maximum number of characters of a number in a Protobuf file; 64 bits need up to 24."""
SHOWN_MAX = 100
"""Maximum number of characters of a client's text in a message or in a path."""
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
    """Read JSON that is not nested too deep. Raises RegistryError."""
    check_nesting(text)
    try:
        document: Json = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise invalid_schema(f"it is no JSON: {error}") from None
    return document


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:SHOWN_MAX]} is too large a number")
    return value


def check_name(name: str) -> None:
    """Raise RegistryError if a full name is too long."""
    if len(name) > NAME_MAX:
        raise invalid_schema(f"the name {name[:SHOWN_MAX]} has more than {NAME_MAX} characters")


def below(path: str, part: str) -> str:
    """Return a path with a part added, which may be a long name from a client."""
    return f"{path}/{part[:SHOWN_MAX]}"


def check_nesting(text: str) -> None:
    """Raises RegistryError for brackets that are nested too deep, wherever they stand."""
    depth = 0
    for found in _BRACKETS.finditer(text):
        each = found.group()
        if each in "[{":
            depth += 1
            if depth > 2 * DEPTH_MAX:
                raise invalid_schema(f"it is nested deeper than {DEPTH_MAX} levels")
        elif each in "]}":
            depth -= 1
