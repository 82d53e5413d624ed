"""Which leader wrote which offsets: the leader-epoch history of one partition (KIP-101, KIP-320).

Each entry (epoch, start offset) says that the leader of that epoch wrote from that offset on. Both
rise strictly from entry to entry. The file `leader-epoch-checkpoint` has one line per entry; a
batch also carries its epoch, so recovery can add entries that the file lacks.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from .checkpoints import lines, parse_lines

UNDEFINED = -1


class LeaderEpochs:
    """The entries of one partition, oldest first.

    `latest` is the newest epoch, UNDEFINED when there is none. `changed` is set by every change
    and cleared by whoever saves the entries; `has_file` is set when there is a file, whatever it says.
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
        """Record that `epoch` writes from `start_offset` on.

        The epoch that is the latest already keeps its earlier start. Entries that contradict the
        new one (same or newer epoch, or a start at or behind the new start) are dropped.
        """
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"leader epoch {epoch} from offset {start_offset}")
        if epoch == self.latest and start_offset >= self._starts[-1]:
            return
        keep = min(bisect_left(self._epochs, epoch), bisect_left(self._starts, start_offset))
        self._keep(0, keep)
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.latest = epoch

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Where `epoch` ends: (largest epoch not above it, end offset of that one).

        The end is the start of the next epoch, or `log_end_offset` for the latest. An epoch above
        every known one gives (-1, -1); one below every known one ends where the first begins.
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
        """The epoch that wrote `offset`; UNDEFINED before the first entry."""
        index = bisect_right(self._starts, offset) - 1
        return self._epochs[index] if index >= 0 else UNDEFINED

    def truncate_end(self, end_offset: int) -> None:
        """Forget epochs that begin at or after the new end of the log."""
        keep = bisect_left(self._starts, end_offset)
        if keep < len(self._starts):
            self._keep(0, keep)

    def truncate_start(self, start_offset: int) -> None:
        """Forget epochs that end before the new start; the one around it now begins there."""
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
        return lines(0, [f"{epoch} {start}" for epoch, start in self.entries])

    @classmethod
    def from_bytes(cls, data: bytes) -> LeaderEpochs | None:
        """Read a checkpoint file; None when it is damaged."""
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
