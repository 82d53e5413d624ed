"""An LRU limit on the number of open active segment files.

The file of an active segment is open while its log is in use. If there are more partitions than
available file descriptors, the least recently used file is closed, and its next append reopens it.
Closed segments have no open file.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

# Number of files to check for an idle one before a file in use is closed.
CHECKS_MAX = 16


class ClosableFile(Protocol):
    """The file of an active segment, as seen by `OpenSegments`."""

    def close_if_idle(self, *, at_once: bool) -> bool:
        """Close the file if it is idle or `at_once` is set; return True if it is closed."""
        ...


class OpenSegments:
    """The open files of the active segments of many logs, at most `limit`.

    A file that is being synced is not closed, so the limit may be exceeded during a sync.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._open: OrderedDict[ClosableFile, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def register(self, file: ClosableFile) -> None:
        """Register an open file, and close another one if there are too many."""
        self._open[file] = None
        for check in range(2 * CHECKS_MAX):
            if len(self._open) <= self.limit:
                return
            oldest = next(iter(self._open))
            # A file in use or not yet durable is skipped in the first LOOKS_MAX checks.
            if oldest is file or not oldest.close_if_idle(at_once=check >= CHECKS_MAX):
                self._open.move_to_end(oldest)

    def unregister(self, file: ClosableFile) -> None:
        """Unregister a closed file."""
        self._open.pop(file, None)
