"""Batches that compaction writes again, with some of their records.

Records are moved as the bytes that they are: of each only its frame is looked at, key and numbers,
never headers or values. What stays of a batch keeps its offsets, sequences and leader epoch, so a
batch from which records went still covers the offsets that it had (KIP-98).

A tombstone or a transaction marker must outlive a reader that has not come to it. The first
compaction that leaves one in a batch writes into the batch until when it is kept: the *delete
horizon*, in the field of the base timestamp, with a bit that says so (KIP-534). The records' times
are counted from there then.
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
    wrapped,
)


class RawRecord(NamedTuple):
    """Where one record stands among uncompressed ones, and what decides whether it stays.

    `body` is behind the length, `offset_start` behind the timestamp delta.
    """

    start: int
    body: int
    offset_start: int
    end: int
    offset: int
    timestamp_delta: int
    key: bytes | None
    has_value: bool


def unpacked_records(buffer: Buffer, header: BatchHeader, max_decompressed: int) -> bytes:
    """The uncompressed records of the batch at the start of `buffer`.

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
    """The records in `data`, which is all of a batch's uncompressed records.

    Raises KafkaError: CORRUPT_MESSAGE where they do not have the form of records.
    """
    with errors_as(ErrorCode.CORRUPT_MESSAGE):
        yield from _raw_records(data, header)


def _raw_records(data: bytes, header: BatchHeader) -> Iterator[RawRecord]:
    """Varints of one byte are read inline: compaction sees every record of a topic here."""
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
    """Collects the records of a batch that stay, and writes them in the codec that it had.

    Args:
        header: Header of the batch as it was.
        data: Its uncompressed records.
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
        """Bytes of the records so far, uncompressed."""
        return len(self._payload)

    def extend(self, kept: Iterable[RawRecord]) -> None:
        """Add records of the batch, in their order."""
        data, payload = self._data, self._payload
        earlier = self._header.base_timestamp - self._base
        latest_delta, count = self._latest_delta, self._count
        for record in kept:
            payload += _moved(data, record, earlier) if earlier else data[record.start : record.end]
            latest_delta = max(latest_delta, record.timestamp_delta)
            count += 1
        self._latest_delta, self._count = latest_delta, count

    def finish(self) -> tuple[bytes, BatchHeader]:
        """Return the batch and its header; at least one record must have been added."""
        header = self._header
        latest = header.max_timestamp
        if not header.is_log_append_time:
            latest = wrapped(header.base_timestamp + self._latest_delta)
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
    """Return a batch with some of its records, at least one, and its header; see `BatchRewriter`."""
    rewriter = BatchRewriter(header, data, delete_horizon=delete_horizon)
    rewriter.extend(kept)
    return rewriter.finish()


def _moved(data: bytes, record: RawRecord, by: int) -> bytes:
    """The bytes of a record whose timestamp is counted from another base."""
    body = (
        data[record.body : record.body + 1]
        + write_varint(wrapped(record.timestamp_delta + by))
        + data[record.offset_start : record.end]
    )
    return write_varint(len(body)) + body


def without_records(header: BatchHeader) -> tuple[bytes, BatchHeader]:
    """A batch without records; returns it and its header.

    It keeps what must not be forgotten: the last offset, the producer's epoch and sequence.
    """
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON_BIT)
    changed = header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0)
    return with_payload(changed, b"")
