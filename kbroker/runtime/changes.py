"""Something happened in a node: for those who wait for a state of it."""

from __future__ import annotations

import trio


class Changes:
    """Wakes those who wait for the next change; costs next to nothing when nobody does."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next: trio.Event | None = None

    def happened(self) -> None:
        """Records were committed, a group changed, a client asked for something."""
        if self._next is not None:
            self._next.set()
            self._next = None

    def next(self) -> trio.Event:
        """The event that the next change will set."""
        if self._next is None:
            self._next = trio.Event()
        return self._next
