"""The `-s` option of `kbroker topic consume`: types of keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import click

# Types that need a registry: `AUTO` decodes only data that starts with a known schema ID.
AUTO, REGISTERED = "auto", "registry"
NONE = "none"
PARTS = ("key", "value")
# Types that need no registry; `record_decoding.READERS` reads them.
FIXED = ("string", "json", "short", "int", "long", "float", "double", "hex", "base64")
TYPES = (REGISTERED, NONE, *FIXED)


class PartTypes(NamedTuple):
    """Types of keys and values."""

    key: str
    value: str

    @property
    def needs_registry(self) -> bool:
        """True if a key or value must have a schema ID."""
        return REGISTERED in self

    @property
    def is_plain(self) -> bool:
        """True if nothing is decoded."""
        return self.key == self.value == NONE


def parse_types(texts: Sequence[str], default: str) -> PartTypes:
    """Return the types that `-s` options select; later ones take precedence.

    Args:
        texts: TYPE, key=TYPE or value=TYPE.
        default: Type of a part without an option.

    Raises:
        BadParameter: An option is invalid.
    """
    chosen = dict.fromkeys(PARTS, default)
    for text in texts:
        name, separator, kind = text.rpartition("=")
        if kind not in TYPES or name not in ("", *PARTS) or (separator and not name):
            hint = ""
            if kind in ("avro", "protobuf", "json-schema", "jsonschema"):
                hint = f"; use {REGISTERED}, which finds the format by the schema ID"
            raise click.BadParameter(
                f"invalid {text!r}{hint} (valid: {', '.join(TYPES)}, also as key=TYPE or "
                "value=TYPE)",
                param_hint="-s",
            )
        chosen |= {name: kind} if name else dict.fromkeys(PARTS, kind)
    return PartTypes(**chosen)
