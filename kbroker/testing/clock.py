"""Clocks that a test moves: one for logs and one for coordinators.

Clients use the real time. With a single clock, a test that moves the clock by a day to trigger
retention would also expire the session of every group member.
"""

from __future__ import annotations

import math
import threading
from typing import NamedTuple

from .arguments import check_number
from .real_clock import RealClock


class ClockState(NamedTuple):
    """State of a clock: ms added to real time, and the real time in ms at which it was frozen."""

    added_ms: int = 0
    frozen_ms: int | None = None


class ClockStates(NamedTuple):
    """States of both clocks."""

    log: ClockState = ClockState()
    coordinator: ClockState = ClockState()


class AdjustableClock:
    """A clock in ms: the real time plus a shift that a test has added. The test can freeze it.

    The thread of the test changes the clock while the thread of the broker reads it.
    """

    def __init__(self, real: RealClock, *, log: bool) -> None:
        self._real = real.log_ms if log else real.coordinator_ms
        self._changing = threading.Lock()
        self._state = ClockState()

    def now_ms(self) -> int:
        """Return the time in ms that the broker sees."""
        added_ms, frozen_ms = self._state
        return (self._real() if frozen_ms is None else frozen_ms) + added_ms

    def add(self, milliseconds: int) -> None:
        """Move the clock ahead."""
        with self._changing:
            added_ms, frozen_ms = self._state
            self._state = ClockState(added_ms + milliseconds, frozen_ms)

    def move_to(self, time_ms: int) -> None:
        """Move the clock ahead to a time in ms; do nothing if the time is in the past."""
        self.add(max(time_ms - self.now_ms(), 0))

    def state(self) -> ClockState:
        """Return the state of the clock."""
        return self._state

    def restore_state(self, state: ClockState) -> None:
        """Restore an earlier state of the clock."""
        with self._changing:
            self._state = state

    def freeze(self) -> None:
        """Stop the clock; `add` still moves it."""
        with self._changing:
            if self._state.frozen_ms is None:
                self._state = self._state._replace(frozen_ms=self._real())

    def resume(self) -> None:
        """Continue from the time at which `freeze` stopped the clock."""
        with self._changing:
            added_ms, frozen_ms = self._state
            if frozen_ms is not None:
                self._state = ClockState(added_ms + frozen_ms - self._real())


class MovableClock:
    """The log clock and the coordinator clock of a broker under test."""

    def __init__(self) -> None:
        self._real = real = RealClock()
        self.log = AdjustableClock(real, log=True)
        self.coordinator = AdjustableClock(real, log=False)

    def log_ms(self) -> int:
        return self.log.now_ms()

    def coordinator_ms(self) -> int:
        return self.coordinator.now_ms()

    def monotonic_ms(self) -> int:
        return self.coordinator.now_ms()

    async def run(self) -> None:
        await self._real.run()

    def states(self) -> ClockStates:
        """Return the states of both clocks."""
        return ClockStates(self.log.state(), self.coordinator.state())

    def restore_state(self, states: ClockStates) -> None:
        """Restore the states of both clocks; no broker may use them at this time."""
        self.log.restore_state(states.log)
        self.coordinator.restore_state(states.coordinator)


def milliseconds(*, days: float, hours: float, minutes: float, seconds: float) -> int:
    """Return the sum of time spans in ms.

    Raises:
        ValueError: The sum is zero or negative.
    """
    spans = {"days": days, "hours": hours, "minutes": minutes, "seconds": seconds}
    for name, value in spans.items():
        check_number(name, value, -math.inf)
    span = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if span < 0:
        raise ValueError("cannot move a clock back; pass a positive time, as in advance(hours=25)")
    if not span:
        raise ValueError("cannot move a clock by 0; pass a time, as in advance(hours=25)")
    return round(span * 1000)
