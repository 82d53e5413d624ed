"""Work that waits for a disk, off the event loop where the disk is slow."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import trio

from .threads import InThread

Result = TypeVar("Result")

AT_ONCE_SECONDS_MAX = 0.0015
"""Work that takes longer than this, on average, goes to a thread."""
AVERAGE_WEIGHT = 0.2


class DiskWork:
    """Does syncs in the event loop while the disk is fast, and in a worker thread when it is not.

    On a fast disk the hand-over to a thread and back costs a busy loop more than the sync itself, on
    a slow one the sync would hold up every connection. What recent ones took decides.

    Parameters: `timer` returns seconds; the work is timed with it, without the hand-over.
    """

    __slots__ = ("_average_seconds", "_in_thread", "_timer")

    def __init__(
        self,
        in_thread: InThread = trio.to_thread.run_sync,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._in_thread = in_thread
        self._timer = timer
        self._average_seconds = 0.0

    async def run(self, work: Callable[[], Result], *, in_thread: bool = False) -> Result:
        """Return what `work` returns, or raise what it raises.

        Parameters: `in_thread` has it done there in any case. No other task has its turn meanwhile
        when it is done at once.
        """
        if in_thread or self._average_seconds > AT_ONCE_SECONDS_MAX:
            return await self._in_thread(partial(self._timed, work))
        return self._timed(work)

    def _timed(self, work: Callable[[], Result]) -> Result:
        started = self._timer()
        result = work()
        took = self._timer() - started
        self._average_seconds += AVERAGE_WEIGHT * (took - self._average_seconds)
        return result
