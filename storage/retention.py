"""Retention: the number of oldest segments to delete, by age and size."""

from __future__ import annotations

from collections.abc import Sequence


def expired_segments(
    segments: Sequence[tuple[int, int]],
    *,
    now_ms: int,
    retention_ms: int,
    retention_bytes: int,
) -> int:
    """Return how many segments, counted from the oldest, are to be deleted.

    By age, a segment is deleted if its maximum timestamp is older than `retention_ms`, even if it
    is the newest segment. By size, the oldest segments are deleted as long as at least
    `retention_bytes` remain; with 0 all segments are deleted, as in Kafka. An empty newest segment
    is kept. A segment of unknown age (-1) and all later segments are kept. If the clock jumps back,
    all segments become younger, so none is deleted.

    Args:
        segments: Size in bytes and time of the newest record in ms since the epoch, oldest first.
        now_ms: Current time of the log clock in ms.
        retention_ms: Retention time in ms, -1 for no limit.
        retention_bytes: Retention size in bytes, -1 for no limit.
    """
    count = 0
    if retention_ms >= 0:
        for size, latest in segments:
            if latest < 0 or now_ms - latest <= retention_ms or not size:
                break
            count += 1
    if retention_bytes >= 0:
        excess = sum(size for size, _ in segments) - retention_bytes
        by_size = 0
        for number, (size, _) in enumerate(segments, 1):
            excess -= size
            if excess < 0 or (not size and number == len(segments)):
                break
            by_size += 1
        count = max(count, by_size)
    return count
