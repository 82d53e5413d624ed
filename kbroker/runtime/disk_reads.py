"""Bytes that are on the disk only, read off the event loop before somebody wants them in it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TypeVar

import trio

from kbroker.storage.cached import NotCached, Reading, failing, only_cached, waiting

from .threads import InThread, run_in_thread
from .time_slices import Wanted

Result = TypeVar("Result")

AT_ONCE = 8
"""So many clients wait for the disks in threads; syncs, for which acks wait, have the rest of them."""


class DiskReads:
    """Loads what reads did not find in memory (see `kbroker.storage.cached`).

    Parameters: `in_thread` is where it is loaded.
    """

    __slots__ = ("_in_thread", "_places")

    def __init__(self, in_thread: InThread = run_in_thread) -> None:
        self._in_thread = in_thread
        self._places = trio.Semaphore(AT_ONCE)

    async def load(self, absent: NotCached) -> None:
        """Have it in memory, unless it cannot be read, which its `failure` or the next read tells."""
        async with self._places:
            await self._in_thread(absent.load)

    def in_pieces(self, read: Callable[[Reading], Result]) -> Generator[Wanted, None, Result]:
        """What `read` returns, without waiting for a disk in the event loop, except where what was
        loaded is gone again at once.

        Parameters: `read` is given how it has to read from files, and may be called several times.
        """
        loaded: NotCached | None = None
        while True:
            try:
                return read(only_cached)
            except NotCached as absent:
                # Who keeps it would keep its frames, and what is open in them.
                missing = absent.with_traceback(None)
            if loaded is not None and loaded.has_loaded(missing):
                return read(waiting)
            yield partial(self.load, missing)
            if missing.failure is not None:
                return read(failing(missing.failure))
            loaded = missing

    async def read(self, read: Callable[[Reading], Result]) -> Result:
        """As `in_pieces`, for who may wait."""
        work = self.in_pieces(read)
        while True:
            try:
                wanted = next(work)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            if wanted is not None:
                await wanted()
