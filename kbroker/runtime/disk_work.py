"""Work that waits for a disk, off the event loop where the disk is slow."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from .threads import InThread, run_in_thread

Result = TypeVar("Result")

AT_ONCE_SECONDS_MAX = 0.0015
"""While work takes longer than this, on average, it is done in a thread."""
AVERAGE_WEIGHT = 0.2
STALL_SECONDS = 0.05
"""After work in a thread that took so long the next one is not tried at once."""
REST_MAX = 64
"""How much is done in a thread, at most, between two tries whether the disk is fast again."""


class DiskWork:
    """Does syncs in the event loop while the disk is fast, and in a worker thread when it is not.

    On a fast disk the hand-over to a thread and back costs a busy loop more than the sync itself, on
    a slow one the sync would hold up every connection. What recent ones took decides, of those in the
    loop: in a thread most of the time may be a wait for the interpreter, which the loop has, and so a
    busy loop would look like a slow disk. Whether a disk is fast again is therefore tried in the loop,
    more and more rarely, and not after a stall.

    Parameters: `timer` returns seconds; the work is timed with it, without the hand-over.
    """

    __slots__ = ("_average_seconds", "_in_thread", "_last_seconds", "_left", "_rest", "_timer")

    def __init__(
        self,
        in_thread: InThread = run_in_thread,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._in_thread = in_thread
        self._timer = timer
        self._average_seconds = self._last_seconds = 0.0
        self._rest = self._left = 0
        """How much work is done in a thread before the next try, and what is left of that."""

    async def run(self, work: Callable[[], Result], *, in_thread: bool = False) -> Result:
        """Return what `work` returns, or raise what it raises.

        Parameters: `in_thread` has it done there in any case. No other task has its turn meanwhile
        when it is done at once.
        """
        if in_thread:
            return await self._in_thread(work)
        if self._is_slow and (self._left > 0 or self._last_seconds > STALL_SECONDS):
            self._left -= 1
            result, self._last_seconds = await self._in_thread(partial(self._timed, work))
            return result
        result, took = self._timed(work)
        self._judge(took)
        return result

    @property
    def _is_slow(self) -> bool:
        return self._average_seconds > AT_ONCE_SECONDS_MAX

    def _judge(self, took: float) -> None:
        """Take account of work that was done at once."""
        if self._is_slow:  # it was a try
            self._average_seconds = took
        else:
            self._average_seconds += AVERAGE_WEIGHT * (took - self._average_seconds)
            self._rest = 0
        if self._is_slow:
            self._rest = self._left = min(max(2 * self._rest, 1), REST_MAX)
            self._last_seconds = 0.0

    def _timed(self, work: Callable[[], Result]) -> tuple[Result, float]:
        started = self._timer()
        result = work()
        return result, self._timer() - started
