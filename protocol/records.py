"""Record batches of format v2: reading, checking and building.

A batch has a 61-byte header and records, which may be compressed as a whole::

    offset  0 base_offset int64          offset 23 last_offset_delta int32
            8 batch_length int32                27 base_timestamp int64
           12 partition_leader_epoch int32      35 max_timestamp int64
           16 magic int8 (2)                    43 producer_id int64
           17 crc uint32 (of bytes from 21)     51 producer_epoch int16
           21 attributes int16                  53 base_sequence int32
                                                57 record_count int32

`batch_length` counts the bytes after it. The CRC does not cover base offset and leader epoch, so a
leader sets both without changing anything else, and the broker stores a batch as it was received.
`log_validator` validates batches from clients record by record. This module parses records for
consumers of the data.

The format is defined by KIP-98; null is length -1, lengths and deltas are zigzag varints.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from .checksum import crc32c
from .compression import Codec, MissingCodecError, OutputLimitError, compress, decompress
from .errors import ErrorCode, KafkaError
from .primitives import Buffer, read_varint, write_varint

# Bytes of a batch before its records.
HEADER_SIZE = 61

# Size in bytes of `base_offset` and `batch_length`, which `batch_length` does not count.
LENGTH_END = 12

MAGIC = 2
# Default limits for one batch: decompressed bytes, records, and headers of all records.
MAX_DECOMPRESSED_BYTES = 64 * 1024 * 1024
MAX_RECORDS = 500_000
MAX_HEADERS = 500_000
# Default limits for one record: decompressed bytes (the largest array of Java) and headers.
MAX_RECORD_BYTES = 2_147_483_639
MAX_RECORD_HEADERS = 10_000
# Bytes of the shortest record: length, attributes, two deltas, null key, null value, no headers.
MIN_RECORD_SIZE = 7

NO_TIMESTAMP = -1
TIMESTAMP_MAX = (1 << 63) - 1
TIMESTAMP_MIN = -TIMESTAMP_MAX - 1
# A timestamp limit (ms) that every timestamp satisfies.
NO_LIMIT = TIMESTAMP_MAX
# Maximum number of invalid records that one error response lists.
RECORD_ERRORS_MAX = 10_000

CODEC_MASK = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
# `base_timestamp` is the delete horizon of tombstones and markers in the batch (KIP-534).
DELETE_HORIZON_BIT = 0x40

_CRC_START = 21
MAGIC_AT = 16
_CODEC_AT = 22  # the second byte of the attributes
_HEADER = struct.Struct(">qiibIhiqqqhii")
_UNCOVERED = struct.Struct(">qiibI")  # part of the header that the CRC does not cover
_COVERED = struct.Struct(">hiqqqhii")  # part of the header that the CRC covers
_CLAIMS = struct.Struct(">h34xi")  # attributes and record count
_MARKER = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")
_new = tuple.__new__  # takes half the time of calling the class
# An int: reading an enum member takes as long as a whole check.
NO_CODEC = int(Codec.NONE)


class BatchHeader(NamedTuple):
    """The header of a batch, with fields in wire order. Sizes are in bytes."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Size of the whole batch in bytes."""
        return self.batch_length + LENGTH_END

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """A `Codec` number, or 5 to 7 for an unknown codec."""
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        """True if all records have `max_timestamp` as their timestamp."""
        return bool(self.attributes & LOG_APPEND_TIME_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def delete_horizon(self) -> int | None:
        """Time (ms) until which compaction keeps tombstones and markers (KIP-534), or None."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record (wraps from 2147483647 to 0), -1 without sequences."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


class Record(NamedTuple):
    """A record. `timestamp` is in ms since the epoch, -1 for none.

    A header key that is not UTF-8 keeps its bytes as surrogate escapes.
    """

    key: bytes | None = None
    value: bytes | None = None
    timestamp: int = NO_TIMESTAMP
    headers: Sequence[tuple[str, bytes | None]] = ()
    offset: int = -1


class FoundRecord(NamedTuple):
    """Offset and timestamp of a record and leader epoch of its batch, for ListOffsets."""

    offset: int
    timestamp: int
    leader_epoch: int


class RecordError(NamedTuple):
    """An invalid record of a rejected batch: its index in the batch and the problem."""

    batch_index: int
    message: str


class RecordsRejectedError(KafkaError):
    """Rejection of a batch because of some of its records.

    `record_errors` lists them in order, at most `RECORD_ERRORS_MAX` (KIP-467).
    """

    def __init__(self, code: ErrorCode, message: str, record_errors: Sequence[RecordError]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


class DecompressedTooLargeError(KafkaError):
    """Rejection of a batch whose records exceed the decompressed size limit."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.MESSAGE_TOO_LARGE, message)


@dataclass(frozen=True, slots=True)
class ProduceRules:
    """Rules of a topic for produced batches; the defaults are Kafka's.

    Attributes:
        max_message_bytes: Maximum size of a batch in bytes.
        compacted: True if records need a key.
        log_append_time: True if the broker sets the timestamps.
        timestamp_before_max_ms: Maximum distance of a timestamp before the broker's time, in ms
            (KIP-937); for CreateTime only.
        timestamp_after_max_ms: Maximum distance after it.
        max_decompressed: Maximum decompressed size of all records of a batch in bytes.
        max_record_bytes: Maximum size of one record of a compressed batch in bytes.
        max_records: Maximum number of records in a batch.
        max_headers: Maximum number of headers in a batch.
        max_record_headers: Maximum number of headers of a record.
        codec: Codec in which batches are stored; None keeps the producer's codec.
        compression_level: Level of `codec`; None for the default.
    """

    max_message_bytes: int = 1_048_588
    compacted: bool = False
    log_append_time: bool = False
    timestamp_before_max_ms: int = NO_LIMIT
    timestamp_after_max_ms: int = 3_600_000
    max_decompressed: int = MAX_DECOMPRESSED_BYTES
    max_record_bytes: int = MAX_RECORD_BYTES
    max_records: int = MAX_RECORDS
    max_headers: int = MAX_HEADERS
    max_record_headers: int = MAX_RECORD_HEADERS
    codec: Codec | None = None
    compression_level: int | None = None


DEFAULT_RULES = ProduceRules()


# -- headers


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Unpack the header at `position` without checking it.

    Raises:
        KafkaError: CORRUPT_MESSAGE if there are fewer than `HEADER_SIZE` bytes.
    """
    try:
        return _new(BatchHeader, _HEADER.unpack_from(buffer, position))
    except struct.error:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"no batch header in {len(buffer) - position} bytes"
        ) from None


def claims_transaction(buffer: Buffer | None) -> bool:
    """Return True if the first batch of a request claims to be transactional.

    Nothing else of the batch is checked: the result selects the authorization check, which comes
    before validation.
    """
    if buffer is None or len(buffer) < HEADER_SIZE or buffer[MAGIC_AT] != MAGIC:
        return False
    return bool(buffer[_CRC_START + 1] & TRANSACTIONAL_BIT)


def claimed_producer(buffer: Buffer | None) -> tuple[int, int, int] | None:
    """Return the idempotent producer that the first batch of a request claims.

    Nothing else of the batch is checked.

    Returns:
        Producer ID, producer epoch and base sequence; None without them.
    """
    if buffer is None or len(buffer) < HEADER_SIZE or buffer[MAGIC_AT] != MAGIC:
        return None
    *_, producer_id, epoch, sequence, _ = _HEADER.unpack_from(buffer)
    return (producer_id, epoch, sequence) if producer_id >= 0 and sequence >= 0 else None


def claimed_codec(buffer: Buffer | None) -> int:
    """Return the codec that the first batch of a request claims.

    Nothing else of the batch is checked: the result selects where the batch is validated.
    """
    try:
        return buffer[_CODEC_AT] & CODEC_MASK if buffer is not None else NO_CODEC
    except IndexError:
        return NO_CODEC


def claimed_codec_and_count(buffer: Buffer) -> tuple[int, int]:
    """Return the codec and the number of records that the first batch of a request claims.

    Nothing else of the batch is checked. Both are 0 if the header is incomplete.
    """
    try:
        attributes, count = _CLAIMS.unpack_from(buffer, _CRC_START)
    except struct.error:
        return NO_CODEC, 0
    return attributes & CODEC_MASK, count


def check_crc(buffer: Buffer, position: int, header: BatchHeader) -> bool:
    """Return True if the CRC-32C of the batch at `position` matches its header."""
    end = position + header.batch_length + LENGTH_END
    covered = memoryview(buffer)[position + _CRC_START : end]
    return crc32c(covered) == header.crc


def iter_headers(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yield position and header of every complete batch; an incomplete one at the end is skipped.

    Raises:
        KafkaError: CORRUPT_MESSAGE for a header that is not of format v2 or has an impossible
            length.
    """
    position = 0
    end = len(buffer)
    while position + HEADER_SIZE <= end:
        header = read_header(buffer, position)
        if header.magic != MAGIC or header.size < HEADER_SIZE:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"magic {header.magic} and length {header.batch_length} at byte {position}",
            )
        if position + header.size > end:
            return
        yield position, header
        position += header.size


