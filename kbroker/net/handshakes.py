"""TLS handshakes in progress: their share of the event loop, and the time limit for clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import trio

from kbroker.runtime.time_slices import StepThrottle

if TYPE_CHECKING:
    from .tls_transport import TlsTransport

Result = TypeVar("Result")


class Handshakes:
    """The TLS handshakes of one server. Only time for which they wait for clients is limited."""

    def __init__(self) -> None:
        self._throttle = StepThrottle()
        # When each handshake that waits for its client began, in seconds; time for which it waited
        # for kbroker is added.
        self._waiting: dict[trio.CancelScope, float] = {}

    async def perform(self, transport: TlsTransport) -> None:
        """Perform a handshake.

        Raises:
            OSError: The handshake failed.
            trio.TooSlowError: `cancel_overdue` has cancelled the handshake.
        """
        with trio.CancelScope() as scope:
            self._waiting[scope] = trio.current_time()
            try:
                await transport.handshake(_Steps(self._throttle, self._waiting, scope))
            finally:
                del self._waiting[scope]
        if scope.cancelled_caught:
            raise trio.TooSlowError

    def cancel_overdue(self, now: float, seconds_max: float, delay: float) -> None:
        """Cancel the handshakes whose clients are too slow.

        Args:
            now: Current time in seconds.
            seconds_max: Time limit in seconds.
            delay: Seconds before `now` that do not count; no handshake is cancelled if it is not 0.
        """
        for scope, began in tuple(self._waiting.items()):
            if delay:
                self._waiting[scope] = min(began + delay, now)
            elif now - began > seconds_max:
                scope.cancel()


class _Steps:
    """Runs the steps of one handshake."""

    def __init__(
        self,
        throttle: StepThrottle,
        waiting: dict[trio.CancelScope, float],
        scope: trio.CancelScope,
    ) -> None:
        self._throttle = throttle
        self._waiting = waiting
        self._scope = scope

    async def run(self, step: Callable[[], Result]) -> Result:
        """Run one step after the steps of other handshakes, which may take long."""
        began, asked_at = self._waiting.pop(self._scope), trio.current_time()
        try:
            return await self._throttle.run(step)
        finally:
            self._waiting[self._scope] = began + trio.current_time() - asked_at
