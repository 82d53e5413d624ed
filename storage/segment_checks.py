"""What of one segment was looked through for damage, and how that is done.

Bytes that this process wrote are sound; those that were there before are looked through before they
are served for the first time, and once more whenever a round of scrubbing begins.
"""

from __future__ import annotations

from .batches import BEGINNING, Batches, Intervals, Position, check
from .epochs import LeaderEpochs
from .errors import CorruptLogError
from .segment_indexes import SegmentIndexes, WrongIndexError


class SegmentChecks:
    """Which bytes of one segment nobody has looked through yet.

    Parameters:
        size: where the bytes end that were there before.
        gaps_allowed: compaction may have removed batches.
    """

    __slots__ = ("_gaps_allowed", "unchecked")

    def __init__(self, size: Position, *, gaps_allowed: bool) -> None:
        self._gaps_allowed = gaps_allowed
        self.unchecked = Intervals(size)

    @property
    def first_unchecked(self) -> tuple[Position, Position] | None:
        """The first positions between which nobody looked for damage; None without any."""
        return self.unchecked.first if self.unchecked else None

    def checked(self, start: Position, end: Position) -> None:
        """Take note that somebody looked for damage between two borders."""
        self.unchecked.remove(start, end)

    def distrust(self, size: Position) -> None:
        """Let all of a segment of that size be looked through once more."""
        self.unchecked = Intervals(size)

    def look_through(
        self,
        batches: Batches,
        indexes: SegmentIndexes,
        start: Position,
        end: Position,
        *,
        end_offset: int,
        epochs: LeaderEpochs,
    ) -> None:
        """Look for damage between two borders, unless that was done.

        What is looked at reaches from one index entry to another one: these say which offsets must
        be there. `end_offset` is that of the segment.

        Raises CorruptLogError, and WrongIndexError when the index may be to blame.
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
        first_due = indexes.base_at(batches, slot)
        behind_due = end_offset if is_last else indexes.base_at(batches, after)
        try:
            self._check(batches._replace(size=high), low, first_due, behind_due, slot < 0, epochs)
        except CorruptLogError:
            if indexes.is_trusted:
                raise
            raise WrongIndexError from None
        self.unchecked.remove(low, high)

    def _check(
        self,
        batches: Batches,
        low: Position,
        first_due: int,
        behind_due: int,
        from_the_beginning: bool,
        epochs: LeaderEpochs,
    ) -> None:
        file, high = batches
        first, behind = check(file, low, high, epochs, gaps_allowed=self._gaps_allowed)
        if first != first_due and not (self._gaps_allowed and from_the_beginning):
            raise CorruptLogError(file.path, low, f"offset {first}, not {first_due}")
        if behind > behind_due or (behind < behind_due and not self._gaps_allowed):
            reason = f"the batch before ends at {behind}, not at {behind_due}"
            raise CorruptLogError(file.path, high, reason)