def placed(
    buffer: Buffer, header: BatchHeader, base_offset: int, leader_epoch: int
) -> list[Buffer]:
    """Return a batch with its offset and leader epoch, without copying its records.

    Args:
        buffer: The batch as received.
        header: Its header, with the attributes, maximum timestamp and CRC that `LogValidator` set.
        base_offset: Offset of the first record.
        leader_epoch: Epoch of the appending leader.

    Returns:
        The new header and the unchanged records. The CRC covers neither offset nor epoch.
    """
    head = _HEADER.pack(base_offset, header.batch_length, leader_epoch, *header[3:])
    return [head, memoryview(buffer)[HEADER_SIZE : header.batch_length + LENGTH_END]]


def with_timestamps(
    buffer: Buffer, header: BatchHeader, attributes: int, max_timestamp: int
) -> BatchHeader:
    """Return the header with other attributes and another `max_timestamp` (ms), and the new CRC."""
    changed = header._replace(attributes=attributes, max_timestamp=max_timestamp)
    return _with_crc(changed, memoryview(buffer)[HEADER_SIZE : header.size])


def _with_crc(header: BatchHeader, payload: Buffer) -> BatchHeader:
    return header._replace(crc=crc32c(payload, crc32c(_HEADER.pack(*header)[_CRC_START:])))


