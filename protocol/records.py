"""Record batches of format v2: read the header, check, place in a log, and open when it must be.

A batch is one 61-byte header and its records, which may be compressed as a whole::

    offset  0 base_offset int64          offset 23 last_offset_delta int32
            8 batch_length int32                27 base_timestamp int64
           12 partition_leader_epoch int32      35 max_timestamp int64
           16 magic int8 (2)                    43 producer_id int64
           17 crc uint32 (of all from 21)       51 producer_epoch int16
           21 attributes int16                  53 base_sequence int32
                                                57 record_count int32

`batch_length` counts what follows it. Base offset and leader epoch lie before the CRC's range, so a
leader sets both without touching anything else: the broker keeps a batch as the bytes that came in.
What a client sends is checked record by record before (`log_validator`). Here records are parsed for
those who read them.

The format is KIP-98's; null is length -1, lengths and deltas are zigzag varints.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from crc32c import crc32c

from .compression import Codec, OutputLimitError, compress, decompress
from .errors import ErrorCode, KafkaError
from .primitives import Buffer, read_varint, write_varint

HEADER_SIZE = 61
"""Bytes of a batch before its records."""

LENGTH_END = 12
"""Bytes up to and including `batch_length`, which it does not count."""

MAGIC = 2
MAX_DECOMPRESSED_BYTES = 64 * 1024 * 1024
MAX_RECORD_BYTES = 2_147_483_639  # of one record after decompression; the largest array of Java
MAX_RECORDS = 500_000  # in one batch
MAX_HEADERS = 500_000  # of all records of one batch
MAX_RECORD_HEADERS = 10_000  # of one record
MIN_RECORD_SIZE = 7
"""Bytes of the shortest record: length, attributes, two deltas, null key, null value, no headers."""

NO_TIMESTAMP = -1
TIMESTAMP_MAX = (1 << 63) - 1
TIMESTAMP_MIN = -TIMESTAMP_MAX - 1
NO_LIMIT = TIMESTAMP_MAX
"""A timestamp limit (ms) that every timestamp keeps."""
RECORD_ERRORS_MAX = 10_000
"""How many offending records one refusal names."""

CODEC_MASK = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40
"""`base_timestamp` says until when tombstones and markers of the batch are kept (KIP-534)."""

_CRC_START = 21
MAGIC_AT = 16
_CODEC_AT = 22  # the second byte of the attributes
_HEADER = struct.Struct(">qiibIhiqqqhii")
_UNCOVERED = struct.Struct(">qiibI")  # the header's part before the range of the CRC ...
_COVERED = struct.Struct(">hiqqqhii")  # ... and the part in it
_CLAIMS = struct.Struct(">h34xi")  # attributes and record count
_MARKER = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")
_new = tuple.__new__  # half the time of a call of the class
NO_CODEC = int(Codec.NONE)
# A plain number: a look at an enum costs as much as a whole check.


class BatchHeader(NamedTuple):
    """The header of one batch, in wire order. Offsets are record numbers, sizes are bytes."""

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
        """Bytes of the whole batch."""
        return self.batch_length + LENGTH_END

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """A `Codec` number, or 5 to 7, which no codec has."""
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        """Whether every record has `max_timestamp` for its timestamp."""
        return bool(self.attributes & LOG_APPEND_TIME_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def delete_horizon(self) -> int | None:
        """Time (ms) until which compaction keeps the batch's tombstones and markers (KIP-534);
        None before compaction has set one."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, -1 without sequences; they wrap from 2147483647 to 0."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


class Record(NamedTuple):
    """One record. `timestamp` is in ms since the epoch, -1 for none."""

    key: bytes | None = None
    value: bytes | None = None
    timestamp: int = NO_TIMESTAMP
    headers: Sequence[tuple[str, bytes | None]] = ()
    """Keys and values. A key that is not UTF-8 keeps its bytes as surrogate escapes."""
    offset: int = -1


class FoundRecord(NamedTuple):
    """What ListOffsets answers: a record's own offset and timestamp, and its batch's epoch."""

    offset: int
    timestamp: int
    leader_epoch: int


class RecordError(NamedTuple):
    """Why a batch was refused: the index of one record in it, and what is wrong with that record."""

    batch_index: int
    message: str


