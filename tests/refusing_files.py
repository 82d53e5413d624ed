"""A disk of which a part takes nothing for a while: full, or read-only."""

from __future__ import annotations

from kbroker.storage.crash_files import CrashFiles, Operation
from kbroker.storage.errors import WriteRefusedError
from kbroker.storage.naming import PROBE

DATA = "/data"
_SYNCS = ("sync", "syncdir", "syncfs")


class RefusingFiles(CrashFiles):
    """Files in memory for `open_broker`, which takes them for a disk.

    `refused` has the directories in which every write is refused with all that lies in them; with
    `takes` set, only so many more writes to logs are done there.
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
        """Take nothing more in a directory."""
        self.refused.add(directory)

    def heal(self) -> None:
        """Take everything again."""
        self.refused.clear()
