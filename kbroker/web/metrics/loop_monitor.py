"""Monitor of the event loop: wake-up delay and idle fraction."""

from __future__ import annotations

import time

import trio

from kbroker.runtime.timings import Timings

BEAT_SECONDS = 0.25
# Interval over which the idle fraction is measured.
LOOK_SECONDS = 10


class LoopMonitor:
    """Measures the event loop in which `run` runs.

    Attributes:
        lateness: Delays of timer wake-ups.
        idle: Fraction of time in which the loop's thread used no CPU, over the last interval.
    """

    def __init__(self) -> None:
        self.lateness = Timings()
        self.idle = 1.0

    async def run(self) -> None:
        """Measure forever."""
        looked_at, worked = time.monotonic(), time.thread_time()
        while True:
            due = trio.current_time() + BEAT_SECONDS
            await trio.sleep_until(due)
            self.lateness.took(max(trio.current_time() - due, 0.0))
            now = time.monotonic()
            if now - looked_at >= LOOK_SECONDS:
                busy = (time.thread_time() - worked) / (now - looked_at)
                self.idle = min(max(1 - busy, 0.0), 1.0)
                looked_at, worked = now, time.thread_time()
