"""Validation of LZ4 frames, and the header checksum that differs in message format 0.

A frame starts with a magic, a descriptor and a one-byte checksum of the descriptor. Kafka before
0.10 included the magic in the checksum. So LZ4 libraries reject the frames of its clients, and its
clients reject the frames of LZ4 libraries. Message format 1 introduced the correct checksum
(KIP-57).
"""

from __future__ import annotations

import struct

from .compression import DecompressionError
from .primitives import Buffer

_MAGIC = b"\x04\x22\x4d\x18"
_VERSION, _VERSION_MASK = 0x40, 0xC0
_HAS_INDEPENDENT_BLOCKS, _HAS_BLOCK_CHECKSUMS, _HAS_CONTENT_CHECKSUM = 0x20, 0x10, 0x04
_HAS_CONTENT_SIZE, _HAS_DICTIONARY_ID = 0x08, 0x01
_SUM_BYTES = 4  # size of the checksum of a block or of the content
_BLOCK_SIZE = struct.Struct("<I")
# Flag in the size of a block: the block is not compressed.
_IS_STORED = 0x80000000
_PRIME_1, _PRIME_2, _PRIME_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_PRIME_4, _PRIME_5 = 0x27D4EB2F, 0x165667B1
_MASK = 0xFFFFFFFF


def check_frame(stream: Buffer) -> None:
    """Check that a stream is one LZ4 frame that the Java client can read (KIP-57).

    The Java client supports neither dependent blocks nor dictionaries. It reads only the first
    frame, up to the first block with a size of 0.

    Args:
        stream: The compressed records. Blocks are not decompressed.

    Raises:
        DecompressionError: The Java client cannot read the stream, or not all of it.
    """
    end = _descriptor_end(stream)
    if end is None:
        raise DecompressionError("not an LZ4 frame")
    flags = stream[4]
    if flags & _VERSION_MASK != _VERSION:
        raise DecompressionError("unsupported version of the LZ4 frame: only version 1 is valid")
    if not flags & _HAS_INDEPENDENT_BLOCKS:
        raise DecompressionError("the LZ4 frame has dependent blocks; use independent blocks")
    if flags & _HAS_DICTIONARY_ID:
        raise DecompressionError("the LZ4 frame needs a dictionary; compress without one")
    position = end + 1
    sum_bytes = _SUM_BYTES if flags & _HAS_BLOCK_CHECKSUMS else 0
    try:
        while size := _BLOCK_SIZE.unpack_from(stream, position)[0]:
            if size == _IS_STORED:
                raise DecompressionError("the LZ4 frame has an empty block")
            position += _BLOCK_SIZE.size + (size & ~_IS_STORED) + sum_bytes
    except struct.error:
        raise DecompressionError("the LZ4 frame is truncated") from None
    position += _BLOCK_SIZE.size + (_SUM_BYTES if flags & _HAS_CONTENT_CHECKSUM else 0)
    if position != len(stream):
        raise DecompressionError(f"{len(stream) - position} bytes after the LZ4 frame")


def with_correct_checksum(stream: Buffer) -> bytes:
    """Return the stream with the header checksum of the LZ4 specification."""
    return _with_checksum(stream, start=len(_MAGIC))


def with_old_checksum(stream: Buffer) -> bytes:
    """Return the stream with the header checksum of Kafka before 0.10."""
    return _with_checksum(stream, start=0)


def _with_checksum(stream: Buffer, start: int) -> bytes:
    """Replace the header checksum of the first frame with that of the header from `start` on.

    Other data than an LZ4 frame is returned unchanged: the decompressor reports the error.
    """
    end = _descriptor_end(stream)
    if end is None:
        return bytes(stream)
    header = bytes(stream[:end])
    checksum = _xxh32(header[start:]) >> 8 & 0xFF
    return b"".join((header, bytes([checksum]), stream[end + 1 :]))


def _descriptor_end(stream: Buffer) -> int | None:
    """Return the position of the descriptor's checksum, or None without a complete header."""
    if len(stream) < 7 or stream[:4] != _MAGIC:
        return None
    flags = stream[4]
    end = 6 + 8 * bool(flags & _HAS_CONTENT_SIZE) + 4 * bool(flags & _HAS_DICTIONARY_ID)
    return end if end < len(stream) else None


def _xxh32(data: bytes) -> int:
    """Return the XXH32 with seed 0 of a header of up to 18 bytes."""
    if len(data) >= 16:
        lanes = [(_PRIME_1 + _PRIME_2) & _MASK, _PRIME_2, 0, -_PRIME_1 & _MASK]
        words = struct.unpack_from("<4I", data)
        for index, word in enumerate(words):
            lane = (lanes[index] + word * _PRIME_2) & _MASK
            lanes[index] = _rotate_left(lane, 13) * _PRIME_1 & _MASK
        value = sum(_rotate_left(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True))
        position = 16
    else:
        value, position = _PRIME_5, 0
    value = (value + len(data)) & _MASK
    while position + 4 <= len(data):
        (word,) = struct.unpack_from("<I", data, position)
        value = _rotate_left((value + word * _PRIME_3) & _MASK, 17) * _PRIME_4 & _MASK
        position += 4
    for byte in data[position:]:
        value = _rotate_left((value + byte * _PRIME_5) & _MASK, 11) * _PRIME_1 & _MASK
    value = (value ^ value >> 15) * _PRIME_2 & _MASK
    value = (value ^ value >> 13) * _PRIME_3 & _MASK
    return value ^ value >> 16


def _rotate_left(value: int, by: int) -> int:
    return (value << by | value >> (32 - by)) & _MASK