def with_payload(header: BatchHeader, payload: Buffer) -> tuple[bytes, BatchHeader]:
    """Return a batch with other stored records, and its header.

    The length and the CRC in `header` are replaced.
    """
    length = HEADER_SIZE - LENGTH_END + len(payload)
    changed = _with_crc(header._replace(batch_length=length), payload)
    return _HEADER.pack(*changed) + payload, changed


# -- reading records


def read_records(
    buffer: Buffer, *, max_decompressed: int = MAX_DECOMPRESSED_BYTES
) -> Iterator[Record]:
    """Yield the records of all complete batches, including control records; CRCs are not checked.

    With LogAppendTime every record has the `max_timestamp` of its batch.

    Args:
        buffer: Consecutive batches.
        max_decompressed: Maximum decompressed size of the records of one batch in bytes.

    Raises:
        KafkaError: CORRUPT_MESSAGE for malformed records, MESSAGE_TOO_LARGE above
            `max_decompressed`. Earlier records were yielded before.
    """
    for position, header in iter_headers(buffer):
        with errors_as(ErrorCode.CORRUPT_MESSAGE):
            yield from _parse_batch(buffer, position, header, max_decompressed)


def payload_of(
    batch: Buffer, header: BatchHeader, *, max_decompressed: int = MAX_DECOMPRESSED_BYTES
) -> bytes:
    """Return the decompressed records of one batch, for `records_in`.

    This may take long and may run in a thread. Raises the errors of `read_records`.
    """
    payload = memoryview(batch)[HEADER_SIZE : header.size]
    if not header.codec:
        return bytes(payload)
    with errors_as(ErrorCode.CORRUPT_MESSAGE):
        return decompress(header.codec, payload, max_decompressed)


def records_in(payload: bytes, header: BatchHeader) -> Iterator[Record]:
    """Yield the records in the result of `payload_of`. Raises KafkaError CORRUPT_MESSAGE."""
    with errors_as(ErrorCode.CORRUPT_MESSAGE):
        yield from _parse_records(payload, header)


