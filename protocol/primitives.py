"""The variable-length pieces of the wire format, read and write in pairs.

The generated codecs handle one-byte varints inline; these functions are what they call for the
rest. Readers raise `DecodeError`, or the IndexError of a buffer that ends too early, which
`kbroker.protocol.compile.decode` turns into one.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias
from uuid import UUID

Buffer: TypeAlias = bytes | bytearray | memoryview

MAX_UNKNOWN_TAGS = 64
MAX_STRING_BYTES = 0x7FFF
INT64_MAX = (1 << 63) - 1


class DecodeError(ValueError):
    """The bytes are not a well-formed message."""


class EncodeError(ValueError):
    """The message holds a value that the wire format cannot carry."""


def write_uvarint(value: int) -> bytes:
    """An unsigned varint, as in compact lengths and tags (KIP-482)."""
    if value < 0x80:
        return _ONE_BYTE[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_ONE_BYTE = tuple(bytes([value]) for value in range(0x80))


def read_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 32 bits; returns it and the position after it."""
    first = buffer[position]
    if first < 0x80:
        return first, position + 1
    return finish_uvarint(buffer, position + 1, first)


def finish_uvarint(buffer: Buffer, position: int, first: int) -> tuple[int, int]:
    """Go on reading an unsigned varint whose first byte, read already, was above 0x7f."""
    value = first & 0x7F
    for shift in (7, 14, 21, 28):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, position
    raise DecodeError("varint of more than 32 bits")


def write_varint(value: int) -> bytes:
    """A signed (zigzag) varint of up to 64 bits, as in records."""
    zigzag = (value << 1) ^ (value >> 63)
    if zigzag < 0x80:  # most are, and a record has six: spare them the second call
        return _ONE_BYTE[zigzag]
    return write_uvarint(zigzag)


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Read a signed varint of at most 32 bits (5 bytes)."""
    value, position = read_uvarint(buffer, position)
    return (value >> 1) ^ -(value & 1), position


def skip_tags(buffer: Buffer, position: int, count: int) -> int:
    """Step over `count` tagged fields that this version does not know; returns where they end.

    The caller has read the count's first byte only.
    """
    if count > 0x7F:
        count, position = finish_uvarint(buffer, position, count)
    if count > MAX_UNKNOWN_TAGS:
        raise DecodeError(f"{count} tagged fields in one struct")
    for _ in range(count):
        _, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        position += size
    return position


@lru_cache(maxsize=8192)
def uuid_from(raw: bytes) -> UUID:
    """The UUID of 16 bytes. Cached: a broker sees few topic ids, each very often."""
    return UUID(bytes=raw)
