"""Monitor of the event loop: wake-up delay and idle fraction."""

from __future__ import annotations

import time

import trio

from kbroker.runtime.timings import Timings

# Interval between two timer wake-ups.
WAKE_UP_SECONDS = 0.25
# Interval over which the idle fraction is measured.
IDLE_INTERVAL_SECONDS = 10


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
        measured_at, cpu_seconds = time.monotonic(), time.thread_time()
        while True:
            due = trio.current_time() + WAKE_UP_SECONDS
            await trio.sleep_until(due)
            self.lateness.record(max(trio.current_time() - due, 0.0))
            now = time.monotonic()
            if now - measured_at >= IDLE_INTERVAL_SECONDS:
                busy = (time.thread_time() - cpu_seconds) / (now - measured_at)
                self.idle = min(max(1 - busy, 0.0), 1.0)
                measured_at, cpu_seconds = now, time.thread_time()