def first_record_at_or_after(
    buffer: Buffer,
    timestamp: int,
    *,
    start_offset: int = 0,
    max_decompressed: int = MAX_DECOMPRESSED_BYTES,
) -> FoundRecord | None:
    """Return the first record with a timestamp of at least `timestamp` (ms), or None.

    Records before `start_offset` are ignored. Batches with an older maximum timestamp are not
    decompressed. Raises the errors of `read_records`.
    """
    for position, header in iter_headers(buffer):
        if header.max_timestamp < timestamp or header.last_offset < start_offset:
            continue
        with errors_as(ErrorCode.CORRUPT_MESSAGE):
            for record in _parse_batch(buffer, position, header, max_decompressed):
                if record.timestamp >= timestamp and record.offset >= start_offset:
                    return FoundRecord(record.offset, record.timestamp, header.leader_epoch)
    return None


class MalformedError(ValueError):
    """Malformed records of a batch."""


class RecordSizeError(ValueError):
    """A record of a compressed batch that exceeds the topic's limit for one record.

    Args:
        size: Size of the record in bytes.
        limit: Value of `max.decompressed.message.bytes`.
    """

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"a record of {size} bytes, more than max.decompressed.message.bytes={limit}"
        )


class RecordLimitError(ValueError):
    """Too many records or headers in a batch."""


@contextmanager
def errors_as(code: ErrorCode) -> Iterator[None]:
    """Convert errors of the parser and the decompressors to KafkaError."""
    try:
        yield
    except ValueError as error:
        raise kafka_error_of(error, code) from None


def kafka_error_of(error: ValueError, code: ErrorCode) -> KafkaError:
    """Return the KafkaError for a parser or codec error.

    Args:
        error: The error.
        code: Code for all errors except limits and missing codec libraries.
    """
    if isinstance(error, MissingCodecError):
        return KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, str(error))
    if isinstance(error, RecordSizeError):
        return KafkaError(ErrorCode.INVALID_RECORD, str(error))
    if isinstance(error, OutputLimitError):
        return DecompressedTooLargeError(f"the batch {error}")
    if isinstance(error, RecordLimitError):
        return KafkaError(ErrorCode.MESSAGE_TOO_LARGE, str(error))
    return KafkaError(code, str(error))


def _parse_batch(
    buffer: Buffer, position: int, header: BatchHeader, max_decompressed: int
) -> Iterator[Record]:
    payload = memoryview(buffer)[position + HEADER_SIZE : position + header.size]
    if header.codec:
        return _parse_records(decompress(header.codec, payload, max_decompressed), header)
    return _parse_records(bytes(payload), header)


# Short varints are inlined: this is nearly twice as fast as a call for each of the six varints of a
# record.
def _parse_records(data: bytes, header: BatchHeader) -> Iterator[Record]:
    """Parse uncompressed records.

    No memory is allocated based on a length field: a slice ends with the data, and a record must
    end where its length field says.
    """
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    last_offset_delta = header.last_offset_delta
    log_append_time = header.max_timestamp if header.is_log_append_time else None
    position, end, new = 0, len(data), tuple.__new__
    try:
        for _ in range(header.record_count):
            raw, position = data[position], position + 1
            if raw > 0x7F:
                raw, position = long_varint(data, position, raw)
            record_end = position + (raw >> 1)
            if raw & 1:
                _reject_length(raw)
            raw, position = data[position + 1], position + 2  # after unused attributes
            if raw > 0x7F:
                raw, position = long_varint(data, position, raw)
            timestamp = base_timestamp + ((raw >> 1) ^ -(raw & 1))
            raw, position = data[position], position + 1
            if raw > 0x7F:
                raw, position = long_varint(data, position, raw)
            delta = raw >> 1
            if raw & 1 or delta > last_offset_delta:
                raise MalformedError(f"offset delta {delta}")
            if not TIMESTAMP_MIN <= timestamp <= TIMESTAMP_MAX:
                timestamp = _wrap_checked_timestamp(base_timestamp, timestamp)
            raw, position = data[position], position + 1
            if raw > 0x7F:
                raw, position = long_varint(data, position, raw)
            if raw & 1:
                key = None if raw == 1 else _reject_length(raw)
            else:
                key = data[position : position + (raw >> 1)]
                position += raw >> 1
            raw, position = data[position], position + 1
            if raw > 0x7F:
                raw, position = long_varint(data, position, raw)
            if raw & 1:
                value = None if raw == 1 else _reject_length(raw)
            else:
                value = data[position : position + (raw >> 1)]
                position += raw >> 1
            headers: list[tuple[str, bytes | None]] = []
            if data[position]:
                position = parse_headers(data, position, headers)
            else:
                position += 1
            if position != record_end:
                raise MalformedError(f"a record ends at byte {position}, not at {record_end}")
            if log_append_time is not None:
                timestamp = log_append_time
            yield new(Record, (key, value, timestamp, headers, base_offset + delta))
    except IndexError:
        raise MalformedError("the records are truncated") from None
    if position != end:
        raise MalformedError(f"{end - position} bytes after the last record")


