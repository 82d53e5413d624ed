"""Notification of waiters about changes in a node."""

from __future__ import annotations

import trio


class Changes:
    """Wakes the tasks that wait for the next change; cheap if there are none."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next: trio.Event | None = None

    def notify(self) -> None:
        """Wake all waiters: records were committed, a group changed, or a request arrived."""
        if self._next is not None:
            self._next.set()
            self._next = None

    def next(self) -> trio.Event:
        """Return the event that the next change sets."""
        if self._next is None:
            self._next = trio.Event()
        return self._next
