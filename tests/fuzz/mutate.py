"""Mutated requests: 70 % are changed by schema, 30 % byte by byte."""

from __future__ import annotations

import math
import random
import struct
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

from crc32c import crc32c

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import request_class
from kbroker.protocol.schema import ZERO_UUID, Field, Struct, fields

from .tokens import Token, tokens, uvarint
from .world import GROUPS, TOPICS, VALID, World, some_batch

SCHEMA_AWARE_SHARE = 0.7
# Share of schema-aware mutations that keep every length and count correct.
WELL_FORMED_SHARE = 0.75

WIDTHS = {"b": 8, "h": 16, "i": 32, "q": 64, "H": 16}
REALS = (0.0, -0.0, 1.0, 0.5, -1.0, 1e-320, 1e9, 2.0**63, -1e300, math.inf, -math.inf, math.nan)
TEXTS = (
    *("", ".", "..", "a/b", "../../etc/passwd", "\x00", "a\nb", "ünï☃", "x" * 249, "x" * 250),
    *("x" * 5000, "a.b", "a_b", "__consumer_offsets", "%s%n{}", "1", "-1", "null"),
    *TOPICS,
    *GROUPS,
)
# Maximum items of an array after repetition.
ITEMS_MAX = 1000
CLIENT_IDS = (None, "", "fuzz", "x" * 300, "ä\n%s", "\x00")


class Frame(NamedTuple):
    """A request without its length; `how` names the kind of mutation."""

    key: ApiKey
    version: int
    how: str
    data: bytes


def mutated(world: World, key: ApiKey, versions: range, rng: random.Random) -> Frame:
    """Choose a version of an API, build a valid request, and mutate it."""
    version = rng.choice(versions)
    message = VALID[key](world, rng)
    if rng.random() >= SCHEMA_AWARE_SHARE:
        data = _frame(key, version, _joined(tokens(message, version)), rng)
        return Frame(key, version, "bytes", _change_bytes(data, rng))
    if rng.random() < WELL_FORMED_SHARE:
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            change_value(message, version, world, rng)
        data = _frame(key, version, _joined(tokens(message, version)), rng)
        return Frame(key, version, "values", data)
    parts = tokens(message, version)
    body = _joined(_change_tokens(parts, rng))
    return Frame(key, version, "structure", _frame(key, version, body, rng))


def _joined(parts: list[Token]) -> bytes:
    return b"".join(token.data for token in parts)


def _frame(key: ApiKey, version: int, body: bytes, rng: random.Random) -> bytes:
    """Prepend a header, sometimes an unusual one."""
    client_id = rng.choice(CLIENT_IDS) if rng.random() < 0.1 else "fuzz"
    raw = b"" if client_id is None else client_id.encode()
    head = struct.pack(">hhih", key, version, 1, -1 if client_id is None else len(raw)) + raw
    if request_class(key).is_flexible(version):
        head += unknown_tags(rng) if rng.random() < 0.05 else b"\x00"
    return head + body


def unknown_tags(rng: random.Random) -> bytes:
    """Encode a few unknown tagged fields."""
    count = rng.randint(1, 5)
    out = uvarint(count)
    for i in range(count):
        data = rng.randbytes(rng.randrange(20))
        out += uvarint(1000 + i) + uvarint(len(data)) + data
    return out


# -- values: the frame stays well-formed


def change_value(message: Struct, version: int, world: World, rng: random.Random) -> None:
    places = list(_places(message, version))
    if not places:
        return
    owner, field = rng.choice(places)
    value = getattr(owner, field.name)
    if field.array:
        setattr(owner, field.name, _other_array(field, version, value, world, rng))
    elif field.kind == "records":
        setattr(owner, field.name, _other_records(value, world, rng))
    elif isinstance(field.kind, str):
        setattr(owner, field.name, _other_scalar(field, version, value, world, rng))
    elif field.optional:
        setattr(owner, field.name, None if value is not None else field.kind())


def _places(value: Struct, version: int) -> list[tuple[Struct, Field]]:
    """Return every field of a message and of its nested structs."""
    found = []
    for field in fields(type(value)):
        if not field.present(version):
            continue
        found.append((value, field))
        inner = getattr(value, field.name)
        for item in inner if isinstance(inner, list) else [inner]:
            if isinstance(item, Struct):
                found += _places(item, version)
    return found


