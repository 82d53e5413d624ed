"""The clock interface. All other code gets the current time from it or as an argument."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Protocol

import trio

# Interval in ms at which `UnstalledTime` checks the event loop.
TICK_MS = 500
# Maximum delay in ms of such a check that is not a stall.
DELAY_MS_MAX = 100


class Clock(Protocol):
    """The clocks of one broker, in milliseconds.

    The log clock is wall-clock time: record timestamps, retention and the expiration of offsets.
    The coordinator clock is monotonic: sessions and rebalances. They are separate because the wall
    clock may jump, and because a test may move one clock without expiring the sessions of members.
    """

    def log_ms(self) -> int:
        """Return milliseconds since the Unix epoch."""
        ...

    def coordinator_ms(self) -> int:
        """Return milliseconds of a monotonic clock, from an arbitrary start.

        Stalls of the event loop do not count: requests that arrive during a stall wait in the
        socket buffers, so the clients would expire although they have sent heartbeats.
        """
        ...

    def monotonic_ms(self) -> int:
        """Return milliseconds of a monotonic clock for rates, which also counts stalls."""
        ...

    async def run(self) -> None:
        """Detect stalls of the event loop until cancelled. Several tasks may call this method."""
        ...


class UnstalledTime:
    """A monotonic clock without the time for which the event loop has stalled.

    The clock advances by at most `TICK_MS + DELAY_MS_MAX` between two ticks. So the order in which
    tasks run after a stall does not matter. Without ticks, the clock counts all time.

    Args:
        monotonic_ms: Returns the milliseconds of a monotonic clock that counts all time.
    """

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self._monotonic_ms = monotonic_ms
        self._stalled_ms = 0
        self._ticked_ms: int | None = None

    def now_ms(self) -> int:
        """Return the current time in ms."""
        now_ms = self._monotonic_ms()
        return now_ms - self._stalled_ms - self._current_stall_ms(now_ms)

    def tick(self) -> None:
        """Record that the event loop runs."""
        now_ms = self._monotonic_ms()
        self._stalled_ms += self._current_stall_ms(now_ms)
        self._ticked_ms = now_ms

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            self.tick()
            await trio.sleep(TICK_MS / 1000)

    def _current_stall_ms(self, now_ms: int) -> int:
        if self._ticked_ms is None:
            return 0
        return max(now_ms - self._ticked_ms - TICK_MS - DELAY_MS_MAX, 0)


def suspended_seconds() -> float:
    """Return the total time for which this machine was suspended, if the system tells it.

    The monotonic clocks of Python do not count this time on Linux. The result is rounded, because
    two clocks are not read at exactly the same time.
    """
    if sys.platform != "linux":
        return 0.0
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    return round(since_boot - time.clock_gettime(time.CLOCK_MONOTONIC), 1)


class SystemClock:
    """The clocks of the operating system."""

    def __init__(self) -> None:
        self._unstalled = UnstalledTime(self.monotonic_ms)

    def log_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def coordinator_ms(self) -> int:
        return self._unstalled.now_ms()

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    async def run(self) -> None:
        await self._unstalled.run()
