"""Checks of segment bytes for corruption, and a record of the checked ranges.

Bytes that this process wrote are trusted. Older bytes are checked before they are first served, and
again in each round of scrubbing.
"""

from __future__ import annotations

from .batches import BEGINNING, Batches, Intervals, Position, check_batches
from .epochs import LeaderEpochs
from .errors import CorruptLogError
from .segment_indexes import InvalidIndexError, SegmentIndexes


class SegmentChecks:
    """The unchecked byte ranges of one segment.

    Args:
        size: End of the bytes that existed before, which are unchecked.
        gaps_allowed: True if compaction may have removed batches.
    """

    __slots__ = ("_gaps_allowed", "unchecked")

    def __init__(self, size: Position, *, gaps_allowed: bool) -> None:
        self._gaps_allowed = gaps_allowed
        self.unchecked = Intervals(size)

    @property
    def first_unchecked(self) -> tuple[Position, Position] | None:
        """The first unchecked range, or None."""
        return self.unchecked.first if self.unchecked else None

    def mark_checked(self, start: Position, end: Position) -> None:
        """Record that a byte range was checked."""
        self.unchecked.remove(start, end)

    def mark_unchecked(self, size: Position) -> None:
        """Mark a whole segment of `size` bytes as unchecked."""
        self.unchecked = Intervals(size)

    def check_range(
        self,
        batches: Batches,
        indexes: SegmentIndexes,
        start: Position,
        end: Position,
        *,
        end_offset: int,
        epochs: LeaderEpochs,
    ) -> None:
        """Check the unchecked batches of a byte range.

        The check extends to the surrounding index entries, which define the expected offsets.

        Args:
            batches: Batches of the segment.
            indexes: Indexes of the segment.
            start: First byte, at a batch boundary.
            end: End of the range, at a batch boundary.
            end_offset: End offset of the segment.
            epochs: Leader epochs of the log.

        Raises:
            CorruptLogError: The bytes are corrupt.
            InvalidIndexError: The index may be wrong.
        """
        if not self.unchecked.overlaps(start, end):
            return
        indexes.load(batches.size)
        index = indexes.offsets
        slot = index.floor_position(start)
        after = index.floor_position(Position(end - 1)) + 1
        is_last = after == len(index)
        low = index.position(slot) if slot >= 0 else BEGINNING
        high = batches.size if is_last else index.position(after)
        first_expected = indexes.base_at(batches, slot)
        end_expected = end_offset if is_last else indexes.base_at(batches, after)
        try:
            self._check(
                batches._replace(size=high), low, first_expected, end_expected, slot < 0, epochs
            )
        except CorruptLogError:
            if indexes.is_trusted:
                raise
            raise InvalidIndexError from None
        self.unchecked.remove(low, high)

    def _check(
        self,
        batches: Batches,
        low: Position,
        first_expected: int,
        end_expected: int,
        from_the_beginning: bool,
        epochs: LeaderEpochs,
    ) -> None:
        file, high = batches
        first, end = check_batches(file, low, high, epochs, gaps_allowed=self._gaps_allowed)
        if first != first_expected and not (self._gaps_allowed and from_the_beginning):
            raise CorruptLogError(
                file.path, low, f"expected offset {first_expected}, found {first}"
            )
        if end > end_expected or (end < end_expected and not self._gaps_allowed):
            reason = f"the previous batch ends at {end}, expected {end_expected}"
            raise CorruptLogError(file.path, high, reason)