def parse_headers(
    data: bytes,
    position: int,
    headers: list[tuple[str, bytes | None]],
    errors: str = "surrogateescape",
) -> int:
    """Append the headers of one record, whose count is at `position`; return their end position.

    `errors` handles keys that are not UTF-8, as in `bytes.decode`.

    Raises:
        MalformedError: A length is invalid.
        IndexError: The data ends before the headers.
    """
    count, position = read_varint(data, position)
    if count < 0:
        raise MalformedError(f"{count} record headers")
    for _ in range(count):
        size, position = read_varint(data, position)
        if size < 0:
            raise MalformedError("a record header without a key")
        key = data[position : position + size].decode(errors=errors)
        position += size
        size, position = read_varint(data, position)
        if size < -1:
            raise MalformedError(f"length {size}")
        headers.append((key, None if size < 0 else data[position : position + size]))
        position += max(size, 0)
    return position


def long_varint(data: Buffer, position: int, raw: int) -> tuple[int, int]:
    """Return a varint of several bytes in zigzag form, and the position after it."""
    byte = data[position]
    if byte < 0x80:  # two bytes are by far the most frequent case
        return raw & 0x7F | byte << 7, position + 1
    raw &= 0x7F
    for shift in range(7, 70, 7):
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return raw, position
    raise MalformedError("a varint of more than ten bytes")


def wrap_timestamp(number: int) -> int:
    """Wrap a sum or difference of timestamps at 64 bits, as Java's `long`."""
    return (number - TIMESTAMP_MIN) % (1 << 64) + TIMESTAMP_MIN


def _wrap_checked_timestamp(base: int, total: int) -> int:
    """Return a timestamp that wraps at 64 bits. Raises MalformedError if its delta does not fit."""
    if not TIMESTAMP_MIN <= total - base <= TIMESTAMP_MAX:
        raise MalformedError(f"timestamp {total}")
    return wrap_timestamp(total)


def _reject_length(raw: int) -> NoReturn:
    """Raise MalformedError for a negative length other than -1 (null)."""
    raise MalformedError(f"length {(raw >> 1) ^ -1}")


# -- building batches


def encode_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    codec: int = Codec.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    leader_epoch: int = -1,
    control: bool = False,
    transactional: bool = False,
    log_append_time: int | None = None,
    keep_offsets: bool = False,
) -> bytes:
    """Build one batch.

    Args:
        records: At least one record. They are numbered from `base_offset` on, ignoring their
            `offset`, unless `keep_offsets` is set (for batches with gaps).
        base_offset: Base offset of the batch.
        codec: A `Codec`.
        producer_id: ID of an idempotent producer, or -1.
        producer_epoch: Epoch of the producer, or -1.
        base_sequence: Sequence of the first record, or -1.
        leader_epoch: Leader epoch, -1 in a batch of a client.
        control: True if the records are control records, see `end_transaction_marker`.
        transactional: True if the batch is part of a transaction.
        log_append_time: Timestamp of all records in ms since the epoch, for LogAppendTime.
        keep_offsets: Use the `offset` of each record.

    Raises:
        ValueError: There are no records, the codec is unknown, or offsets do not increase.
    """
    builder = BatchBuilder(base_offset)
    for record in records:
        delta = record.offset - base_offset if keep_offsets else builder.count
        builder.add(record, delta)
    attributes = codec | control * CONTROL_BIT | transactional * TRANSACTIONAL_BIT
    return builder.finish(
        attributes,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        leader_epoch=leader_epoch,
        log_append_time=log_append_time,
    )


