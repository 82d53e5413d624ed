"""The `.snapshot` files of a partition: the producer state before an offset.

There is one at the start of each segment, and at most one more, within or at the end of the newest
segment, so that opening a log replays few batches.
"""

from __future__ import annotations

from collections.abc import Container

from .files import Files
from .naming import SNAPSHOT, file_name
from .producer_state import ProducerStates
from .sync import AtomicWrite, FileRemoval, SyncItem


class Snapshots:
    """The snapshots of a partition, including those that are queued to be written.

    Args:
        files: File system of the directory.
        directory: Path of the partition directory.
        offsets: Offsets of the existing snapshots, ascending.
    """

    __slots__ = ("_directory", "_files", "offsets")

    def __init__(self, files: Files, directory: str, offsets: list[int] | None = None) -> None:
        self._files = files
        self._directory = directory
        self.offsets = offsets or []

    def _path(self, offset: int) -> str:
        return f"{self._directory}/{file_name(offset, SNAPSHOT)}"

    def newest(self, start: int, end: int, now_ms: int) -> tuple[int, ProducerStates]:
        """Return the newest valid snapshot between two offsets, else an empty state at `start`."""
        for offset in reversed(self.offsets):
            if start <= offset <= end:
                states = self._read(offset, now_ms)
                if states is not None:
                    return offset, states
        return start, ProducerStates()

    def _read(self, offset: int, now_ms: int) -> ProducerStates | None:
        try:
            data = self._files.read_bytes(self._path(offset))
        except FileNotFoundError:  # not written yet, or lost in a crash
            return None
        return ProducerStates.from_bytes(data, now_ms)

    def save(
        self, states: ProducerStates, offset: int, segment_bases: Container[int]
    ) -> list[SyncItem]:
        """Return the writes that save the state before `offset` and remove an obsolete snapshot."""
        last = self.offsets[-1] if self.offsets else -1
        if last >= offset:
            return []
        items: list[SyncItem] = [AtomicWrite(self._files, self._path(offset), states.to_bytes())]
        if last >= 0 and last not in segment_bases:
            items.append(FileRemoval(self._files, self._path(last)))
            self.offsets.pop()
        self.offsets.append(offset)
        return items

    def rewrite(self, states: ProducerStates, offset: int) -> SyncItem:
        """Return the write that replaces an existing snapshot."""
        return AtomicWrite(self._files, self._path(offset), states.to_bytes())

    def drop(self, offset: int) -> list[SyncItem]:
        """Return the removal of the snapshot at `offset`, if there is one."""
        if offset not in self.offsets:
            return []
        self.offsets.remove(offset)
        return [FileRemoval(self._files, self._path(offset))]

    def drop_after(self, offset: int) -> bool:
        """Remove the snapshots after `offset` at once; return True if there were any.

        The caller must sync the directory before new records reuse these offsets.
        """
        obsolete = [at for at in self.offsets if at > offset]
        for at in obsolete:
            self._files.remove(self._path(at))
        self.offsets = [at for at in self.offsets if at <= offset]
        return bool(obsolete)
