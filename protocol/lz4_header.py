"""The one byte in which LZ4 streams of message format 0 differ from LZ4.

A frame begins with its magic, a descriptor and one byte of a checksum of the descriptor. Kafka before
0.10 counted the magic in, so no LZ4 library accepts what it wrote, and its clients do not accept what
a library writes. Format 1 brought the right checksum (KIP-57).
"""

from __future__ import annotations

import struct

from .primitives import Buffer

_MAGIC = b"\x04\x22\x4d\x18"
_HAS_CONTENT_SIZE, _HAS_DICTIONARY_ID = 0x08, 0x01
_PRIME_1, _PRIME_2, _PRIME_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_PRIME_4, _PRIME_5 = 0x27D4EB2F, 0x165667B1
_MASK = 0xFFFFFFFF


def with_right_checksum(stream: Buffer) -> bytes:
    """The stream as LZ4 defines it, whatever its header checksum says."""
    return _with_checksum(stream, start=len(_MAGIC))


def with_old_checksum(stream: Buffer) -> bytes:
    """The stream as Kafka before 0.10 reads it."""
    return _with_checksum(stream, start=0)


def _with_checksum(stream: Buffer, start: int) -> bytes:
    """Replace the header checksum of the first frame by that of the header from `start` on.

    What is no LZ4 frame comes back as it is: whoever decompresses it will say so.
    """
    end = _descriptor_end(stream)
    if end is None:
        return bytes(stream)
    header = bytes(stream[:end])
    checksum = _xxh32(header[start:]) >> 8 & 0xFF
    return b"".join((header, bytes([checksum]), stream[end + 1 :]))


def _descriptor_end(stream: Buffer) -> int | None:
    """Where the checksum of the descriptor stands, None without a whole header."""
    if len(stream) < 7 or stream[:4] != _MAGIC:
        return None
    flags = stream[4]
    end = 6 + 8 * bool(flags & _HAS_CONTENT_SIZE) + 4 * bool(flags & _HAS_DICTIONARY_ID)
    return end if end < len(stream) else None


def _xxh32(data: bytes) -> int:
    """XXH32 with seed 0, of the up to 18 bytes that a header has."""
    if len(data) >= 16:
        lanes = [(_PRIME_1 + _PRIME_2) & _MASK, _PRIME_2, 0, -_PRIME_1 & _MASK]
        words = struct.unpack_from("<4I", data)
        for index, word in enumerate(words):
            lane = (lanes[index] + word * _PRIME_2) & _MASK
            lanes[index] = _rotated(lane, 13) * _PRIME_1 & _MASK
        value = sum(_rotated(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True))
        position = 16
    else:
        value, position = _PRIME_5, 0
    value = (value + len(data)) & _MASK
    while position + 4 <= len(data):
        (word,) = struct.unpack_from("<I", data, position)
        value = _rotated((value + word * _PRIME_3) & _MASK, 17) * _PRIME_4 & _MASK
        position += 4
    for byte in data[position:]:
        value = _rotated((value + byte * _PRIME_5) & _MASK, 11) * _PRIME_1 & _MASK
    value = (value ^ value >> 15) * _PRIME_2 & _MASK
    value = (value ^ value >> 13) * _PRIME_3 & _MASK
    return value ^ value >> 16


def _rotated(value: int, by: int) -> int:
    return (value << by | value >> (32 - by)) & _MASK
