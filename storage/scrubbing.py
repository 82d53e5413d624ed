"""Looking through stored batches for damage, a piece at a time, before somebody needs them.

What was not looked through since the log was opened comes first; then a round may begin again.
"""

from __future__ import annotations

from .batches import Position
from .log import Log
from .segment import Segment


def scrub(log: Log, bytes_max: int) -> int:
    """Check CRCs of stored batches that were not checked yet, of about `bytes_max` bytes.

    Returns the number of bytes checked, 0 when nothing is left.

    Raises CorruptLogError, and the log goes offline.
    """
    log.check_online()
    segment = _first_unchecked(log)
    if segment is None:
        return 0
    if segment is not log.active:
        log.segments.keep_indexes(segment)
    with log.damage_noted():
        return segment.scrub(bytes_max, log.epochs)


def next_to_scrub(log: Log) -> tuple[str, Position] | None:
    """Path and position of what `scrub` checks next; None when nothing is left."""
    segment = _first_unchecked(log)
    if segment is None or segment.checks.first_unchecked is None:
        return None
    return segment.log_path, segment.checks.first_unchecked[0]


def scrub_again(log: Log) -> None:
    """Let `scrub` check everything in sealed segments once more: disks forget."""
    for segment in log.segments:
        if segment is not log.active:
            segment.checks.distrust(segment.size)


def _first_unchecked(log: Log) -> Segment | None:
    return next((it for it in log.segments if it.checks.first_unchecked is not None), None)
