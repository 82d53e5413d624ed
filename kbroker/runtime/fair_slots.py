"""A number of slots that clients take in turns."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


class FairSlots:
    """Slots for work. If several clients wait, each gets one in turn, whatever others have queued."""

    def __init__(self, total: int) -> None:
        self._free = total
        self._waiters: OrderedDict[str, deque[trio.Event]] = OrderedDict()

    @asynccontextmanager
    async def taken(self, client: str) -> AsyncIterator[None]:
        """Hold a slot within the block."""
        await self._take(client)
        try:
            yield
        finally:
            self._release()

    async def _take(self, client: str) -> None:
        if self._free:
            self._free -= 1
            return
        given = trio.Event()
        self._waiters.setdefault(client, deque()).append(given)
        try:
            await given.wait()
        except BaseException:
            if given.is_set():
                self._release()
            else:
                self._forget(client, given)
            raise

    def _release(self) -> None:
        if not self._waiters:
            self._free += 1
            return
        client, waiters = next(iter(self._waiters.items()))
        given = waiters[0]
        self._forget(client, given)
        if client in self._waiters:
            self._waiters.move_to_end(client)
        given.set()

    def _forget(self, client: str, given: trio.Event) -> None:
        waiters = self._waiters[client]
        waiters.remove(given)
        if not waiters:
            del self._waiters[client]
