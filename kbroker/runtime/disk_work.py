"""Disk work in the event loop or in a worker thread, depending on the speed of the disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from .threads import InThread, run_in_thread

Result = TypeVar("Result")

# Average seconds of recent work above which the disk counts as slow.
AT_ONCE_SECONDS_MAX = 0.0015
# Weight of the latest duration in the average.
AVERAGE_WEIGHT = 0.2
# Seconds of work in a thread after which the next work also runs in a thread.
STALL_SECONDS = 0.05
# Maximum number of calls in a thread between two attempts in the event loop.
RETRY_INTERVAL_MAX = 64


class DiskWork:
    """Runs syncs in the event loop while the disk is fast, otherwise in a worker thread.

    On a fast disk the switch to a thread costs more than the sync; on a slow disk a sync would
    block all connections. The durations of recent syncs in the event loop decide. Durations in a
    thread do not count, because they include waits for the interpreter lock: a busy event loop
    would look like a slow disk. To detect that a disk is fast again, a sync is tried in the event
    loop, at increasing intervals, and not after a stall.

    Args:
        in_thread: Runs functions in a worker thread.
        timer: Returns seconds; measures the work without the switch to a thread.
    """

    __slots__ = (
        "_average_seconds",
        "_in_thread",
        "_last_seconds",
        "_retry_interval",
        "_timer",
        "_until_retry",
    )

    def __init__(
        self,
        in_thread: InThread = run_in_thread,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._in_thread = in_thread
        self._timer = timer
        self._average_seconds = self._last_seconds = 0.0
        # Number of calls in a thread between two attempts in the event loop, and number of calls
        # before the next attempt.
        self._retry_interval = self._until_retry = 0

    async def run(self, work: Callable[[], Result], *, in_thread: bool = False) -> Result:
        """Run a function, and return its result.

        If it runs in the event loop, no other task runs in the meantime.

        Args:
            work: The function.
            in_thread: Always run the function in a thread.
        """
        if in_thread:
            return await self._in_thread(work)
        if self._is_slow and (self._until_retry > 0 or self._last_seconds > STALL_SECONDS):
            self._until_retry -= 1
            result, self._last_seconds = await self._in_thread(partial(self._measure, work))
            return result
        result, seconds = self._measure(work)
        self._update_average(seconds)
        return result

    @property
    def _is_slow(self) -> bool:
        return self._average_seconds > AT_ONCE_SECONDS_MAX

    def _update_average(self, seconds: float) -> None:
        """Update the average with a duration in the event loop."""
        if self._is_slow:  # this call was an attempt
            self._average_seconds = seconds
        else:
            self._average_seconds += AVERAGE_WEIGHT * (seconds - self._average_seconds)
            self._retry_interval = 0
        if self._is_slow:
            self._retry_interval = self._until_retry = min(
                max(2 * self._retry_interval, 1), RETRY_INTERVAL_MAX
            )
            self._last_seconds = 0.0

    def _measure(self, work: Callable[[], Result]) -> tuple[Result, float]:
        started = self._timer()
        result = work()
        return result, self._timer() - started
