"""Look-ups in a log: by timestamp, maximum timestamp, aborted transactions.

The indexes narrow each look-up down to a few kB of batches. The records within a batch are left to
`kbroker.protocol.record_stream`, because decompressing them may take long.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from kbroker.protocol.records import BatchHeader

from .batches import Position
from .epochs import LeaderEpochs
from .log import Log
from .segment import Segment


class StoredBatch(NamedTuple):
    """A batch of a log and the base offset of its segment."""

    data: bytes
    header: BatchHeader
    segment_base: int


def batch_since(log: Log, timestamp_ms: int, offset: int) -> StoredBatch | None:
    """Find the next batch that may have a record with a timestamp; its records are not read.

    Args:
        log: Log to search.
        timestamp_ms: Minimum value of the batch's maximum timestamp in ms.
        offset: First offset to search.

    Raises:
        StorageError: As in `Log.read`.
    """
    log.check_online()
    for segment in log.segments:
        if segment.max_timestamp < timestamp_ms or segment.end_offset <= offset:
            continue
        log.segments.keep_indexes(segment)
        with log.offline_on_corruption():
            found = segment_batch_since(segment, timestamp_ms, offset, log.epochs)
        if found is not None:
            return found
    return None


def latest_batch(log: Log, newer_than: int, tried: Collection[int]) -> StoredBatch | None:
    """Find the batch with the maximum timestamp of a log; its records are not read.

    Args:
        log: Log to search.
        newer_than: Skip segments whose maximum timestamp (ms) is not higher.
        tried: Base offsets of other segments to skip.

    Raises:
        StorageError: As in `Log.read`.
    """
    log.check_online()
    for segment in sorted(log.segments, key=lambda it: it.max_timestamp, reverse=True):
        if segment.max_timestamp <= newer_than:
            return None
        if segment.base_offset in tried:
            continue
        log.segments.keep_indexes(segment)
        with log.offline_on_corruption():
            found = _find_latest(segment, log.epochs)
        if found is not None:  # compaction may have emptied the segment
            return found
    return None


def aborted_transactions(log: Log, offset: int, end_offset: int) -> list[tuple[int, int]]:
    """Return the aborted transactions with records between `offset` and `end_offset`.

    Returns:
        Pairs of producer ID and first offset.

    Raises:
        CorruptLogError: An index is damaged; the log is offline.
    """
    found = []
    with log.offline_on_corruption():
        for segment in log.segments.since(offset):
            for entry in segment.aborted.entries:
                if entry.last_offset >= offset and entry.first_offset < end_offset:
                    found.append((entry.producer_id, entry.first_offset))
                if entry.last_stable_offset >= end_offset:
                    return found
    return found


def segment_batch_since(
    segment: Segment, timestamp: int, offset: int, epochs: LeaderEpochs
) -> StoredBatch | None:
    """Find the next matching batch of a segment (`batch_since`). Raises CorruptLogError."""
    start, _ = segment.find(max(segment.offset_before_timestamp(timestamp), offset))
    for position, header in segment.headers(start):
        if header.max_timestamp >= timestamp and header.last_offset >= offset:
            return _read_stored_batch(segment, position, header, epochs)
    return None


def _find_latest(segment: Segment, epochs: LeaderEpochs) -> StoredBatch | None:
    """Return the first non-empty batch with the maximum timestamp of a segment."""
    if segment.max_timestamp < 0:
        return None
    start, _ = segment.find(segment.max_timestamp_offset)
    place = next(segment.headers(start), None)
    if place is not None and not place[1].record_count:
        filled = (place for place in segment.headers() if place[1].record_count)
        place = max(filled, key=lambda place: place[1].max_timestamp, default=None)
    return None if place is None else _read_stored_batch(segment, *place, epochs)


def _read_stored_batch(
    segment: Segment, position: Position, header: BatchHeader, epochs: LeaderEpochs
) -> StoredBatch:
    return StoredBatch(segment.batch(position, header.size, epochs), header, segment.base_offset)
