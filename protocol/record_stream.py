"""Lazy reading of the records of one stored batch, with bounded work per step.

A stored batch may be a worst case: a few kilobytes can expand to millions of records, or to one
record with millions of headers. So a batch is decompressed in chunks, the content of a record is
parsed only if the caller needs it, and headers only on iteration. All iterators here return control
after a bounded piece of work, so the caller can pause, stop, or continue in a worker thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple, TypeAlias, overload

from .compression import decompressed_chunks
from .errors import ErrorCode
from .primitives import Buffer
from .records import (
    HEADER_SIZE,
    MAX_DECOMPRESSED_BYTES,
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
    BatchHeader,
    FoundRecord,
    MalformedError,
    Record,
    RecordSizeError,
    errors_as,
    iter_headers,
    long_varint,
    wrap_timestamp,
)

# Records whose heads are parsed per step (about 0.3 ms).
RECORDS_PER_STEP = 512

# Largest length that a record can state, as a signed varint of 32 bits.
LENGTH_MAX = 2**31 - 1

# Maximum bytes of the head of a record: length, attributes, timestamp delta, offset delta.
_HEAD_BYTES_MAX = 31

RecordHeader: TypeAlias = tuple[str, bytes | None]


class RecordHeaders(Sequence[RecordHeader]):
    """The headers of one record, parsed on each iteration.

    Iteration raises KafkaError CORRUPT_MESSAGE at a malformed header. A key that is not UTF-8 keeps
    its bytes as surrogate escapes.
    """

    __slots__ = ("_data",)

    def __init__(self, data: Buffer) -> None:
        """Keep the bytes from the header count to the end of the record."""
        self._data = data

    def __len__(self) -> int:
        with errors_as(ErrorCode.CORRUPT_MESSAGE):
            return _header_count(self._data)[0]

    def __iter__(self) -> Iterator[RecordHeader]:
        with errors_as(ErrorCode.CORRUPT_MESSAGE):
            yield from _parse_headers(self._data)

    @overload
    def __getitem__(self, index: int) -> RecordHeader: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[RecordHeader]: ...
    def __getitem__(self, index: int | slice) -> RecordHeader | Sequence[RecordHeader]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step > 0:
                return list(islice(self, start, stop, step))
            return list(self)[index]
        wanted = index + len(self) if index < 0 else index
        found = next(islice(self, wanted, None), None) if wanted >= 0 else None
        if found is None:
            raise IndexError(index)
        return found

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(self) != len(other):
            return NotImplemented if not isinstance(other, Sequence) else False
        return all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(bytes(self._data))

    def __repr__(self) -> str:
        return repr(list(self))


class OversizedRecord(NamedTuple):
    """A record that was skipped because it exceeds the caller's size limit."""

    offset: int
    timestamp: int
    size: int


class RecordTimes(NamedTuple):
    """Offsets and timestamps (ms) of consecutive records; may be empty after a step."""

    offsets: list[int]
    timestamps: list[int]


def record_times(
    batch: Buffer,
    header: BatchHeader,
    *,
    max_decompressed: int = MAX_DECOMPRESSED_BYTES,
    max_record_bytes: int = LENGTH_MAX,
) -> Iterator[RecordTimes]:
    """Read offsets and timestamps of a batch without keys, values and headers.

    Args:
        batch: The whole batch.
        header: Its header.
        max_decompressed: Maximum decompressed size of the records in bytes.
        max_record_bytes: Maximum size of one record of a compressed batch in bytes.

    Yields:
        One item per step with at most `RECORDS_PER_STEP` records.

    Raises:
        KafkaError: CORRUPT_MESSAGE if the records are malformed, MESSAGE_TOO_LARGE above
            `max_decompressed`, INVALID_RECORD at a record above `max_record_bytes`. Earlier records
            were yielded before.
    """
    with errors_as(ErrorCode.CORRUPT_MESSAGE):
        window = _Window(batch, header, max_decompressed, max_record_bytes)
        left = header.record_count
        while left > 0:
            heads = window.heads(left, header)
            if not heads.offsets:
                window.load()
            else:
                left -= len(heads.offsets)
                window.move(heads.ends[-1])
            yield RecordTimes(heads.offsets, heads.timestamps)
        yield from (RecordTimes([], []) for _ in window.finish())


