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
        self._open: set[_Handshake] = set()

    async def perform(self, transport: TlsTransport) -> None:
        """Perform a handshake.

        Raises:
            OSError: The handshake failed.
            trio.TooSlowError: `cancel_overdue` has cancelled the handshake.
        """
        handshake = _Handshake(self._throttle)
        self._open.add(handshake)
        try:
            with handshake.scope:
                await transport.handshake(handshake)
        finally:
            self._open.remove(handshake)
        if handshake.scope.cancelled_caught:
            raise trio.TooSlowError

    def cancel_overdue(self, now: float, seconds_max: float, delay: float) -> None:
        """Cancel the handshakes whose clients are too slow.

        Args:
            now: Current time in seconds.
            seconds_max: Time limit in seconds.
            delay: Seconds before `now` that do not count; no handshake is cancelled if it is not 0.
        """
        for handshake in self._open:
            if handshake.is_queued:
                continue
            if delay:
                handshake.began_at = min(handshake.began_at + delay, now)
            elif now - handshake.began_at > seconds_max:
                handshake.scope.cancel()


class _Handshake:
    """One handshake, which runs its steps between those of the others."""

    def __init__(self, throttle: StepThrottle) -> None:
        self.scope = trio.CancelScope()
        # Time in seconds at which it began; time for which it waited for kbroker is added.
        self.began_at = trio.current_time()
        # True while a step waits for the steps of other handshakes, which may take long.
        self.is_queued = False
        self._throttle = throttle

    async def run(self, step: Callable[[], Result]) -> Result:
        """Run one step after the steps of other handshakes."""
        self.is_queued, asked_at = True, trio.current_time()
        try:
            return await self._throttle.run(step)
        finally:
            self.is_queued = False
            self.began_at += trio.current_time() - asked_at
