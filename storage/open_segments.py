"""Which active segments keep their file open: a bounded number of them, the ones used last.

A log appends to one segment, whose file is open while the log is in use. With more partitions than a
process may have descriptors, the file of the one that was used longest ago is closed; its next append
opens it again. Sealed segments keep nothing open.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

LOOKS_MAX = 16
"""How many files are looked at for one that is idle, before one that is not has to go."""


class Closable(Protocol):
    """The file of an active segment, as far as it matters here."""

    def let_go(self, *, at_once: bool) -> bool:
        """Close the file, unless it is in use, or `at_once` only unless it must not be; says whether."""
        ...


class OpenSegments:
    """The open files of the active segments of many logs, `limit` of them at most.

    One that is being synced stays open, so for the time of a sync there may be more.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._open: OrderedDict[Closable, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, file: Closable) -> None:
        """A file is open now: another one may have to be closed."""
        self._open[file] = None
        for look in range(2 * LOOKS_MAX):
            if len(self._open) <= self.limit:
                return
            oldest = next(iter(self._open))
            # Used or not durable yet: a second chance, but not for ever.
            if oldest is file or not oldest.let_go(at_once=look >= LOOKS_MAX):
                self._open.move_to_end(oldest)

    def closed(self, file: Closable) -> None:
        """A file is closed now."""
        self._open.pop(file, None)
