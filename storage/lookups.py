"""Questions about the records of a log: which was the first of a time, the latest, which to leave out.

The indexes narrow each answer down to a few kB of batches; only those are read. What a batch has is
for `kbroker.protocol.record_stream`, because that may take long.
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
    """One batch of a log, and the base offset of its segment."""

    data: bytes
    header: BatchHeader
    segment_base: int


def batch_since(log: Log, timestamp_ms: int, offset: int) -> StoredBatch | None:
    """Find the next batch that may have a record for a timestamp; its records are not read.

    Args:
        log: the log to search.
        timestamp_ms: the least timestamp that the batch says it has.
        offset: where to begin; the batch has this offset or lies behind it.

    Raises:
        StorageError: as `Log.read`.
    """
    log.check_online()
    for segment in log.segments:
        if segment.max_timestamp < timestamp_ms or segment.end_offset <= offset:
            continue
        log.segments.keep_indexes(segment)
        with log.damage_noted():
            found = segment_batch_since(segment, timestamp_ms, offset, log.epochs)
        if found is not None:
            return found
    return None


def latest_batch(log: Log, newer_than: int, tried: Collection[int]) -> StoredBatch | None:
    """Find the batch with the greatest timestamp of a log; its records are not read.

    Args:
        log: the log to search.
        newer_than: segments whose greatest timestamp (ms) is not above this one are left out.
        tried: base offsets of further segments to leave out.

    Raises:
        StorageError: as `Log.read`.
    """
    log.check_online()
    for segment in sorted(log.segments, key=lambda it: it.max_timestamp, reverse=True):
        if segment.max_timestamp <= newer_than:
            return None
        if segment.base_offset in tried:
            continue
        log.segments.keep_indexes(segment)
        with log.damage_noted():
            found = _latest_in(segment, log.epochs)
        if found is not None:  # else compaction has emptied it
            return found
    return None


def aborted_transactions(log: Log, offset: int, end_offset: int) -> list[tuple[int, int]]:
    """Aborted transactions with records from `offset` and before `end_offset`, as pairs of producer
    id and first offset.

    Raises CorruptLogError, and the log goes offline.
    """
    found = []
    with log.damage_noted():
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
    """Find the next batch of a segment for `batch_since`. Raises CorruptLogError."""
    start, _ = segment.find(max(segment.older_until(timestamp), offset))
    for position, header in segment.headers(start):
        if header.max_timestamp >= timestamp and header.last_offset >= offset:
            return _stored(segment, position, header, epochs)
    return None


def _latest_in(segment: Segment, epochs: LeaderEpochs) -> StoredBatch | None:
    """The first batch with the greatest timestamp of a segment, of those with records."""
    if segment.max_timestamp < 0:
        return None
    start, _ = segment.find(segment.max_timestamp_offset)
    place = next(segment.headers(start), None)
    if place is not None and not place[1].record_count:
        filled = (place for place in segment.headers() if place[1].record_count)
        place = max(filled, key=lambda place: place[1].max_timestamp, default=None)
    return None if place is None else _stored(segment, *place, epochs)


def _stored(
    segment: Segment, position: Position, header: BatchHeader, epochs: LeaderEpochs
) -> StoredBatch:
    return StoredBatch(segment.batch(position, header.size, epochs), header, segment.base_offset)
