"""Lookups by timestamp in one step, for tests of logs."""

from __future__ import annotations

from kbroker.protocol.record_stream import first_record_since, latest_record_of
from kbroker.protocol.records import FoundRecord
from kbroker.storage.log import Log
from kbroker.storage.lookups import batch_since, latest_batch


def offset_for_timestamp(log: Log, timestamp_ms: int, *, limit: int) -> FoundRecord | None:
    """Return the first record before the offset `limit` whose timestamp is at least `timestamp_ms`."""
    offset = log.log_start_offset
    while (batch := batch_since(log, timestamp_ms, offset)) is not None:
        steps = first_record_since(
            batch.data, batch.header, timestamp_ms, start_offset=log.log_start_offset
        )
        found = next(filter(None, steps), None)
        if found is not None:
            return found if found.offset < limit else None
        offset = batch.header.next_offset
    return None


def latest_record(log: Log) -> FoundRecord | None:
    """Return the first record with the greatest timestamp."""
    latest: FoundRecord | None = None
    tried: set[int] = set()
    while batch := latest_batch(log, -1 if latest is None else latest.timestamp, tried):
        tried.add(batch.segment_base)
        found = next(filter(None, latest_record_of(batch.data, batch.header)), None)
        if found is not None and (latest is None or found.timestamp > latest.timestamp):
            latest = found
    return latest
