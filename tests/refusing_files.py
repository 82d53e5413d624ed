"""A disk that temporarily rejects writes: full, or read-only."""

from __future__ import annotations

from kbroker.storage.crash_files import CrashFiles, Operation
from kbroker.storage.errors import WriteRefusedError
from kbroker.storage.naming import PROBE

DATA = "/data"
_SYNCS = ("sync", "syncdir", "syncfs")


class RefusingFiles(CrashFiles):
    """In-memory files for `open_broker` that it treats as a disk.

    Attributes:
        refused: Directories in which every write fails.
        takes: If set, number of writes to logs that still succeed there.
    """

    def __init__(self) -> None:
        super().__init__(self._look)
        self.refused: set[str] = set()
        self.takes: int | None = None
        self.probes_refused = 0

    def _look(self, operation: Operation) -> None:
        kind, path = operation
        if self.takes is not None and kind == "write" and path.endswith(".log"):
            self.takes -= 1
            if self.takes < 0:
                self.takes = None
                self.refuse(path.rpartition("/")[0].rpartition("/")[0])
        if kind not in _SYNCS and any(path.startswith(f"{each}/") for each in self.refused):
            self.probes_refused += PROBE in path
            raise WriteRefusedError(f"cannot {kind} {path}: Read-only file system")

    def refuse(self, directory: str) -> None:
        """Reject all writes in a directory."""
        self.refused.add(directory)

    def heal(self) -> None:
        """Accept all writes again."""
        self.refused.clear()
