"""Real time for brokers under test, even if the test replaces the clocks of its process.

freezegun and `unittest.mock` replace functions of the `time` module, but not `clock_gettime`.
time-machine replaces `clock_gettime` for the wall clock, and keeps the original in `escape_hatch`.

Clients in environments without trio import this module for their settings.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import Protocol

NS_PER_SECOND = 1_000_000_000


class _OriginalTime(Protocol):
    def time_ns(self) -> int: ...


class _EscapeHatch(Protocol):
    """Functions of time-machine that return the real time."""

    time: _OriginalTime

    def is_travelling(self) -> bool: ...


def wall_ns() -> int:
    """Return the nanoseconds since the Unix epoch."""
    time_machine = sys.modules.get("time_machine")
    if time_machine is None:
        return _system_wall_ns()
    escape: _EscapeHatch = time_machine.escape_hatch
    while True:  # another thread may start or stop time travel between two of these calls
        with suppress(ValueError):  # time travel has ended
            if escape.is_travelling():
                return escape.time.time_ns()
        now = _system_wall_ns()
        if not escape.is_travelling():
            return now


def _system_wall_ns() -> int:
    if sys.platform == "win32":
        return time.time_ns()
    return time.clock_gettime_ns(time.CLOCK_REALTIME)


def steady_ns() -> int:
    """Return the nanoseconds of a clock that never goes back, from an arbitrary start."""
    if sys.platform == "win32":
        return time.monotonic_ns()
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def steady_seconds() -> float:
    """Return the seconds of the clock that `steady_ns` reads."""
    return steady_ns() / NS_PER_SECOND
