"""Clocks that a test moves, one for each domain of time.

Clients live in real time. So a single clock would evict every member of a group when a test jumps a
day ahead to see retention; here the log's time and the coordinators' time move apart.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from .given import check_number
from .real_time import RealClock


class ClockState(NamedTuple):
    """How a domain of time stands: ms added to real time, and the time at which it stands still."""

    added_ms: int = 0
    frozen_ms: int | None = None


class ClockStates(NamedTuple):
    """How both domains stand."""

    log: ClockState = ClockState()
    coordinator: ClockState = ClockState()


class Domain:
    """One domain of time in ms: real time plus what a test added, or standing still."""

    def __init__(self, real: RealClock, *, log: bool) -> None:
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

    def move_to(self, time_ms: int) -> None:
        """Move ahead to a time; one that is over changes nothing."""
        self.add(max(time_ms - self.now_ms(), 0))

    def state(self) -> ClockState:
        """How it stands."""
        return ClockState(self._added_ms, self._frozen_ms)

    def restore_state(self, reading: ClockState) -> None:
        """Stand as it did; real time has gone on."""
        self._added_ms, self._frozen_ms = reading

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
        real = RealClock()
        self.log = Domain(real, log=True)
        self.coordinator = Domain(real, log=False)

    def log_ms(self) -> int:
        return self.log.now_ms()

    def coordinator_ms(self) -> int:
        return self.coordinator.now_ms()

    def states(self) -> ClockStates:
        """How both domains stand."""
        return ClockStates(self.log.state(), self.coordinator.state())

    def restore_state(self, readings: ClockStates) -> None:
        """Let both domains stand as they did; nothing may run on this clock meanwhile."""
        self.log.restore_state(readings.log)
        self.coordinator.restore_state(readings.coordinator)


def milliseconds(*, days: float, hours: float, minutes: float, seconds: float) -> int:
    """A span of time in ms. Raises ValueError for one that is nothing, or goes back."""
    spans = {"days": days, "hours": hours, "minutes": minutes, "seconds": seconds}
    for name, value in spans.items():
        check_number(name, value, -math.inf)
    span = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if span < 0:
        raise ValueError("a clock does not go back: logs and offsets have times from before")
    if not span:
        raise ValueError("say how far the clock moves: advance(hours=25)")
    return round(span * 1000)
