"""Reads from disk in worker threads, so that the event loop reads only from memory."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TypeVar

import trio

from kbroker.storage.cached import NotCached, Reading, failing, only_cached, waiting

from .threads import InThread, run_in_thread
from .time_slices import Wanted

Result = TypeVar("Result")

# Maximum number of clients that wait for a disk in threads. Syncs, which acks wait for, use the
# other threads.
THREADS_MAX = 8


class DiskReads:
    """Loads data that a read did not find in memory (see `kbroker.storage.cached`).

    Args:
        in_thread: Runs functions in a worker thread.
    """

    __slots__ = ("_in_thread", "_threads")

    def __init__(self, in_thread: InThread = run_in_thread) -> None:
        self._in_thread = in_thread
        self._threads = trio.Semaphore(THREADS_MAX)

    async def load(self, absent: NotCached) -> None:
        """Load data into memory. Errors are set in its `failure`, or raised by the next read."""
        async with self._threads:
            await self._in_thread(absent.load)

    def in_pieces(self, read: Callable[[Reading], Result]) -> Generator[Wanted, None, Result]:
        """Call `read` as a generator for `TimeSlice.run`, without waiting for a disk.

        The event loop waits for the disk only if loaded data is evicted again before the next call.

        Args:
            read: Reads, with the given policy for data that is not in memory. May be called several
                times.

        Returns:
            The result of `read`.
        """
        loaded: NotCached | None = None
        while True:
            try:
                return read(only_cached)
            except NotCached as absent:
                # Drop the traceback: it would keep its frames and their open files alive.
                missing = absent.with_traceback(None)
            if loaded is not None and loaded.has_loaded(missing):
                return read(waiting)
            yield partial(self.load, missing)
            if missing.failure is not None:
                return read(failing(missing.failure))
            loaded = missing

    async def read(self, read: Callable[[Reading], Result]) -> Result:
        """Call `read` as `in_pieces` does, for callers that may wait."""
        work = self.in_pieces(read)
        while True:
            try:
                wanted = next(work)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            if wanted is not None:
                await wanted()
