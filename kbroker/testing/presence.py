"""Whether the broker that a wait looks at is there: one that restarts is away for a moment."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import trio


class Presence:
    """Lets waits go on when their broker is back, and tells them when it will not be.

    All calls but the first come from one event loop.
    """

    def __init__(self) -> None:
        self.is_here = True
        """Whether it is there now."""
        self._farewell: str | None = None
        self._changed = trio.Event()
        self.looks: set[trio.CancelScope] = set()
        """Those that are going on."""

    def came(self) -> None:
        """The broker is there, or there again."""
        self.is_here, self._farewell = True, None
        self._tell()

    def went(self) -> None:
        """It is away: looks at it that have begun are given up."""
        self.is_here = False
        for scope in self.looks:
            scope.cancel()

    def ended(self, why: str) -> None:
        """It does not come back by itself, for a reason that each wait is told."""
        self.went()
        self._farewell = why
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    @contextlib.contextmanager
    def look(self) -> Iterator[None]:
        """Look at the broker; what is inside is left at once when the broker goes away."""
        with trio.CancelScope() as scope:
            self.looks.add(scope)
            try:
                yield
            finally:
                self.looks.discard(scope)

    async def until(self, deadline: float) -> bool:
        """Wait until the broker is there; False when it is not by the deadline.

        Raises RuntimeError with the reason when it does not come back.
        """
        while not self.is_here:
            if self._farewell is not None:
                raise RuntimeError(self._farewell)
            with trio.move_on_at(deadline):
                await self._changed.wait()
                continue
            return False
        return True
