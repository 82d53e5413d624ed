"""Which of the oldest segments may go: by age, by size."""

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

    By age a segment goes when its greatest timestamp is older than `retention_ms`, the newest
    segment included. By size the oldest go as long as at least `retention_bytes` stay; with 0 all
    go, as in Kafka. An empty newest segment stays. A segment of unknown age (-1) stays, and so does
    what comes after it. A clock that jumps back makes everything younger and so removes nothing.

    Parameters:
        segments: (bytes, ms since the epoch that its age counts from) of each, oldest first.
        now_ms: log clock.
        retention_ms: -1 for ever.
        retention_bytes: -1 for any size.
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
