"""Availability of the broker that a wait observes: a restart makes it unavailable for a moment."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import trio


class BrokerAvailability:
    """Pauses waits while their broker is down, and fails them if it does not start again by itself.

    All calls but the first come from one event loop.
    """

    def __init__(self) -> None:
        # True while the broker runs.
        self.is_available = True
        self._closed_reason: str | None = None
        self._changed = trio.Event()
        # Scopes of the attempts in progress.
        self.attempts: set[trio.CancelScope] = set()

    def mark_available(self) -> None:
        """Resume waits: the broker was started."""
        self.is_available, self._closed_reason = True, None
        self._notify()

    def mark_unavailable(self) -> None:
        """Cancel all attempts in progress: the broker is down."""
        self.is_available = False
        for scope in self.attempts:
            scope.cancel()

    def mark_closed(self, reason: str) -> None:
        """Fail all waits with a reason: the broker does not start again by itself."""
        self.mark_unavailable()
        self._closed_reason = reason
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """Run a block that uses the broker; it is cancelled if the broker goes down."""
        with trio.CancelScope() as scope:
            self.attempts.add(scope)
            try:
                yield
            finally:
                self.attempts.discard(scope)

    async def wait_until_available(self, deadline: float) -> bool:
        """Wait until the broker is available. Return False if it is not by the deadline.

        Raises:
            RuntimeError: The broker does not start again by itself; the message has the reason.
        """
        while not self.is_available:
            if self._closed_reason is not None:
                raise RuntimeError(self._closed_reason)
            with trio.move_on_at(deadline):
                await self._changed.wait()
                continue
            return False
        return True
