"""Work that keeps a processor busy for long, off the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

from .threads import InThread

Result = TypeVar("Result")


class HeavyWork:
    """Runs functions in a worker thread, one at a time, in the order in which they were given.

    One at a time, because they share the interpreter with the event loop: a second thread would
    take turns away from clients and finish nothing earlier.
    """

    __slots__ = ("_in_thread", "_turn")

    def __init__(self, in_thread: InThread = trio.to_thread.run_sync) -> None:
        self._in_thread = in_thread
        self._turn = trio.Lock()

    async def run(self, work: Callable[[], Result]) -> Result:
        """Return what `work` returns, or raise what it raises. It must not touch a node's state."""
        async with self._turn:
            return await self._in_thread(work)
