"""Questions about the records of a log: which was the first of a time, the latest, which to leave out.

The indexes narrow each answer down to a few kB of batches; only those are read.
"""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.protocol.records import BatchHeader, FoundRecord, read_records

from .batches import Position
from .epochs import LeaderEpochs
from .log import Log
from .segment import Segment


def offset_for_timestamp(log: Log, timestamp_ms: int, *, limit: int) -> FoundRecord | None:
    """The first record whose time is at least `timestamp_ms`; None when it is not before the offset
    `limit`.

    Raises StorageError as `Log.read`.
    """
    log.check_online()
    for segment in log.segments:
        if segment.max_timestamp < timestamp_ms:
            continue
        log.segments.keep_indexes(segment)
        with log.damage_noted():
            found = first_record_at_or_after(
                segment, timestamp_ms, log.log_start_offset, log.epochs
            )
        if found is not None:
            return found if found.offset < limit else None
    return None


def latest_record(log: Log) -> FoundRecord | None:
    """The first record with the greatest time; None without records or times.

    Raises StorageError as `Log.read`.
    """
    log.check_online()
    # The latest batch of a segment may be one that compaction has emptied.
    latest: FoundRecord | None = None
    for segment in sorted(log.segments, key=lambda it: it.max_timestamp, reverse=True):
        if segment.max_timestamp <= (latest.timestamp if latest is not None else -1):
            break
        log.segments.keep_indexes(segment)
        with log.damage_noted():
            found = _latest_in(segment, log.epochs)
        if found is not None and (latest is None or found.timestamp > latest.timestamp):
            latest = found
    return latest


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


def first_record_at_or_after(
    segment: Segment, timestamp: int, start_offset: int, epochs: LeaderEpochs
) -> FoundRecord | None:
    """The first record of a segment from `start_offset` on whose time is at least `timestamp` (ms)."""
    start, _ = segment.find(max(segment.older_until(timestamp), start_offset))
    for position, header in segment.headers(start):
        if header.max_timestamp < timestamp or header.is_control:
            continue
        for record in _records(segment, position, header, epochs):
            if record.timestamp >= timestamp and record.offset >= start_offset:
                return record
    return None


def _latest_in(segment: Segment, epochs: LeaderEpochs) -> FoundRecord | None:
    """The first record with the greatest time of a segment."""
    if segment.max_timestamp < 0:
        return None
    start, _ = segment.find(segment.max_timestamp_offset)
    place = next(segment.headers(start), None)
    if place is not None and not place[1].record_count:
        filled = (place for place in segment.headers() if place[1].record_count)
        place = max(filled, key=lambda place: place[1].max_timestamp, default=None)
    if place is None:
        return None
    found = _records(segment, *place, epochs)
    return max(found, key=lambda record: record.timestamp, default=None)


def _records(
    segment: Segment, position: Position, header: BatchHeader, epochs: LeaderEpochs
) -> Iterator[FoundRecord]:
    for record in read_records(segment.batch(position, header.size, epochs)):
        yield FoundRecord(record.offset, record.timestamp, header.leader_epoch)
