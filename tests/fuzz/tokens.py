"""A request encoder that returns tokens: pieces of bytes with one meaning each.

It uses the message declarations but not the broker's codec, so that tests can change one length,
count or tag. `test_fuzz` compares it with that codec.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from kbroker.protocol.schema import Field, Message, Struct, fields


class Token(NamedTuple):
    """Bytes with one meaning.

    Attributes:
        kind: "int", "real", "uuid", "length" (of a string or bytes), "text", "bytes", "count" (of
            an array), "marker" (of a nullable struct) or "tags" (their count).
        data: The encoded bytes.
        value: The encoded number.
        compact: True for varints, False for fixed widths.
    """

    kind: str
    data: bytes
    value: int = 0
    compact: bool = False


def uvarint(value: int) -> bytes:
    """Encode an unsigned varint of any size."""
    out = bytearray()
    while True:
        out.append(value & 0x7F | (0x80 if value > 0x7F else 0))
        value >>= 7
        if not value:
            return bytes(out)


def tokens(message: Message, version: int) -> list[Token]:
    """Encode a message as tokens, in order."""
    return list(_Tokens(version, type(message).is_flexible(version)).of(message))


class _Tokens:
    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible

    def of(self, value: Struct) -> Iterator[Token]:
        tagged = []
        for field in fields(type(value)):
            if not field.present(self.version):
                continue
            if field.tag is None:
                yield from self.field(field, getattr(value, field.name))
            elif self.is_encoded(field, getattr(value, field.name)):
                tagged.append(field)
        if not self.flexible:
            return
        yield Token("tags", uvarint(len(tagged)), len(tagged), compact=True)
        for field in sorted(tagged, key=lambda each: each.tag or 0):
            body = list(self.field(field, getattr(value, field.name)))
            yield Token("int", uvarint(field.tag or 0), field.tag or 0, compact=True)
            size = sum(len(token.data) for token in body)
            yield Token("length", uvarint(size), size, compact=True)
            yield from body

    def is_encoded(self, field: Field, value: Any) -> bool:
        default = field.zero()
        if default is None and not isinstance(field.kind, str) and value is not None:
            default = field.kind()
        return bool(value != default)

    def field(self, field: Field, value: Any) -> Iterator[Token]:
        if field.array:
            if value is None and not field.nullable(self.version):
                value = []
            yield self.number("count", "i", -1 if value is None else len(value))
            for item in value or ():
                yield from self.item(field, item, nullable=False)
        else:
            yield from self.item(field, value, nullable=field.nullable(self.version))

    def item(self, field: Field, value: Any, *, nullable: bool) -> Iterator[Token]:
        kind = field.kind
        if not isinstance(kind, str):
            if nullable and field.tag is None:
                yield Token("marker", b"\xff" if value is None else b"\x01")
                if value is None:
                    return
            yield from self.of(kind() if value is None else value)
        elif kind == "uuid":
            yield Token("uuid", value.bytes)
        elif kind in ("string", "bytes", "records"):
            yield from self.bytes_or_string(kind, value, nullable)
        else:
            data = struct.pack(">" + kind, value)
            yield Token("real", data) if kind == "d" else Token("int", data, int(value))

    def bytes_or_string(self, kind: str, value: Any, nullable: bool) -> Iterator[Token]:
        letter = "h" if kind == "string" else "i"
        if value is None and nullable:
            yield self.number("length", letter, -1)
            return
        data = (value or "").encode() if kind == "string" else bytes(value or b"")
        yield self.number("length", letter, len(data))
        yield Token("text" if kind == "string" else "bytes", data)

    def number(self, kind: str, letter: str, value: int) -> Token:
        if self.flexible:
            return Token(kind, uvarint(value + 1), value, compact=True)
        return Token(kind, struct.pack(">" + letter, value), value)
