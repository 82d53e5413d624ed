"""Background scrubbing: checks stored batches for corruption before they are read.

Batches that were not checked since the log was opened come first; then a new round may start.
"""

from __future__ import annotations

from .batches import Position
from .log import Log
from .segment import Segment


def scrub(log: Log, bytes_max: int) -> int:
    """Check the CRCs of about `bytes_max` bytes of unchecked batches.

    Returns:
        The number of bytes checked, 0 if nothing is left.

    Raises:
        CorruptLogError: A batch is corrupt; the log is offline.
    """
    log.check_online()
    segment = _first_unchecked(log)
    if segment is None:
        return 0
    if segment is not log.active:
        log.segments.keep_indexes(segment)
    with log.offline_on_corruption():
        return segment.scrub(bytes_max, log.epochs)


def next_to_scrub(log: Log) -> tuple[str, Position] | None:
    """Return path and position of the next bytes for `scrub`, or None if nothing is left."""
    segment = _first_unchecked(log)
    if segment is None or segment.checks.first_unchecked is None:
        return None
    return segment.log_path, segment.checks.first_unchecked[0]


def scrub_again(log: Log) -> None:
    """Mark all closed segments as unchecked: disks can lose data later."""
    for segment in log.segments:
        if segment is not log.active:
            segment.checks.mark_unchecked(segment.size)


def _first_unchecked(log: Log) -> Segment | None:
    return next((it for it in log.segments if it.checks.first_unchecked is not None), None)