def first_record_since(
    batch: Buffer,
    header: BatchHeader,
    timestamp: int,
    *,
    start_offset: int = 0,
    max_decompressed: int = MAX_DECOMPRESSED_BYTES,
    max_record_bytes: int = LENGTH_MAX,
) -> Iterator[FoundRecord | None]:
    """Find the first record of a batch with a timestamp of at least `timestamp`.

    Args:
        batch: The whole batch.
        header: Its header.
        timestamp: Minimum timestamp in ms.
        start_offset: Ignore records before this offset.
        max_decompressed: Maximum decompressed size of the records in bytes.
        max_record_bytes: Maximum size of one record of a compressed batch in bytes. Records after the
            result are not checked.

    Yields:
        None after each step; the record, if there is one, as the last item.

    Raises:
        KafkaError: As in `record_times`.
    """
    for offsets, timestamps in record_times(
        batch, header, max_decompressed=max_decompressed, max_record_bytes=max_record_bytes
    ):
        if offsets and offsets[-1] >= start_offset and max(timestamps) >= timestamp:
            for offset, time in zip(offsets, timestamps, strict=True):
                if time >= timestamp and offset >= start_offset:
                    yield FoundRecord(offset, time, header.leader_epoch)
                    return
        yield None


def latest_record_of(
    batch: Buffer,
    header: BatchHeader,
    *,
    max_decompressed: int = MAX_DECOMPRESSED_BYTES,
    max_record_bytes: int = LENGTH_MAX,
) -> Iterator[FoundRecord | None]:
    """Find the first record with the maximum timestamp of a batch.

    Args:
        batch: The whole batch.
        header: Its header.
        max_decompressed: Maximum decompressed size of the records in bytes.
        max_record_bytes: Maximum size of one record of a compressed batch in bytes. Records after the
            result are not checked.

    Yields:
        None after each step; the record, if there is one, as the last item.

    Raises:
        KafkaError: As in `record_times`.
    """
    latest: FoundRecord | None = None
    for offsets, timestamps in record_times(
        batch, header, max_decompressed=max_decompressed, max_record_bytes=max_record_bytes
    ):
        if offsets and (latest is None or max(timestamps) > latest.timestamp):
            time = max(timestamps)
            latest = FoundRecord(offsets[timestamps.index(time)], time, header.leader_epoch)
            if time >= header.max_timestamp:
                break
        yield None
    yield latest


def stream_records(
    batch: Buffer,
    header: BatchHeader,
    *,
    start_offset: int = 0,
    max_decompressed: int = MAX_DECOMPRESSED_BYTES,
    record_bytes_max: int = MAX_DECOMPRESSED_BYTES,
) -> Iterator[Record | OversizedRecord | None]:
    """Read the records of one batch, including control records; the CRC is not checked.

    With LogAppendTime every record has the `max_timestamp` of the batch.

    Args:
        batch: The whole batch.
        header: Its header.
        start_offset: Skip the records before this offset.
        max_decompressed: Maximum decompressed size of the records in bytes.
        record_bytes_max: Maximum size of one record in bytes; a larger one is an `OversizedRecord`.

    Yields:
        The records in order, and None after each step.

    Raises:
        KafkaError: CORRUPT_MESSAGE if the records are malformed, MESSAGE_TOO_LARGE above
            `max_decompressed`. Earlier records were yielded before.
    """
    with errors_as(ErrorCode.CORRUPT_MESSAGE):
        window = _Window(batch, header, max_decompressed)
        left = header.record_count
        while left > 0:
            heads = window.heads(left, header)
            whole = heads.whole()
            for number in range(whole):
                if heads.offsets[number] >= start_offset:
                    size = heads.size(number)
                    if size <= record_bytes_max:
                        yield heads.record(number)
                    else:
                        yield heads.oversized(number)
            left -= whole
            if whole:
                window.move(heads.ends[whole - 1])
            if not heads.offsets:
                window.load()
            elif whole < len(heads.offsets):
                if heads.size(whole) <= record_bytes_max and heads.offsets[whole] >= start_offset:
                    yield from window.load_record(heads.size(whole))
                else:
                    if heads.offsets[whole] >= start_offset:
                        yield heads.oversized(whole)
                    left -= 1
                    window.move(heads.ends[whole])
            yield None
        yield from window.finish()


