"""The one place that reads time. Everything below gets `now` as an argument."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two time domains of one broker, in milliseconds.

    The log domain is wall-clock time: record timestamps, retention, expiry of offsets. The
    coordinator domain is steady time: sessions, rebalances. They are apart because the wall clock
    may jump, and because a test may move the one without evicting the members of the other.
    """

    def log_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        ...

    def coordinator_ms(self) -> int:
        """Milliseconds of a clock that never goes back, from an arbitrary start."""
        ...


class SystemClock:
    """The clock of the machine."""

    def log_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def coordinator_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
