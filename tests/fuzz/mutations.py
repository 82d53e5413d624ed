"""Requests that are wrong in a random way: half-plausible messages, and plain damaged bytes."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Any

from kbroker.protocol.compression import Codec
from kbroker.protocol.headers import encode_request
from kbroker.protocol.records import Record, encode_batch
from kbroker.protocol.schema import Struct, fields
from kbroker.registry import Api

from ..protocol.samples import Style, sample

TOPIC = "t"
GROUP = "g"
NAMES = (
    TOPIC,
    TOPIC,
    TOPIC,
    GROUP,
    "other",
    "",
    "..",
    "a/b",
    "a\0b",
    "x" * 250,
    "__consumer_offsets",
)
NUMBERS = (0, 0, 0, 1, -1, -2, 2, 100, 2**31 - 1, -(2**31))
SCHEMA_SHARE = 0.7
"""The share of frames that are made from the schema; the others are valid ones with damaged bytes."""
INTERESTING = (
    b"\x00",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x01",
)


def frame(apis: Sequence[Api], rng: random.Random) -> bytes:
    """One frame with its length, of a random served API and version."""
    api = rng.choice(apis)
    version = rng.choice(api.versions)
    message = sample(api.request_class, version, rng, Style.MIXED)
    make_plausible(message, rng)
    if rng.random() < SCHEMA_SHARE:
        disturb(message, rng)
        return _encoded(api, version, message, rng)
    return damage(_encoded(api, version, message, rng), rng)


def _encoded(api: Api, version: int, message: Any, rng: random.Random) -> bytes:
    client_id = rng.choice(("client", "client", None, "", "ä" * 40))
    parts: list[Any] = list(
        encode_request(int(api.key), version, rng.randrange(2**31), client_id, message)
    )
    return b"".join(parts)


def make_plausible(message: Struct, rng: random.Random) -> None:
    """Name things that exist, most of the time, so that a request gets beyond the first check."""
    for field in fields(type(message)):
        value = getattr(message, field.name)
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, Struct):
                make_plausible(item, rng)
        if field.array or rng.random() < 0.2:
            continue
        if field.kind == "string" and value is not None:
            setattr(message, field.name, rng.choice(NAMES))
        elif field.kind in ("h", "i", "q"):
            setattr(message, field.name, _number(str(field.kind), rng))
        elif field.kind == "records":
            setattr(message, field.name, records(rng))


def _number(kind: str, rng: random.Random) -> int:
    largest = (1 << {"h": 15, "i": 31, "q": 63}[kind]) - 1
    return max(-largest - 1, min(rng.choice(NUMBERS), largest))


def disturb(message: Struct, rng: random.Random) -> None:
    """Make one array somewhere empty, or let it hold an element twice."""
    arrays = [
        (part, field.name)
        for part in _structs(message)
        for field in fields(type(part))
        if field.array and getattr(part, field.name)
    ]
    if arrays:
        part, name = rng.choice(arrays)
        items = getattr(part, name)
        setattr(part, name, rng.choice(([], items + items, items[:1] * 50)))


def _structs(message: Struct) -> list[Struct]:
    found = [message]
    for field in fields(type(message)):
        value = getattr(message, field.name)
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, Struct):
                found += _structs(item)
    return found


def records(rng: random.Random) -> bytes | None:
    """A batch: sound, damaged, or none at all."""
    codec = rng.choice((Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD))
    count = rng.choice((1, 1, 5))
    batch = encode_batch(
        [Record(rng.choice((None, b"k")), b"v" * rng.randrange(60), 1) for _ in range(count)],
        codec=codec,
        producer_id=rng.choice((-1, -1, 7)),
        producer_epoch=rng.choice((0, 1)),
        base_sequence=rng.choice((0, 1, 5)),
    )
    match rng.randrange(4):
        case 0:
            return batch
        case 1:
            return damage(batch, rng)
        case 2:
            return batch + batch
        case _:
            return rng.choice((None, b"", batch[:30], rng.randbytes(80)))


def damage(data: bytes, rng: random.Random) -> bytes:
    """Flip, cut, repeat or insert bytes in a few places; sometimes keep the length in front true."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(4, len(out)) if len(out) > 4 else 0
        match rng.randrange(5):
            case 0:
                out[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                out[at : at + rng.randrange(1, 9)] = rng.choice(INTERESTING)
            case 2:
                del out[at : at + rng.randrange(1, 20)]
            case 3:
                out[at:at] = out[at : at + rng.randrange(1, 40)]
            case _:
                out[at:at] = rng.randbytes(rng.randrange(1, 9))
    if rng.random() < 0.9 and len(out) > 4:
        out[:4] = struct.pack(">i", len(out) - 4)
    return bytes(out)
