"""Work that keeps a processor busy for long, off the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

Result = TypeVar("Result")


class HeavyWork:
    """Runs functions in a worker thread, one at a time, in the order in which they were given.

    One at a time, because they share the interpreter with the event loop: a second thread would
    take turns away from clients and finish nothing earlier.
    """

    __slots__ = ("_turn",)

    def __init__(self) -> None:
        self._turn = trio.CapacityLimiter(1)

    async def run(self, work: Callable[[], Result]) -> Result:
        """Return what `work` returns, or raise what it raises. It must not touch a node's state."""
        return await trio.to_thread.run_sync(work, limiter=self._turn)