def record_lists(
    batch: Buffer,
    header: BatchHeader,
    *,
    start_offset: int = 0,
    max_decompressed: int = MAX_DECOMPRESSED_BYTES,
) -> Iterator[list[Record]]:
    """Read the records of one batch as `stream_records` does, in lists, in a third of the time.

    Args:
        batch: The whole batch.
        header: Its header.
        start_offset: Skip the records before this offset.
        max_decompressed: Maximum decompressed size of the records in bytes.

    Yields:
        A list of up to `RECORDS_PER_STEP` records after each step; it may be empty.

    Raises:
        KafkaError: As in `stream_records`.
    """
    with errors_as(ErrorCode.CORRUPT_MESSAGE):
        window = _Window(batch, header, max_decompressed)
        left = header.record_count
        while left > 0:
            records, count = window.ordinary_records(min(left, RECORDS_PER_STEP), header)
            if not count:  # parse one record with all checks, or load more data
                heads = window.heads(1, header)
                if not heads.offsets:
                    window.load()
                elif heads.whole():
                    records, count = [heads.record(0)], 1
                    window.move(heads.ends[0])
                elif heads.offsets[0] >= start_offset:
                    yield from ([] for _ in window.load_record(heads.size(0)))
                else:
                    count = 1
                    window.move(heads.ends[0])
            left -= count
            if records and records[0].offset < start_offset:
                records = [each for each in records if each.offset >= start_offset]
            yield records
        yield from ([] for _ in window.finish())


def may_contain(
    batch: Buffer,
    header: BatchHeader,
    needles: Sequence[bytes],
    *,
    max_decompressed: int = MAX_DECOMPRESSED_BYTES,
) -> Iterator[bool | None]:
    """Search the decompressed records of a batch for byte strings, without parsing them.

    Args:
        batch: The whole batch.
        header: Its header.
        needles: Byte strings to find.
        max_decompressed: Maximum decompressed size of the records in bytes.

    Yields:
        None after each step; as the last item True if all needles were found, else False.

    Raises:
        KafkaError: As in `stream_records`.
    """
    left = list(needles)
    overlap = max(map(len, left), default=1) - 1
    payload = memoryview(batch)[HEADER_SIZE : header.size]
    limit = max_decompressed if header.codec else len(payload)
    with errors_as(ErrorCode.CORRUPT_MESSAGE):
        before = b""
        for chunk in decompressed_chunks(header.codec, payload, limit):
            data = before + chunk
            left = [each for each in left if each not in data]
            if not left:
                break
            before = data[len(data) - overlap :] if overlap else b""
            yield None
    yield not left


def batch_records(
    batch: Buffer,
    header: BatchHeader,
    *,
    start_offset: int = 0,
    max_decompressed: int = MAX_DECOMPRESSED_BYTES,
) -> Iterator[Record]:
    """Yield the records of one batch without pauses. Raises the errors of `stream_records`."""
    for record in stream_records(
        batch, header, start_offset=start_offset, max_decompressed=max_decompressed
    ):
        if isinstance(record, Record):
            yield record


def records_of(
    batches: Buffer, *, max_decompressed: int = MAX_DECOMPRESSED_BYTES
) -> Iterator[Record]:
    """Yield the records of all complete batches. Raises the errors of `stream_records`."""
    for position, header in iter_headers(batches):
        batch = memoryview(batches)[position : position + header.size]
        yield from batch_records(batch, header, max_decompressed=max_decompressed)


class _Heads(NamedTuple):
    """Heads of consecutive records in `data`, from `start` on.

    `bodies` are the positions after the heads, and `ends` are the positions after the records. The
    last record may end after `data`.
    """

    data: bytes
    start: int
    offsets: list[int]
    timestamps: list[int]
    bodies: list[int]
    ends: list[int]

    def whole(self) -> int:
        """Return how many of the records are complete in `data`."""
        return len(self.ends) - (1 if self.ends and self.ends[-1] > len(self.data) else 0)

    def size(self, number: int) -> int:
        """Return the size of a record in bytes."""
        return self.ends[number] - (self.ends[number - 1] if number else self.start)

    def oversized(self, number: int) -> OversizedRecord:
        return OversizedRecord(self.offsets[number], self.timestamps[number], self.size(number))

    def record(self, number: int) -> Record:
        key, value, headers = _parse_body(self.data, self.bodies[number], self.ends[number])
        return Record(key, value, self.timestamps[number], headers, self.offsets[number])


