"""Random messages generated from the declarations, for the tests of the codec."""

from __future__ import annotations

import random
from enum import Enum
from typing import Any, TypeAlias
from uuid import UUID

from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.schema import ZERO_UUID, Field, Message, Struct, fields

# API key, version, and "request" or "response".
Pair: TypeAlias = tuple[int, int, str]

INTEGERS = {"b": 8, "h": 16, "i": 32, "q": 64}
ALPHABET = "abcXYZ019-._ äß€漢😀\x00"
ZEROS = {"string": "", "bytes": b"", "records": b"", "uuid": ZERO_UUID, "?": False}
STRING_SIZES = (1, 3, 8, 40, 126, 127, 128, 300)


class Style(Enum):
    """The content of a sample."""

    FULL = "every field set, no null, no empty array"
    EMPTY = "null wherever it can travel, else empty and zero"
    EXTREME = "the smallest and largest values, long strings and arrays"
    MIXED = "each field for itself one of the above"


def declared(pair: Pair) -> type[Message]:
    """Return the class of a pair."""
    key, _, kind = pair
    return messages.request_class(key) if kind == "request" else messages.response_class(key)


def declared_pairs() -> list[Pair]:
    """Return every declared API key, version and direction."""
    return [
        (int(key), version, kind)
        for key in ApiKey
        for kind in ("request", "response")
        for version in declared((key, 0, kind)).VERSIONS
    ]


def sample(cls: type[Struct], version: int, rng: random.Random, style: Style) -> Any:
    """Return an object with all fields of `version` set; the others keep their defaults."""
    return cls(
        **{
            field.name: _value(field, version, rng, style)
            for field in fields(cls)
            if field.present(version)
        }
    )


def plain(message: Struct, version: int) -> dict[str, Any]:
    """Return the fields of `version` by name: structs as dictionaries, records as bytes."""
    return {
        field.name: _plain(getattr(message, field.name), version)
        for field in fields(type(message))
        if field.present(version)
    }


def _plain(value: Any, version: int) -> Any:
    if isinstance(value, Struct):
        return plain(value, version)
    if isinstance(value, list):
        return [_plain(item, version) for item in value]
    return bytes(value) if isinstance(value, memoryview) else value


def _value(field: Field, version: int, rng: random.Random, style: Style) -> Any:
    if style is Style.MIXED:
        style = rng.choice((Style.FULL, Style.EMPTY, Style.EXTREME))
    if style is Style.EMPTY:
        return _empty(field, version)
    if not field.array:
        return _item(field, version, rng, style)
    count = rng.randint(1, 2)
    if style is Style.EXTREME and isinstance(field.kind, str):
        count = rng.choice((2, 126, 127, 200))
    return [_item(field, version, rng, style) for _ in range(count)]


def _empty(field: Field, version: int) -> Any:
    if field.nullable(version):
        return None
    if field.array:
        return []
    if isinstance(field.kind, str):
        return ZEROS.get(field.kind, 0)
    return sample(field.kind, version, random.Random(0), Style.EMPTY)


def _item(field: Field, version: int, rng: random.Random, style: Style) -> Any:
    kind = field.kind
    if not isinstance(kind, str):
        return sample(kind, version, rng, style)
    if kind in INTEGERS:
        return _integer(field.name, INTEGERS[kind], rng, style)
    if kind == "H":
        return rng.choice((0, 1, 0xFFFF, rng.randrange(0x10000)))
    if kind == "d":
        return rng.choice((0.0, -1.5, 1e300, rng.random()))
    if kind == "?":
        return rng.random() < 0.5
    if kind == "uuid":
        return UUID(int=rng.getrandbits(128))
    size = rng.choice(STRING_SIZES if style is Style.EXTREME else STRING_SIZES[:4])
    if kind == "string":
        return "".join(rng.choices(ALPHABET, k=size))
    if kind == "records" and style is Style.EXTREME:
        size *= 50
    return rng.randbytes(size)


def _integer(name: str, bits: int, rng: random.Random, style: Style) -> int:
    if name.endswith("error_code") and bits == 16:
        return rng.randint(-1, 133)  # an oracle supports no other values
    if name.endswith("_ms") and bits == 64:
        return (
            rng.randrange(250_000_000_000) * 1000
        )  # an oracle converts these to dates of whole seconds
    if style is Style.EXTREME:
        return rng.choice((-1 << (bits - 1), (1 << (bits - 1)) - 1))
    return rng.randrange(-1 << (bits - 1), 1 << (bits - 1))