class BatchBuilder:
    """Builds a batch record by record.

    Args:
        base_offset: Base offset of the batch.
    """

    __slots__ = ("_base_offset", "_first", "_last_delta", "_latest", "_payload", "count")

    def __init__(self, base_offset: int = 0) -> None:
        # Number of records.
        self.count = 0
        self._base_offset = base_offset
        self._payload = bytearray()
        self._last_delta, self._first, self._latest = -1, NO_TIMESTAMP, NO_TIMESTAMP

    def add(self, record: Record, delta: int) -> None:
        """Append a record. Raises ValueError if its offset delta does not increase."""
        if delta <= self._last_delta:
            raise ValueError("offsets do not increase")
        if not self.count:
            self._first = self._latest = record.timestamp
        self._payload += _encode_record(
            record, delta, wrap_timestamp(record.timestamp - self._first)
        )
        self.count, self._last_delta = self.count + 1, delta
        self._latest = max(self._latest, record.timestamp)

    def finish(
        self,
        attributes: int = 0,
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        leader_epoch: int = -1,
        log_append_time: int | None = None,
    ) -> bytes:
        """Return the batch in the codec of `attributes`. Raises ValueError without records."""
        if not self.count:
            raise ValueError("a batch without records")
        compressed = compress(attributes & CODEC_MASK, self._payload)
        latest = self._latest
        if log_append_time is not None:
            attributes, latest = attributes | LOG_APPEND_TIME_BIT, log_append_time
        covered = _COVERED.pack(
            attributes,
            self._last_delta,
            self._first,
            latest,
            producer_id,
            producer_epoch,
            base_sequence,
            self.count,
        )
        length = HEADER_SIZE - LENGTH_END + len(compressed)
        crc = crc32c(compressed, crc32c(covered))
        head = _UNCOVERED.pack(self._base_offset, length, leader_epoch, MAGIC, crc)
        return head + covered + compressed


def _encode_record(record: Record, offset_delta: int, timestamp_delta: int) -> bytes:
    parts = [b"\x00", write_varint(timestamp_delta), write_varint(offset_delta)]
    for field in (record.key, record.value):
        parts += _encode_bytes(field)
    parts.append(write_varint(len(record.headers)))
    for name, value in record.headers:
        parts += _encode_bytes(name.encode(errors="surrogateescape"))
        parts += _encode_bytes(value)
    body = b"".join(parts)
    return write_varint(len(body)) + body


def _encode_bytes(field: bytes | None) -> tuple[bytes, bytes]:
    if field is None:
        return write_varint(-1), b""
    return write_varint(len(field)), field


# -- transaction markers


class Marker(NamedTuple):
    """A transaction marker, the only record of its control batch."""

    commit: bool
    coordinator_epoch: int


def end_transaction_marker(
    marker: Marker,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
    is_log_append_time: bool = False,
) -> bytes:
    """Return the control batch that ends a producer's transaction in one partition (KIP-98).

    The key of its record has two int16 (version 0, type 0 abort or 1 commit). The value has an
    int16 (version 0) and an int32 (coordinator epoch). The batch has no sequence. In a topic with
    LogAppendTime, `timestamp` is marked as such (`is_log_append_time`).
    """
    record = Record(
        key=_MARKER.pack(0, marker.commit),
        value=_MARKER_VALUE.pack(0, marker.coordinator_epoch),
        timestamp=timestamp,
    )
    return encode_batch(
        [record],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        control=True,
        transactional=True,
        log_append_time=timestamp if is_log_append_time else None,
    )


def read_marker(record: Record) -> Marker | None:
    """Return the transaction marker in a control record, or None for another type.

    Later versions of key and value may be longer; only the known part is read.

    Raises:
        KafkaError: CORRUPT_MESSAGE if key or value is too short.
    """
    try:
        _, kind = _MARKER.unpack_from(record.key or b"")
        if kind not in (0, 1):
            return None
        _, coordinator_epoch = _MARKER_VALUE.unpack_from(record.value or b"")
    except struct.error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "a control record is truncated") from None
    return Marker(kind == 1, coordinator_epoch)