class _Window:
    """The decompressed records of a batch that are currently in memory."""

    def __init__(
        self,
        batch: Buffer,
        header: BatchHeader,
        max_decompressed: int,
        max_record_bytes: int = LENGTH_MAX,
    ) -> None:
        payload = memoryview(batch)[HEADER_SIZE : header.size]
        self._max_record_bytes = max_record_bytes if header.codec else LENGTH_MAX
        self._chunks = decompressed_chunks(header.codec, payload, max_decompressed)
        self._data = b"" if header.codec else bytes(payload)
        # Position of the next record; after the end of `_data` while bytes are skipped.
        self._position = 0
        self._has_ended = not header.codec

    def heads(self, most: int, header: BatchHeader) -> _Heads:
        """Parse the heads of up to `most` records whose heads are complete."""
        data, position = self._data, self._position
        limit = len(data) if self._has_ended else len(data) - _HEAD_BYTES_MAX + 1
        if self._has_ended and position >= limit:
            raise MalformedError("the records are truncated")
        most = min(most, RECORDS_PER_STEP)
        return _parse_heads(data, position, limit, most, header, self._max_record_bytes)

    def ordinary_records(self, most: int, header: BatchHeader) -> tuple[list[Record], int]:
        """Parse up to `most` records and move after them; return the records and their number.

        Stops before the first record that is incomplete, malformed or unusual.
        """
        records, self._position = _parse_ordinary(self._data, self._position, most, header)
        return records, len(records)

    def move(self, position: int) -> None:
        """Continue at a position, which may be after the data in memory."""
        self._position = position

    def load(self) -> None:
        """Decompress another chunk."""
        chunk = next(self._chunks, None)
        if chunk is None:
            self._has_ended = True
            return
        left = self._data[self._position :]
        self._position = max(self._position - len(self._data), 0)
        self._data = left + chunk

    def load_record(self, size: int) -> Iterator[None]:
        """Decompress until the next `size` bytes are in memory."""
        chunks = [self._data[self._position :]]
        missing = size - len(chunks[0])
        self._position = 0
        while missing > 0:
            chunk = next(self._chunks, None)
            if chunk is None:
                raise MalformedError("the last record is truncated")
            chunks.append(chunk)
            missing -= len(chunk)
            yield None
        self._data = b"".join(chunks)

    def finish(self) -> Iterator[None]:
        """Check that nothing follows the last record."""
        while True:
            left = len(self._data) - self._position
            if left > 0:
                raise MalformedError(f"{left} bytes after the last record")
            if self._has_ended:
                break
            self.load()
            yield None
        if left < 0:
            raise MalformedError("the last record is truncated")


def _parse_heads(
    data: bytes, start: int, limit: int, most: int, header: BatchHeader, max_record_bytes: int
) -> _Heads:
    """Parse heads from `start` up to position `limit`, or up to a record that is too large.

    One-byte varints are read inline. Raises RecordSizeError if the first record is too large.
    """
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    last_delta = header.last_offset_delta
    offsets: list[int] = []
    timestamps: list[int] = []
    bodies: list[int] = []
    ends: list[int] = []
    position = start
    try:
        while position < limit and len(ends) < most:
            raw = data[position]
            at = position + 1
            if raw > 0x7F:
                raw, at = long_varint(data, at, raw)
            if raw & 1:
                raise MalformedError(f"a record of length {(raw >> 1) ^ -1}")
            if raw >> 1 > max_record_bytes:
                if ends:
                    break
                raise RecordSizeError(raw >> 1, max_record_bytes)
            position = at + (raw >> 1)
            raw = data[at + 1]  # after one byte of attributes
            at += 2
            if raw > 0x7F:
                raw, at = long_varint(data, at, raw)
            timestamp = base_timestamp + ((raw >> 1) ^ -(raw & 1))
            raw = data[at]
            at += 1
            if raw > 0x7F:
                raw, at = long_varint(data, at, raw)
            delta = raw >> 1
            if raw & 1 or delta > last_delta:
                raise MalformedError(f"offset delta {delta}")
            if at >= position:
                raise MalformedError("a record that is longer than it says")
            offsets.append(base_offset + delta)
            timestamps.append(timestamp)
            bodies.append(at)
            ends.append(position)
    except IndexError:
        raise MalformedError("the records are truncated") from None
    return _Heads(data, start, offsets, _record_timestamps(timestamps, header), bodies, ends)


