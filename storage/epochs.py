"""The leader epoch history of one partition (KIP-101, KIP-320).

Each entry (epoch, start offset) means that the leader of that epoch appended from that offset on.
Both increase strictly. The file `leader-epoch-checkpoint` has one line per entry. Batches also
contain their epoch, so recovery can add missing entries.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from .checkpoints import format_lines, parse_lines

UNDEFINED = -1


class LeaderEpochs:
    """The leader epochs of one partition, oldest first.

    Attributes:
        latest: Newest epoch, UNDEFINED if there is none.
        changed: Set by every change; the code that saves the entries clears it.
        has_file: True if there is a checkpoint file, whatever its content.
    """

    __slots__ = ("_epochs", "_starts", "changed", "has_file", "latest")

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.latest = UNDEFINED
        self.changed = False
        self.has_file = False

    def __len__(self) -> int:
        return len(self._epochs)

    @property
    def entries(self) -> list[tuple[int, int]]:
        """(epoch, start offset) pairs, oldest first."""
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> None:
        """Record that `epoch` appends from `start_offset` on.

        The latest epoch keeps its start. Entries that contradict the new one (same or newer epoch,
        or a start at or after the new start) are removed.
        """
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"invalid leader epoch {epoch} from offset {start_offset}")
        if epoch == self.latest and start_offset >= self._starts[-1]:
            return
        keep = min(bisect_left(self._epochs, epoch), bisect_left(self._starts, start_offset))
        self._keep(0, keep)
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.latest = epoch

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the largest known epoch that is not above `epoch`, and its end offset.

        The end is the start of the next epoch, or `log_end_offset` for the latest epoch. If `epoch`
        is above all known epochs, return (-1, -1). If `epoch` is below all known epochs, its end is
        the start of the first one.
        """
        if epoch < 0 or epoch > self.latest:
            return UNDEFINED, UNDEFINED
        if epoch == self.latest:
            return epoch, log_end_offset
        after = bisect_right(self._epochs, epoch)
        if after == 0:
            return epoch, self._starts[0]
        return self._epochs[after - 1], self._starts[after]

    def epoch_at(self, offset: int) -> int:
        """Return the epoch in which `offset` was appended, UNDEFINED before the first entry."""
        index = bisect_right(self._starts, offset) - 1
        return self._epochs[index] if index >= 0 else UNDEFINED

    def truncate_end(self, end_offset: int) -> None:
        """Remove the epochs that start at or after the new log end offset."""
        keep = bisect_left(self._starts, end_offset)
        if keep < len(self._starts):
            self._keep(0, keep)

    def truncate_start(self, start_offset: int) -> None:
        """Remove the epochs that end before the new log start; the current one starts there."""
        first = bisect_right(self._starts, start_offset) - 1
        if first > 0 or (first == 0 and self._starts[0] < start_offset):
            self._keep(first, len(self._starts))
            self._starts[0] = start_offset

    def _keep(self, first: int, end: int) -> None:
        self._epochs = self._epochs[first:end]
        self._starts = self._starts[first:end]
        self.latest = self._epochs[-1] if self._epochs else UNDEFINED
        self.changed = True

    def to_bytes(self) -> bytes:
        return format_lines(0, [f"{epoch} {start}" for epoch, start in self.entries])

    @classmethod
    def from_bytes(cls, data: bytes) -> LeaderEpochs | None:
        """Parse a checkpoint file; None if it is damaged."""
        entries = parse_lines(data, 0)
        if entries is None:
            return None
        epochs = cls()
        try:
            for epoch, start in entries:
                epochs.assign(int(epoch), int(start))
        except ValueError:
            return None
        epochs.changed = False
        return epochs
