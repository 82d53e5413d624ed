"""Clocks that a test moves, one for each domain of time.

Clients live in real time. So a single clock would evict every member of a group when a test jumps a
day ahead to see retention; here the log's time and the coordinators' time move apart.
"""

from __future__ import annotations

from kbroker.clock import SystemClock


class Domain:
    """One domain of time in ms: real time plus what a test added, or standing still."""

    def __init__(self, real: SystemClock, *, log: bool) -> None:
        self._real = real.log_ms if log else real.coordinator_ms
        self._added_ms = 0
        self._frozen_ms: int | None = None

    def now_ms(self) -> int:
        """The time that the broker sees."""
        standing = self._frozen_ms
        return (self._real() if standing is None else standing) + self._added_ms

    def add(self, milliseconds: int) -> None:
        """Move ahead."""
        self._added_ms += milliseconds

    def freeze(self) -> None:
        """Stand still; `add` still moves it."""
        if self._frozen_ms is None:
            self._frozen_ms = self._real()

    def resume(self) -> None:
        """Go on from the time at which it stood."""
        if self._frozen_ms is not None:
            self._added_ms += self._frozen_ms - self._real()
            self._frozen_ms = None


class MovableClock:
    """The clock of a broker under test."""

    def __init__(self) -> None:
        real = SystemClock()
        self.log = Domain(real, log=True)
        self.coordinator = Domain(real, log=False)

    def log_ms(self) -> int:
        return self.log.now_ms()

    def coordinator_ms(self) -> int:
        return self.coordinator.now_ms()


def milliseconds(*, days: float, hours: float, minutes: float, seconds: float) -> int:
    """A span of time in ms. Raises ValueError for one that goes back."""
    span = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if span < 0:
        raise ValueError("a clock does not go back: logs and offsets have times from before")
    return round(span * 1000)
