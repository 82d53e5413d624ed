"""A limited number of slots, shared fairly between clients."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

import trio


class FairSlots:
    """Slots for work, given to waiting clients in round-robin order.

    The requests of one client get their slots in order.
    """

    __slots__ = ("_free", "_waiters")

    def __init__(self, total: int) -> None:
        self._free = total
        self._waiters: dict[Hashable, deque[trio.Event]] = {}

    @asynccontextmanager
    async def taken(self, client: Hashable) -> AsyncIterator[None]:
        """Wait for a slot, and hold it within the block."""
        await self._take(client)
        try:
            yield
        finally:
            self._release()

    async def _take(self, client: Hashable) -> None:
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
        """Pass the slot on to the client that has waited for the longest since its last slot."""
        client = next(iter(self._waiters), None)
        if client is None:
            self._free += 1
            return
        waiters = self._waiters.pop(client)
        waiters.popleft().set()
        if waiters:
            self._waiters[client] = waiters  # after all other clients

    def _forget(self, client: Hashable, given: trio.Event) -> None:
        waiters = self._waiters[client]
        waiters.remove(given)
        if not waiters:
            del self._waiters[client]
