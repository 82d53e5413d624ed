"""How late the event loop is, and how much of its time it has nothing to do."""

from __future__ import annotations

import time

import trio

from kbroker.runtime.timings import Timings

BEAT_SECONDS = 0.25
LOOK_SECONDS = 10
"""Over which time the part is measured in which the loop is idle."""


class Beat:
    """Wakes up regularly; `run` it until cancelled, in the loop that it is about."""

    def __init__(self) -> None:
        self.lateness = Timings()
        self.idle = 1.0
        """The part of the time in which the loop's thread did nothing, lately."""

    async def run(self) -> None:
        """Beat, for ever."""
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
