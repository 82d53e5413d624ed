"""The clock interface. All other code gets the current time from it or as an argument."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks of one broker, in milliseconds.

    The log clock is wall-clock time: record timestamps, retention and the expiration of offsets.
    The coordinator clock is monotonic: sessions and rebalances. They are separate because the wall
    clock may jump, and because a test may move one clock without expiring the sessions of members.
    """

    def log_ms(self) -> int:
        """Return milliseconds since the Unix epoch."""
        ...

    def coordinator_ms(self) -> int:
        """Return milliseconds of a monotonic clock, from an arbitrary start."""
        ...


class SystemClock:
    """The clocks of the operating system."""

    def log_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def coordinator_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