# Varints of one and two bytes are read inline, which takes a third of the time of calls.
def _parse_ordinary(
    data: bytes, start: int, most: int, header: BatchHeader
) -> tuple[list[Record], int]:
    """Return the records before the first incomplete or unusual one, and the position after them."""
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    last_delta, end_of_data = header.last_offset_delta, len(data)
    log_append_time = header.max_timestamp if header.is_log_append_time else None
    records: list[Record] = []
    append, new = records.append, tuple.__new__
    try:
        for _ in range(most):
            raw, at = data[start], start + 1
            if raw > 0x7F:
                raw, at = long_varint(data, at, raw)
            end = at + (raw >> 1)
            if raw & 1 or end > end_of_data:
                break
            raw, at = data[at + 1], at + 2  # after one byte of attributes
            if raw > 0x7F:
                raw, at = long_varint(data, at, raw)
            timestamp = base_timestamp + ((raw >> 1) ^ -(raw & 1))
            raw, at = data[at], at + 1
            if raw > 0x7F:
                raw, at = long_varint(data, at, raw)
            delta = raw >> 1
            if raw & 1 or delta > last_delta:
                break
            raw, at = data[at], at + 1
            if raw > 0x7F:
                raw, at = long_varint(data, at, raw)
            key = None
            if raw & 1 == 0:
                key, at = data[at : at + (raw >> 1)], at + (raw >> 1)
            elif raw != 1:
                break
            raw, at = data[at], at + 1
            if raw > 0x7F:
                raw, at = long_varint(data, at, raw)
            value = None
            if raw & 1 == 0:
                value, at = data[at : at + (raw >> 1)], at + (raw >> 1)
            elif raw != 1:
                break
            headers: Sequence[RecordHeader] = []
            if at + 1 != end or data[at]:
                if at >= end:
                    break
                headers = RecordHeaders(memoryview(data)[at:end])
            if log_append_time is not None:
                timestamp = log_append_time
            elif not TIMESTAMP_MIN <= timestamp <= TIMESTAMP_MAX:
                break
            append(new(Record, (key, value, timestamp, headers, base_offset + delta)))
            start = end
    except (IndexError, MalformedError):
        pass  # the record is parsed again, with all checks
    return records, start


def _record_timestamps(timestamps: list[int], header: BatchHeader) -> list[int]:
    """Return the effective timestamps: LogAppendTime, or sums that wrap at 64 bits as in Java."""
    if header.is_log_append_time:
        return [header.max_timestamp] * len(timestamps)
    if timestamps and not TIMESTAMP_MIN <= min(timestamps) <= max(timestamps) <= TIMESTAMP_MAX:
        return [wrap_timestamp(each) for each in timestamps]
    return timestamps


def _parse_body(
    data: bytes, position: int, end: int
) -> tuple[bytes | None, bytes | None, Sequence[RecordHeader]]:
    """Parse key and value of one record."""
    try:
        key, position = _read_nullable(data, position)
        value, position = _read_nullable(data, position)
        if position >= end:
            raise MalformedError("a record that is longer than it says")
        if position + 1 == end and not data[position]:
            return key, value, []
        return key, value, RecordHeaders(memoryview(data)[position:end])
    except IndexError:
        raise MalformedError("the records are truncated") from None


def _read_nullable(data: Buffer, position: int) -> tuple[bytes | None, int]:
    raw = data[position]
    position += 1
    if raw > 0x7F:
        raw, position = long_varint(data, position, raw)
    if raw & 1:
        if raw != 1:
            raise MalformedError(f"length {(raw >> 1) ^ -1}")
        return None, position
    end = position + (raw >> 1)
    return bytes(data[position:end]), end


def _header_count(data: Buffer) -> tuple[int, int]:
    """Return the number of headers and the position of the first one. Raises MalformedError."""
    try:
        raw, position = data[0], 1
        if raw > 0x7F:
            raw, position = long_varint(data, position, raw)
    except IndexError:
        raise MalformedError("the headers are truncated") from None
    if raw & 1:
        raise MalformedError(f"{(raw >> 1) ^ -1} record headers")
    # A header has at least two bytes.
    if raw > len(data):
        raise MalformedError(f"{raw >> 1} record headers in {len(data)} bytes")
    return raw >> 1, position


def _parse_headers(data: Buffer) -> Iterator[RecordHeader]:
    count, position = _header_count(data)
    try:
        for _ in range(count):
            key, position = _read_nullable(data, position)
            if key is None:
                raise MalformedError("a record header without a key")
            value, position = _read_nullable(data, position)
            yield key.decode(errors="surrogateescape"), value
    except IndexError:
        raise MalformedError("the headers are truncated") from None
    if position != len(data):
        raise MalformedError(f"the headers end at byte {position} of {len(data)}")
