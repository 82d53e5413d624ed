"""Message sets of formats 0 and 1, encoded independently of the code under test."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

from kbroker.protocol.compression import Codec, compress
from kbroker.protocol.lz4_header import with_old_checksum
from kbroker.protocol.message_sets import Conversion
from kbroker.protocol.primitives import Buffer
from kbroker.protocol.records import DEFAULT_RULES, ProduceRules

LOG_APPEND_TIME = 8


def to_batch(buffer: Buffer, rules: ProduceRules = DEFAULT_RULES) -> bytes | None:
    """Return the record batch for a producer's messages, or None if no message is complete."""
    conversion = Conversion(buffer, rules)
    while not conversion.step():
        pass
    return conversion.result()


def message(
    value: bytes | None = b"v",
    key: bytes | None = None,
    *,
    magic: int = 1,
    attributes: int = 0,
    timestamp: int = 1000,
    offset: int = 0,
    crc: int | None = None,
    key_size: int | None = None,
    value_size: int | None = None,
    tail: bytes = b"",
) -> bytes:
    """Encode one message; `crc` and both sizes may be wrong, and `tail` follows the value."""
    body = struct.pack(">bb", magic, attributes)
    if magic:
        body += struct.pack(">q", timestamp)
    body += _field(key, key_size) + _field(value, value_size) + tail
    right = zlib.crc32(body)
    return struct.pack(">qiI", offset, len(body) + 4, right if crc is None else crc) + body


def _field(data: bytes | None, size: int | None) -> bytes:
    right = -1 if data is None else len(data)
    return struct.pack(">i", right if size is None else size) + (data or b"")


def messages(
    values: Sequence[bytes | None], magic: int = 1, *, first_timestamp: int = 1000
) -> bytes:
    """Encode an uncompressed set with keys `k0`, `k1` ... and offsets from 0."""
    return b"".join(
        message(value, b"k%d" % i, magic=magic, timestamp=first_timestamp + i, offset=i)
        for i, value in enumerate(values)
    )


def wrapper(
    content: bytes, codec: int, magic: int = 1, *, attributes: int = 0, timestamp: int = 2000
) -> bytes:
    """Encode a compressed message set in its wrapper message."""
    stream = compress(codec, content)
    if magic == 0 and codec == Codec.LZ4:
        stream = with_old_checksum(stream)
    return message(stream, magic=magic, attributes=codec | attributes, timestamp=timestamp)
