"""The `.snapshot` files of a partition: producer states as they were before an offset.

There is one for the beginning of each segment, and at most one more, taken within the newest
segment or at its end, so that opening a log replays little.
"""

from __future__ import annotations

from collections.abc import Container

from .files import Files
from .naming import SNAPSHOT, file_name
from .producer_state import ProducerStates
from .sync import AtomicWrite, Removal, SyncItem


class Snapshots:
    """Which snapshots there are, or will be when what was queued is done.

    Parameters:
        files: where they are.
        directory: of the partition.
        offsets: of those that were found, rising.
    """

    __slots__ = ("_directory", "_files", "offsets")

    def __init__(self, files: Files, directory: str, offsets: list[int] | None = None) -> None:
        self._files = files
        self._directory = directory
        self.offsets = offsets or []

    def _path(self, offset: int) -> str:
        return f"{self._directory}/{file_name(offset, SNAPSHOT)}"

    def newest(self, start: int, end: int, now_ms: int) -> tuple[int, ProducerStates]:
        """The newest sound one within two offsets; an empty state at `start` without one."""
        for offset in reversed(self.offsets):
            if start <= offset <= end:
                states = self._read(offset, now_ms)
                if states is not None:
                    return offset, states
        return start, ProducerStates()

    def _read(self, offset: int, now_ms: int) -> ProducerStates | None:
        try:
            data = self._files.read_bytes(self._path(offset))
        except FileNotFoundError:  # it waits for the next checkpoint, or a crash took it
            return None
        return ProducerStates.from_bytes(data, now_ms)

    def save(
        self, states: ProducerStates, offset: int, segment_bases: Container[int]
    ) -> list[SyncItem]:
        """What saves the state before `offset`, and removes what that replaces."""
        last = self.offsets[-1] if self.offsets else -1
        if last >= offset:
            return []
        items: list[SyncItem] = [AtomicWrite(self._files, self._path(offset), states.to_bytes())]
        if last >= 0 and last not in segment_bases:
            items.append(Removal(self._files, self._path(last)))
            self.offsets.pop()
        self.offsets.append(offset)
        return items

    def rewrite(self, states: ProducerStates, offset: int) -> SyncItem:
        """What saves a state that is there already with more in it."""
        return AtomicWrite(self._files, self._path(offset), states.to_bytes())

    def drop(self, offset: int) -> list[SyncItem]:
        """What removes the one at `offset`, if there is one."""
        if offset not in self.offsets:
            return []
        self.offsets.remove(offset)
        return [Removal(self._files, self._path(offset))]

    def drop_after(self, offset: int) -> bool:
        """Remove those of records that are gone, at once. Returns whether there were any.

        The caller syncs the directory before other records take these offsets.
        """
        gone = [at for at in self.offsets if at > offset]
        for at in gone:
            self._files.remove(self._path(at))
        self.offsets = [at for at in self.offsets if at <= offset]
        return bool(gone)
