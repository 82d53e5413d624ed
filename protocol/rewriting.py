"""Rewriting of batches by compaction, with a subset of their records.

Records are copied as bytes: only their frame is parsed (key and numbers), not headers or values. A
rewritten batch keeps its offsets, sequences and leader epoch, so it still covers its original
offsets (KIP-98).

A tombstone or transaction marker must be kept until slow readers have read it. The first compaction
that keeps one in a batch stores the *delete horizon* in the base timestamp field and sets an
attribute bit (KIP-534). The timestamps of the records are then relative to the delete horizon.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .compression import compress, decompress
from .errors import ErrorCode
from .primitives import INT64_MAX, Buffer, write_varint
from .records import (
    CODEC_MASK,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    NO_TIMESTAMP,
    BatchHeader,
    MalformedError,
    errors_as,
    long_varint,
    with_payload,
    wrap_timestamp,
)


class RawRecord(NamedTuple):
    """The location of a record in uncompressed records, and the fields that compaction needs.

    `body` is the position after the length. `offset_start` is the position after the timestamp
    delta.
    """

    start: int
    body: int
    offset_start: int
    end: int
    offset: int
    timestamp_delta: int
    key: bytes | None
    has_value: bool


def decompress_records(buffer: Buffer, header: BatchHeader, max_decompressed: int) -> bytes:
    """Return the uncompressed records of the batch at the start of `buffer`.

    Raises:
        KafkaError: CORRUPT_MESSAGE for a damaged stream, MESSAGE_TOO_LARGE above
            `max_decompressed` bytes.
    """
    with errors_as(ErrorCode.CORRUPT_MESSAGE):
        return _decompressed(buffer, header, max_decompressed)


def _decompressed(buffer: Buffer, header: BatchHeader, max_decompressed: int) -> bytes:
    payload = memoryview(buffer)[HEADER_SIZE : header.size]
    return decompress(header.codec, payload, max_decompressed)


def raw_records(data: bytes, header: BatchHeader) -> Iterator[RawRecord]:
    """Yield the records in `data`, the uncompressed records of a batch.

    Raises KafkaError: CORRUPT_MESSAGE for malformed records.
    """
    with errors_as(ErrorCode.CORRUPT_MESSAGE):
        yield from _raw_records(data, header)


def _raw_records(data: bytes, header: BatchHeader) -> Iterator[RawRecord]:
    """Yield the records. One-byte varints are read inline, as compaction reads every record."""
    base_offset, last_offset_delta = header.base_offset, header.last_offset_delta
    new = tuple.__new__
    end = 0
    try:
        for _ in range(header.record_count):
            start, body = end, end + 1
            raw = data[start]
            if raw > 0x7F:
                raw, body = long_varint(data, body, raw)
            end = body + (raw >> 1)
            if raw & 1:
                raise MalformedError("a negative length")
            raw = data[body + 1]
            offset_start = body + 2
            if raw > 0x7F:
                raw, offset_start = long_varint(data, offset_start, raw)
            timestamp_delta = (raw >> 1) ^ -(raw & 1)
            raw = data[offset_start]
            position = offset_start + 1
            if raw > 0x7F:
                raw, position = long_varint(data, position, raw)
            delta = raw >> 1
            if raw & 1 or delta > last_offset_delta:
                raise MalformedError(f"offset delta {delta}")
            raw = data[position]
            position += 1
            if raw > 0x7F:
                raw, position = long_varint(data, position, raw)
            key = None
            if not raw & 1:
                key = data[position : position + (raw >> 1)]
                position += raw >> 1
            raw = data[position]
            position += 1
            if raw > 0x7F:
                raw, position = long_varint(data, position, raw)
            has_value = not raw & 1
            if position + (raw >> 1 if has_value else 0) >= end:
                raise MalformedError("a record that is longer than it says")
            offset = base_offset + delta
            fields = (start, body, offset_start, end, offset, timestamp_delta, key, has_value)
            yield new(RawRecord, fields)
    except IndexError:
        raise MalformedError("the records are truncated") from None
    if end != len(data):
        raise MalformedError(f"{len(data) - end} bytes after the last record")


class BatchRewriter:
    """Collects the records of a batch that are kept, and writes them in its codec.

    Args:
        header: Original header of the batch.
        data: Uncompressed records of the batch.
        delete_horizon: Time (ms) until which tombstones are kept, for a batch without one.
    """

    def __init__(
        self, header: BatchHeader, data: bytes, *, delete_horizon: int | None = None
    ) -> None:
        self._header = header
        self._data = data
        self._delete_horizon = delete_horizon
        self._base = header.base_timestamp if delete_horizon is None else delete_horizon
        self._payload = bytearray()
        self._latest_delta = -INT64_MAX
        self._count = 0

    @property
    def size(self) -> int:
        """Uncompressed size of the records so far in bytes."""
        return len(self._payload)

    def extend(self, kept: Iterable[RawRecord]) -> None:
        """Add records of the batch in order."""
        data, payload = self._data, self._payload
        shift = self._header.base_timestamp - self._base
        latest_delta, count = self._latest_delta, self._count
        for record in kept:
            payload += (
                _shift_timestamp(data, record, shift) if shift else data[record.start : record.end]
            )
            latest_delta = max(latest_delta, record.timestamp_delta)
            count += 1
        self._latest_delta, self._count = latest_delta, count

    def finish(self) -> tuple[bytes, BatchHeader]:
        """Return the batch and its header; at least one record must have been added."""
        header = self._header
        latest = header.max_timestamp
        if not header.is_log_append_time:
            latest = wrap_timestamp(header.base_timestamp + self._latest_delta)
        attributes = header.attributes
        if self._delete_horizon is not None:
            attributes |= DELETE_HORIZON_BIT
        changed = header._replace(
            attributes=attributes,
            base_timestamp=self._base,
            max_timestamp=latest,
            record_count=self._count,
        )
        return with_payload(changed, compress(header.codec, self._payload))


def with_records(
    header: BatchHeader,
    data: bytes,
    kept: Iterable[RawRecord],
    *,
    delete_horizon: int | None = None,
) -> tuple[bytes, BatchHeader]:
    """Return a batch with some of its records (at least one), and its header."""
    rewriter = BatchRewriter(header, data, delete_horizon=delete_horizon)
    rewriter.extend(kept)
    return rewriter.finish()


def _shift_timestamp(data: bytes, record: RawRecord, by: int) -> bytes:
    """Return the bytes of a record with a shifted timestamp delta."""
    body = (
        data[record.body : record.body + 1]
        + write_varint(wrap_timestamp(record.timestamp_delta + by))
        + data[record.offset_start : record.end]
    )
    return write_varint(len(body)) + body


def without_records(header: BatchHeader) -> tuple[bytes, BatchHeader]:
    """Return a batch without records, and its header.

    It keeps the last offset, and the producer's epoch and sequence.
    """
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON_BIT)
    changed = header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0)
    return with_payload(changed, b"")