class RecordsRefusedError(KafkaError):
    """A batch is refused because of some of its records.

    `record_errors` names them in order, at most `RECORD_ERRORS_MAX` (KIP-467).
    """

    def __init__(self, code: ErrorCode, message: str, record_errors: Sequence[RecordError]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


class DecompressedTooLargeError(KafkaError):
    """The records of a batch would take more bytes than they may."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.MESSAGE_TOO_LARGE, message)


@dataclass(frozen=True, slots=True)
class ProduceRules:
    """What a topic asks of a batch that a client sends; the defaults are Kafka's.

    Sizes are bytes, times milliseconds. The two timestamp limits say how far a record's time may
    lie before and after the broker's (KIP-937); they hold for topics with CreateTime only. `codec`
    is the one that batches are stored in, at `compression_level` (None: the codec's default); None
    keeps what the producer chose. `max_record_bytes` limits one record of a compressed batch,
    `max_decompressed` all of them.
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
    """Unpack the header at `position`; nothing in it is checked.

    Raises:
        KafkaError: CORRUPT_MESSAGE, when fewer than `HEADER_SIZE` bytes are there.
    """
    try:
        return _new(BatchHeader, _HEADER.unpack_from(buffer, position))
    except struct.error:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"no batch header in {len(buffer) - position} bytes"
        ) from None


def claims_transaction(buffer: Buffer | None) -> bool:
    """Whether the first batch of what a client sent says that it belongs to a transaction.

    Nothing else of it is looked at: this decides who may write it, before what it is.
    """
    if buffer is None or len(buffer) < HEADER_SIZE or buffer[MAGIC_AT] != MAGIC:
        return False
    return bool(buffer[_CRC_START + 1] & TRANSACTIONAL_BIT)


def claimed_producer(buffer: Buffer | None) -> tuple[int, int, int] | None:
    """Return what the first batch of a request says about its idempotent producer.

    Nothing else of the batch is checked.

    Returns:
        Producer ID, producer epoch and base sequence; None without them.
    """
    if buffer is None or len(buffer) < HEADER_SIZE or buffer[MAGIC_AT] != MAGIC:
        return None
    *_, producer_id, epoch, sequence, _ = _HEADER.unpack_from(buffer)
    return (producer_id, epoch, sequence) if producer_id >= 0 and sequence >= 0 else None


def claimed_codec(buffer: Buffer | None) -> int:
    """In which codec the first batch of what a client sent says that it is.

    Nothing else of it is looked at: this decides who opens it, before what it is.
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
    """Whether the CRC-32C of the batch at `position` is the one in its header."""
    end = position + header.batch_length + LENGTH_END
    covered = memoryview(buffer)[position + _CRC_START : end]
    return crc32c(covered) == header.crc


def iter_headers(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of every whole batch; a part of a batch at the end is left out.

    Raises:
        KafkaError: CORRUPT_MESSAGE, at a header which is not of format v2, or whose length is
            impossible.
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
    """The batch at the start of `buffer` as it goes into a log, without a copy of its records.

    Parameters:
        buffer: the batch as received.
        header: its header; what `LogValidator` changed in it (attributes, max timestamp, CRC) is
            written.
        base_offset: offset of the first record.
        leader_epoch: epoch of the leader that appends. Both lie outside the CRC.
    """
    head = _HEADER.pack(base_offset, header.batch_length, leader_epoch, *header[3:])
    return [head, memoryview(buffer)[HEADER_SIZE : header.batch_length + LENGTH_END]]


def restamped(
    buffer: Buffer, header: BatchHeader, attributes: int, max_timestamp: int
) -> BatchHeader:
    """The header with another type of timestamps and another `max_timestamp` (ms), and its CRC."""
    changed = header._replace(attributes=attributes, max_timestamp=max_timestamp)
    return _with_crc(changed, memoryview(buffer)[HEADER_SIZE : header.size])


def _with_crc(header: BatchHeader, payload: Buffer) -> BatchHeader:
    return header._replace(crc=crc32c(payload, crc32c(_HEADER.pack(*header)[_CRC_START:])))


def with_payload(header: BatchHeader, payload: Buffer) -> tuple[bytes, BatchHeader]:
    """A batch with other stored bytes of records; returns it and its header.

    `header` says everything about the batch but its length and CRC, which are computed.
    """
    length = HEADER_SIZE - LENGTH_END + len(payload)
    changed = _with_crc(header._replace(batch_length=length), payload)
    return _HEADER.pack(*changed) + payload, changed


# -- reading records


def read_records(
    buffer: Buffer, *, max_decompressed: int = MAX_DECOMPRESSED_BYTES
) -> Iterator[Record]:
    """The records of all whole batches, control records included; CRCs are not checked.

    With LogAppendTime every record has its batch's `max_timestamp`.

    Parameters:
        buffer: batches, one after the other.
        max_decompressed: how many bytes the records of one batch may take uncompressed.

    Raises:
        KafkaError: CORRUPT_MESSAGE for anything malformed, MESSAGE_TOO_LARGE above
            `max_decompressed`. Records before the bad place have been given out by then.
    """
    for position, header in iter_headers(buffer):
        with errors_as(ErrorCode.CORRUPT_MESSAGE):
            yield from _records(buffer, position, header, max_decompressed)


def payload_of(
    batch: Buffer, header: BatchHeader, *, max_decompressed: int = MAX_DECOMPRESSED_BYTES
) -> bytes:
    """The records of one batch as they are without compression, for `records_in`.

    That takes long where there is much: it may run in a thread. Raises as `read_records`.
    """
    payload = memoryview(batch)[HEADER_SIZE : header.size]
    if not header.codec:
        return bytes(payload)
    with errors_as(ErrorCode.CORRUPT_MESSAGE):
        return decompress(header.codec, payload, max_decompressed)


def records_in(payload: bytes, header: BatchHeader) -> Iterator[Record]:
    """The records of what `payload_of` gives. Raises KafkaError CORRUPT_MESSAGE."""
    with errors_as(ErrorCode.CORRUPT_MESSAGE):
        yield from _parse(payload, header)


def first_record_at_or_after(
    buffer: Buffer,
    timestamp: int,
    *,
    start_offset: int = 0,
    max_decompressed: int = MAX_DECOMPRESSED_BYTES,
) -> FoundRecord | None:
    """The first record whose time is at least `timestamp` (ms), inside compressed batches too.

    Records below `start_offset` do not count. Batches whose header says that they are older are
    not opened. Raises as `read_records`.
    """
    for position, header in iter_headers(buffer):
        if header.max_timestamp < timestamp or header.last_offset < start_offset:
            continue
        with errors_as(ErrorCode.CORRUPT_MESSAGE):
            for record in _records(buffer, position, header, max_decompressed):
                if record.timestamp >= timestamp and record.offset >= start_offset:
                    return FoundRecord(record.offset, record.timestamp, header.leader_epoch)
    return None


class MalformedError(ValueError):
    """The records of a batch do not have the form that they should have."""


class RecordLimitError(ValueError):
    """A batch has more records, or headers, than a batch may have."""


@contextmanager
def errors_as(code: ErrorCode) -> Iterator[None]:
    """Turn what the parser and the decompressors raise into a KafkaError."""
    try:
        yield
    except ValueError as error:
        raise refusal_of(error, code) from None


def refusal_of(error: ValueError, code: ErrorCode) -> KafkaError:
    """The KafkaError for what the parser and the decompressors raise, with `code` unless it is a limit."""
    if isinstance(error, OutputLimitError):
        return DecompressedTooLargeError(f"the batch {error}")
    if isinstance(error, RecordLimitError):
        return KafkaError(ErrorCode.MESSAGE_TOO_LARGE, str(error))
    return KafkaError(code, str(error))


def _records(
    buffer: Buffer, position: int, header: BatchHeader, max_decompressed: int
) -> Iterator[Record]:
    payload = memoryview(buffer)[position + HEADER_SIZE : position + header.size]
    if header.codec:
        return _parse(decompress(header.codec, payload, max_decompressed), header)
    return _parse(bytes(payload), header)


# Short varints are inlined: this is nearly twice as fast as a call for each of the six varints of a
# record.
def _parse(data: bytes, header: BatchHeader) -> Iterator[Record]:
    """Parse uncompressed records.

    Nothing is allocated on the word of a length: a slice ends with the data, and a record must end
    where its length says.
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
                _bad_length(raw)
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
                timestamp = _long_sum(base_timestamp, timestamp)
            raw, position = data[position], position + 1
            if raw > 0x7F:
                raw, position = long_varint(data, position, raw)
            if raw & 1:
                key = None if raw == 1 else _bad_length(raw)
            else:
                key = data[position : position + (raw >> 1)]
                position += raw >> 1
            raw, position = data[position], position + 1
            if raw > 0x7F:
                raw, position = long_varint(data, position, raw)
            if raw & 1:
                value = None if raw == 1 else _bad_length(raw)
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
    """Append the headers of one record, whose count is at `position`; returns their end.

    `errors` says what becomes of keys that are not UTF-8, as in `bytes.decode`.

    Raises:
        MalformedError: a length makes no sense.
        IndexError: the data ends before the headers.
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
    """The rest of a varint whose first byte said that there is more; still in zigzag form."""
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


def wrapped(number: int) -> int:
    """A sum or difference of times as Java's `long` has it: it goes round at 64 bits."""
    return (number - TIMESTAMP_MIN) % (1 << 64) + TIMESTAMP_MIN


def _long_sum(base: int, total: int) -> int:
    """A timestamp from one that is not of 64 bits; the delta that led there must be."""
    if not TIMESTAMP_MIN <= total - base <= TIMESTAMP_MAX:
        raise MalformedError(f"timestamp {total}")
    return wrapped(total)


def _bad_length(raw: int) -> NoReturn:
    """Only -1 stands for null."""
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

    Parameters:
        records: at least one. They are numbered from `base_offset` on, whatever their `offset`
            says, unless `keep_offsets` (batches with gaps, as compaction leaves them).
        base_offset: offset of the first record, or what offsets are counted from.
        codec: a `Codec`.
        producer_id: of an idempotent producer, with its epoch and the sequence of the first
            record; -1 each without one.
        leader_epoch: -1 for what a client sends.
        control: the records are control records, see `end_transaction_marker`.
        transactional: the batch is part of a transaction.
        log_append_time: ms since the epoch, for a batch whose records all have that time.

    Raises:
        ValueError: no records, an unknown codec, or (`keep_offsets`) offsets that do not rise.
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
    """A batch that is built record by record.

    Args:
        base_offset: Offset that offset deltas are counted from.
    """

    __slots__ = ("_base_offset", "_first", "_last_delta", "_latest", "_payload", "count")

    def __init__(self, base_offset: int = 0) -> None:
        self.count = 0
        """Number of records."""
        self._base_offset = base_offset
        self._payload = bytearray()
        self._last_delta, self._first, self._latest = -1, NO_TIMESTAMP, NO_TIMESTAMP

    def add(self, record: Record, delta: int) -> None:
        """Append a record. Raises ValueError where its offset delta does not rise."""
        if delta <= self._last_delta:
            raise ValueError("offsets do not rise")
        if not self.count:
            self._first = self._latest = record.timestamp
        self._payload += _encode_record(record, delta, wrapped(record.timestamp - self._first))
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
        """Return the batch, compressed by the codec in `attributes`. Raises ValueError without records."""
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
    """The end of a transaction, as the one record of a control batch."""

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
) -> bytes:
    """The control batch that ends a producer's transaction in one partition (KIP-98).

    Its record has the key (version 0, type 0 abort or 1 commit) in two int16, and the value
    (version 0 in int16, coordinator epoch in int32). It has no sequence.
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
    )


def read_marker(record: Record) -> Marker | None:
    """What a control record says, or None when it is not the end of a transaction.

    Later versions of key and value may be longer; they are read as far as they are known.

    Raises:
        KafkaError: CORRUPT_MESSAGE, when key or value is too short.
    """
    try:
        _, kind = _MARKER.unpack_from(record.key or b"")
        if kind not in (0, 1):
            return None
        _, coordinator_epoch = _MARKER_VALUE.unpack_from(record.value or b"")
    except struct.error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "a control record is truncated") from None
    return Marker(kind == 1, coordinator_epoch)
