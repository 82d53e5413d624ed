"""Variable-length values of the wire format, with a reader and a writer each.

The generated codecs handle one-byte varints inline and call these functions for longer ones.
Readers raise `DecodeError`, or IndexError if the buffer ends too early, which
`kbroker.protocol.compile.decode` converts.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias
from uuid import UUID

Buffer: TypeAlias = bytes | bytearray | memoryview

# Maximum number of tagged fields in one struct.
MAX_UNKNOWN_TAGS = 64
# Maximum size of a string field, in bytes.
MAX_STRING_BYTES = 0x7FFF
INT64_MAX = (1 << 63) - 1


class DecodeError(ValueError):
    """Bytes that are not a well-formed message."""


class EncodeError(ValueError):
    """A value of a message that the wire format cannot represent."""


def write_uvarint(value: int) -> bytes:
    """Encode an unsigned varint, as in compact lengths and tags (KIP-482)."""
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
    """Read an unsigned varint of at most 32 bits; return it and the position after it."""
    first = buffer[position]
    if first < 0x80:
        return first, position + 1
    return finish_uvarint(buffer, position + 1, first)


def finish_uvarint(buffer: Buffer, position: int, first: int) -> tuple[int, int]:
    """Read the rest of an unsigned varint whose first byte was above 0x7f."""
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
    """Encode a signed (zigzag) varint of up to 64 bits, as in records."""
    zigzag = (value << 1) ^ (value >> 63)
    if zigzag < 0x80:  # the most frequent case; saves a call for each of six varints per record
        return _ONE_BYTE[zigzag]
    return write_uvarint(zigzag)


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Read a signed varint of at most 32 bits (5 bytes)."""
    value, position = read_uvarint(buffer, position)
    return (value >> 1) ^ -(value & 1), position


def skip_tags(buffer: Buffer, position: int, count: int) -> int:
    """Skip `count` unknown tagged fields; return the position after them.

    If `count` is above 0x7f, it is only the first byte of the count.
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
    """Return the UUID of 16 bytes. Cached: a broker sees few topic IDs, each very often."""
    return UUID(bytes=raw)