def _other_array(
    field: Field, version: int, value: Any, world: World, rng: random.Random
) -> list[Any] | None:
    items = list(value or ())
    choice = rng.randrange(7)
    if choice == 0 and field.nullable(version):
        return None
    if choice <= 1 or not items:
        return []
    if choice == 2:
        return items * 2
    if choice == 3:
        # Without the limit, repeated mutations multiply until the frame exceeds the memory.
        return items * max(min(rng.choice((3, 30, 300)), ITEMS_MAX // len(items)), 1)
    if choice == 4:
        return items[::-1]
    if choice == 5 or not isinstance(field.kind, str):
        return items[:-1]
    return [_other_scalar(field, version, item, world, rng) for item in items]


def _other_scalar(field: Field, version: int, value: Any, world: World, rng: random.Random) -> Any:
    kind = field.kind
    assert isinstance(kind, str)
    if kind == "?":
        return not value
    if kind == "string":
        if field.nullable(version) and not field.array and rng.random() < 0.2:
            return None
        return rng.choice((*TEXTS, world.member_id))
    if kind == "bytes":
        return rng.choice((b"", rng.randbytes(5), bytes(50_000)))
    if kind == "uuid":
        return rng.choice((ZERO_UUID, uuid.UUID(int=rng.getrandbits(128)), world.topics[0].id))
    if kind == "d":
        return rng.choice(REALS)
    return _other_number(WIDTHS[kind], kind == "H", value, rng)


def _other_number(bits: int, unsigned: bool, value: int, rng: random.Random) -> int:
    low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    number = rng.choice(
        (0, 1, -1, -2, 2, 5, 100, value + 1, value - 1, low, high, low + 1, high - 1, 2**31 - 1)
        if rng.random() < 0.8
        else (rng.randint(low, high),)
    )
    return int(max(low, min(high, number)))


# -- records

HEADER_FIELDS = {  # position and format within a batch
    "base offset": (0, ">q"),
    "length": (8, ">i"),
    "leader epoch": (12, ">i"),
    "magic": (16, ">b"),
    "crc": (17, ">I"),
    "attributes": (21, ">h"),
    "last offset delta": (23, ">i"),
    "base timestamp": (27, ">q"),
    "max timestamp": (35, ">q"),
    "producer id": (43, ">q"),
    "producer epoch": (51, ">h"),
    "base sequence": (53, ">i"),
    "count": (57, ">i"),
}


def _other_records(value: Any, world: World, rng: random.Random) -> bytes | None:
    records = bytearray(some_batch(world, rng) if len(value or b"") < 62 else value)
    choice = rng.randrange(10)
    if choice == 0:
        return rng.choice((None, b"", bytes(rng.randrange(1, 100)), rng.randbytes(70)))
    if choice == 1:
        return bytes(records[: rng.randrange(len(records))])
    if choice == 2:
        return bytes(records) * 2
    if choice <= 6:
        _change_header(records, rng)
    else:
        for _ in range(rng.randint(1, 4)):
            records[rng.randrange(61, len(records))] = rng.randrange(256)
    if rng.random() < 0.8:
        struct.pack_into(">I", records, 17, crc32c(bytes(records[21:])))
    return bytes(records)


def _change_header(records: bytearray, rng: random.Random) -> None:
    position, form = HEADER_FIELDS[rng.choice(list(HEADER_FIELDS))]
    (value,) = struct.unpack_from(form, records, position)
    bits = struct.calcsize(form) * 8
    struct.pack_into(form, records, position, _other_number(bits, form == ">I", value, rng))


# -- structure: lengths, counts and tags that do not fit


def _change_tokens(parts: list[Token], rng: random.Random) -> list[Token]:
    parts = list(parts)
    for _ in range(rng.choice((1, 1, 2))):
        if not parts:
            break
        at = rng.randrange(len(parts))
        change = rng.choice((_bad_number, _bad_number, _bad_data, _drop, _repeat, _odd_tags))
        parts[at : at + 1] = change(parts[at], rng)
    if rng.random() < 0.1:
        parts.append(Token("int", rng.randbytes(rng.randrange(1, 30))))
    return parts


def _bad_number(token: Token, rng: random.Random) -> list[Token]:
    if token.kind not in ("length", "count", "tags", "marker"):
        return [token._replace(data=rng.randbytes(len(token.data)))]
    if not token.compact:
        value = rng.choice((-2, -1, 0, token.value + 1, token.value - 1, 2**31 - 1, -(2**31), 9999))
        bits = len(token.data) * 8
        low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        return [
            token._replace(data=max(low, min(high, value)).to_bytes(bits // 8, "big", signed=True))
        ]
    size = rng.choice((0, 1, token.value + 2, max(token.value, 0), 2**31, 2**32 - 1, 20_000_000))
    data = rng.choice((uvarint(size), uvarint(2**35), b"\x80" * 11, b"\x80", b"\xff" * 4 + b"\x7f"))
    return [token._replace(data=data if rng.random() < 0.5 else uvarint(size))]


def _bad_data(token: Token, rng: random.Random) -> list[Token]:
    if token.kind in ("text", "bytes") and token.data:
        return [token._replace(data=rng.choice((b"\xff\xfe", b"\xc3", b"\x00")) + token.data[1:])]
    return _bad_number(token, rng)


def _drop(token: Token, rng: random.Random) -> list[Token]:
    return []


def _repeat(token: Token, rng: random.Random) -> list[Token]:
    return [token] * rng.choice((2, 3, 50))


def _odd_tags(token: Token, rng: random.Random) -> list[Token]:
    if token.kind != "tags":
        return _bad_number(token, rng)
    odd = (
        unknown_tags(rng),  # valid: unknown tags are skipped
        b"\x01\x00\x05",  # may be longer than the rest
        b"\x02\x00\x00\x00\x00",  # the same tag twice
        uvarint(65) + b"\x63\x00" * 65,  # more than the limit
    )
    return [token._replace(data=rng.choice(odd))]


# -- bytes


def _change_bytes(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        if not out:
            break
        BYTE_CHANGES[rng.randrange(len(BYTE_CHANGES))](out, rng)
    return bytes(out) or b"\x00"


def _flip(out: bytearray, rng: random.Random) -> None:
    out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)


def _set(out: bytearray, rng: random.Random) -> None:
    out[rng.randrange(len(out))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _cut(out: bytearray, rng: random.Random) -> None:
    del out[rng.randrange(len(out)) :]


def _insert(out: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(out))
    out[at:at] = rng.randbytes(rng.randint(1, 8))


def _move(out: bytearray, rng: random.Random) -> None:
    at, to = rng.randrange(len(out)), rng.randrange(len(out))
    piece = out[at : at + rng.randint(1, 16)]
    out[to : to + len(piece)] = piece


BYTE_CHANGES: tuple[Callable[[bytearray, random.Random], None], ...] = (
    *(_flip, _flip, _set, _set, _set),
    *(_cut, _insert, _move),
)
