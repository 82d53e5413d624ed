"""Message sets: the formats before record batches, in Produce 0 to 2 and Fetch 0 to 3.

A message set is a sequence of messages without a header::

    offset int64                 of a wrapper: offset of its last message
    size int32                   number of following bytes
    crc uint32                   CRC-32 of the rest
    magic int8                   0 (Kafka 0.8, 0.9) or 1 (0.10)
    attributes int8              codec in bits 0 to 2, LogAppendTime in bit 3 (magic 1)
    timestamp int64              magic 1 only
    key, value                   int32 length each, -1 for null, and the bytes

A compressed set is one message, the wrapper, whose value is a compressed message set. Its inner
offsets are absolute in format 0 and relative to the first one in format 1 (KIP-31). If the wrapper
has the LogAppendTime bit, all inner messages get its timestamp (KIP-32).

The store holds record batches only. `Conversion` converts messages of an old producer to a batch,
and `from_batches` converts stored batches for an old consumer. The old formats have no headers,
producer IDs or transactions.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable, Iterator
from itertools import chain, islice
from typing import NamedTuple
from zlib import crc32

from .compression import Codec, OutputLimitError, compress, decompressed_chunks
from .errors import ErrorCode, KafkaError
from .lz4_header import with_correct_checksum, with_old_checksum
from .primitives import Buffer
from .record_stream import OversizedRecord, stream_records
from .records import (
    CODEC_MASK,
    DEFAULT_RULES,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    MIN_RECORD_SIZE,
    NO_TIMESTAMP,
    BatchBuilder,
    BatchHeader,
    ProduceRules,
    Record,
    iter_headers,
    kafka_error_of,
)

# Maximum number of messages of a compressed set or batch that is converted; it limits the work.
MESSAGES_MAX = 500_000

# Maximum decompressed size in bytes of a compressed batch that is converted for an old consumer.
CONVERTED_BATCH_BYTES_MAX = 16 * 1024 * 1024
# Messages to convert per step.
MESSAGES_PER_STEP = 500
# Maximum decompressed size in bytes of a producer's compressed set, which is held in memory.
CONTENT_BYTES_MAX = 8 * 1024 * 1024

_MAGIC_AT = 16
_CRC_START = 16
_ENTRY = struct.Struct(">qi")
_ENTRY_CRC = struct.Struct(">qiI")
_FIELDS = (struct.Struct(">bb"), struct.Struct(">bbq"))  # magic, attributes, timestamp
_LENGTH = struct.Struct(">i")
_NULL = _LENGTH.pack(-1)
# Maximum timestamp for which differences of two timestamps, including -1, fit into 64 bits.
_TIMESTAMP_MAX = (1 << 63) - 2


class Message(NamedTuple):
    """A message of a set.

    `timestamp` is in ms, -1 for none (always in format 0). `size` is the number of bytes in the
    set.
    """

    offset: int
    attributes: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    size: int

    @property
    def codec(self) -> int:
        """A `Codec` number, or 5 to 7 for an unknown codec; nonzero for a wrapper."""
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME_BIT)


def is_message_set(buffer: Buffer | None) -> bool:
    """Return True if the records of a request are in a format before record batches.

    Records that are too short to contain the format are treated as an empty message set.
    """
    return buffer is not None and (len(buffer) <= _MAGIC_AT or buffer[_MAGIC_AT] < MAGIC)


# -- reading


def read_messages(buffer: Buffer, magic: int) -> Iterator[Message]:
    """Yield every complete message of a set without unwrapping; skip an incomplete one at the end.

    Raises:
        KafkaError: CORRUPT_MESSAGE (wrong CRC, impossible size) or INVALID_RECORD (key and value do
            not fit into the message, or its format is not `magic`). Earlier messages were yielded
            before.
    """
    data = memoryview(buffer)
    fields = _FIELDS[magic]
    size_min = 4 + fields.size + 8
    position, end = 0, len(data)
    while position + _MAGIC_AT < end:
        offset, size, crc = _ENTRY_CRC.unpack_from(data, position)
        if data[position + _MAGIC_AT] != magic:
            raise _invalid(f"message format {data[position + _MAGIC_AT]} in a set of {magic}")
        if size < size_min:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"message size {size}")
        start, position = position + _CRC_START, position + _ENTRY.size + size
        if position > end:
            return
        body = bytes(data[start:position])
        if crc32(body) != crc:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "a message does not match its CRC")
        timestamp = fields.unpack_from(body)[2] if magic else NO_TIMESTAMP
        key, at = _read_bytes(body, fields.size)
        value, at = _read_bytes(body, at)
        if at > len(body):
            raise _invalid(f"a message of {len(body)} bytes whose value ends at {at}")
        attributes = body[1] if magic else body[1] & CODEC_MASK
        yield Message(offset, attributes, timestamp, key, value, _ENTRY.size + size)


def _read_bytes(body: bytes, position: int) -> tuple[bytes | None, int]:
    """Return a nullable field and its end position, which may be after the end of the body."""
    if position + 4 > len(body):
        raise _invalid("a message is too short for its fields")
    (size,) = _LENGTH.unpack_from(body, position)
    position += 4
    if size < 0:
        return None, position
    return body[position : position + size], position + size


# -- from a producer


class Conversion:
    """The conversion of a producer's messages to a record batch in the same codec.

    Timestamps are kept (-1 in format 0). `log_validator` checks the rules of the topic: timestamp
    limits, keys of a compacted topic, and the size of the batch.

    Args:
        buffer: The whole records field of a Produce request, see `is_message_set`. It contains
            uncompressed messages or one wrapper.
        rules: Rules of the topic.
    """

    __slots__ = ("_batch", "_builder", "_codec", "_content", "_records", "_unwrapping")

    def __init__(self, buffer: Buffer, rules: ProduceRules = DEFAULT_RULES) -> None:
        self._batch: bytes | None = None
        self._builder = BatchBuilder()
        self._codec = int(Codec.NONE)
        self._content = bytearray()
        self._unwrapping: Iterator[bytes] | None = None
        self._records: Iterator[Record] = iter(())
        if len(buffer) <= _MAGIC_AT:
            return
        magic = buffer[_MAGIC_AT]
        messages = read_messages(buffer, magic)
        first = next(messages, None)
        if first is None:
            return
        if not first.codec:
            self._records = _plain_records(chain([first], messages), rules)
            return
        if next(messages, None) is not None:
            raise _invalid("a compressed message that is not alone in its set")
        if first.size > rules.max_message_bytes:
            raise _too_large(
                f"a message of {first.size} bytes, more than "
                f"max.message.bytes={rules.max_message_bytes}"
            )
        self._codec = first.codec
        self._unwrapping = _decompress_wrapper(
            first, magic, min(rules.max_decompressed, CONTENT_BYTES_MAX)
        )
        self._records = _inner_records(self._content, magic, first, rules)

    def step(self) -> bool:
        """Decompress a chunk, or convert some messages; return True once all is done.

        Raises:
            KafkaError: CORRUPT_MESSAGE, INVALID_RECORD, INVALID_TIMESTAMP, or MESSAGE_TOO_LARGE
                (too many messages or bytes, compressed or not).
        """
        if self._unwrapping is not None:
            for chunk in self._unwrapping:
                self._content += chunk
                return False
            self._unwrapping = None
        builder = self._builder
        messages = list(islice(self._records, MESSAGES_PER_STEP))
        for record in messages:
            builder.add(record, builder.count)
        if len(messages) == MESSAGES_PER_STEP:
            return False
        self._content = bytearray()
        if builder.count:
            self._batch = builder.finish(self._codec)
        return True

    def result(self) -> bytes | None:
        """Return the batch, or None without complete messages, which Kafka accepts."""
        return self._batch


def _plain_records(messages: Iterable[Message], rules: ProduceRules) -> Iterator[Record]:
    content = 0
    for message in messages:
        # The batch would be at least this large, so the other messages need not be converted.
        content += MIN_RECORD_SIZE + len(message.key or b"") + len(message.value or b"")
        if content > rules.max_message_bytes:
            raise _too_large(f"messages of more than max.message.bytes={rules.max_message_bytes}")
        yield _to_record(message, message.timestamp, message.is_log_append_time, rules)


def _decompress_wrapper(wrapper: Message, magic: int, limit: int) -> Iterator[bytes]:
    """Yield the decompressed message set of a wrapper, in chunks."""
    if not wrapper.value or wrapper.codec > Codec.LZ4:
        raise _invalid(f"a compressed message without a value, or in codec {wrapper.codec}")
    stream = wrapper.value
    if magic == 0 and wrapper.codec == Codec.LZ4:
        stream = with_correct_checksum(stream)
    try:
        yield from decompressed_chunks(wrapper.codec, stream, limit)
    except OutputLimitError as error:
        raise _too_large(f"a message that {error}") from None
    except ValueError as error:
        raise kafka_error_of(error, ErrorCode.INVALID_RECORD) from None


def _inner_records(
    content: bytearray, magic: int, wrapper: Message, rules: ProduceRules
) -> Iterator[Record]:
    stamped = wrapper.is_log_append_time
    count = 0
    for count, message in enumerate(read_messages(content, magic), 1):
        if count > min(MESSAGES_MAX, rules.max_records):
            raise _too_large(f"more than {min(MESSAGES_MAX, rules.max_records)} messages")
        timestamp = wrapper.timestamp if stamped else message.timestamp
        yield _to_record(message, timestamp, stamped, rules)
    if not count:
        raise _invalid("a compressed message without inner messages")


def _to_record(message: Message, timestamp: int, stamped: bool, rules: ProduceRules) -> Record:
    if message.codec:
        raise _invalid("a compressed message inside another compressed message")
    if not NO_TIMESTAMP <= timestamp <= _TIMESTAMP_MAX:
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, f"timestamp {timestamp}")
    if stamped and rules.log_append_time:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP, "a producer does not set the LogAppendTime bit"
        )
    return Record(message.key, message.value, timestamp)


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, message)


def _too_large(message: str) -> KafkaError:
    return KafkaError(ErrorCode.MESSAGE_TOO_LARGE, message)


# -- for a consumer


class MessageSet(NamedTuple):
    """Stored records for an old consumer. `content_bytes` is their decompressed size."""

    data: bytes
    content_bytes: int


def from_batches(
    buffer: Buffer,
    magic: int,
    *,
    first_offset: int,
    max_bytes: int,
    max_content: int,
    max_decompressed: int = CONVERTED_BATCH_BYTES_MAX,
) -> Iterator[MessageSet | None]:
    """Convert stored batches to a message set with the same codecs, offsets and timestamps.

    Headers and control batches are dropped. Uncompressed records before `first_offset` are also
    dropped, because old consumers may not skip them. The result is empty if no record is left. If a
    later batch cannot be converted, the set ends before that batch.

    Args:
        buffer: Consecutive batches; an incomplete one at the end is skipped.
        magic: 0 or 1.
        first_offset: Offset at which the consumer starts.
        max_bytes: Maximum size of the set in bytes; the first batch may exceed it.
        max_content: Stop after this many decompressed bytes, to limit the work.
        max_decompressed: Maximum decompressed size of one batch in bytes.

    Yields:
        None after each step of bounded work; the message set as the last item.

    Raises:
        KafkaError: The first batch cannot be converted: UNSUPPORTED_COMPRESSION_TYPE (zstd,
            KIP-110), CORRUPT_MESSAGE, or MESSAGE_TOO_LARGE (too many records or bytes).
    """
    parts: list[bytes] = []
    size = content_bytes = 0
    for position, header in iter_headers(buffer):
        if header.is_control or header.last_offset < first_offset:
            continue
        batch = memoryview(buffer)[position : position + header.size]
        try:
            part, content = yield from _convert_batch(
                batch, header, magic, first_offset, max_decompressed
            )
        except KafkaError:
            if parts:
                break
            raise
        content_bytes += content
        if parts and size + len(part) > max_bytes:
            break
        if part:
            parts.append(part)
            size += len(part)
        if parts and content_bytes >= max_content:
            break
    yield MessageSet(b"".join(parts), content_bytes)


def _convert_batch(
    batch: memoryview, header: BatchHeader, magic: int, first_offset: int, max_decompressed: int
) -> Generator[None, None, tuple[bytes, int]]:
    """Return one batch as messages, and their decompressed size."""
    codec = header.codec
    if codec == Codec.ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "a batch in zstd, which needs Fetch 10"
        )
    if header.record_count > MESSAGES_MAX:
        raise _too_large(f"a batch of {header.record_count} records")
    stamp = LOG_APPEND_TIME_BIT if header.is_log_append_time else 0
    # A compressed batch keeps all records: it is one message with offsets relative to the first
    # one.
    start = 0 if codec else first_offset
    records = stream_records(batch, header, start_offset=start, max_decompressed=max_decompressed)
    encoded = yield from _encode(records, magic, stamp, relative=bool(codec) and magic > 0)
    content, last_offset, max_timestamp = encoded
    if not codec:
        return content, len(content)
    if last_offset < first_offset:
        return b"", len(content)
    stream = compress(codec, content)
    if magic == 0 and codec == Codec.LZ4:
        stream = with_old_checksum(stream)
    wrapper = Record(None, stream, max_timestamp)
    return _encode_message(wrapper, last_offset, magic, codec | stamp), len(content)


class _Encoded(NamedTuple):
    data: bytes
    last_offset: int
    max_timestamp: int


def _encode(
    records: Iterable[Record | OversizedRecord | None],
    magic: int,
    attributes: int,
    *,
    relative: bool,
) -> Generator[None, None, _Encoded]:
    """Encode records as messages, with offsets relative to the first one if `relative`."""
    out = bytearray()
    base_offset = last_offset = -1
    max_timestamp = NO_TIMESTAMP
    for record in records:
        if not isinstance(record, Record):
            yield None
            continue
        last_offset = record.offset
        if base_offset < 0:
            base_offset = last_offset if relative else 0
        max_timestamp = max(max_timestamp, record.timestamp)
        out += _encode_message(record, last_offset - base_offset, magic, attributes)
    return _Encoded(bytes(out), last_offset, max_timestamp)


def _encode_message(record: Record, offset: int, magic: int, attributes: int) -> bytes:
    key, value, timestamp = record.key, record.value, record.timestamp
    body = b"".join(
        (
            _FIELDS[1].pack(1, attributes, timestamp)
            if magic
            else _FIELDS[0].pack(0, attributes & CODEC_MASK),
            _NULL if key is None else _LENGTH.pack(len(key)) + key,
            _NULL if value is None else _LENGTH.pack(len(value)) + value,
        )
    )
    return _ENTRY_CRC.pack(offset, len(body) + 4, crc32(body)) + body
