"""A limited number of places that clients take in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

import trio


class FairPlaces:
    """Places for work, given to waiting clients round-robin and to one client in order.

    A client with many requests waits for itself: each other client gets a place in between.
    """

    __slots__ = ("_free", "_waiting")

    def __init__(self, places: int) -> None:
        """Args:
        places: how many pieces of work go on at the same time.
        """
        self._free = places
        self._waiting: dict[Hashable, deque[trio.Event]] = {}

    @asynccontextmanager
    async def place(self, client: Hashable) -> AsyncIterator[None]:
        """Wait for a place, and hold it for the block."""
        await self._take(client)
        try:
            yield
        finally:
            self._give_back()

    async def _take(self, client: Hashable) -> None:
        if self._free:
            self._free -= 1
            return
        mine = trio.Event()
        self._waiting.setdefault(client, deque()).append(mine)
        try:
            await mine.wait()
        except BaseException:
            if mine.is_set():
                self._give_back()
            else:
                self._leave(client, mine)
            raise

    def _leave(self, client: Hashable, mine: trio.Event) -> None:
        line = self._waiting[client]
        line.remove(mine)
        if not line:
            del self._waiting[client]

    def _give_back(self) -> None:
        """Pass a place on to the client that got one the longest time ago."""
        client = next(iter(self._waiting), None)
        if client is None:
            self._free += 1
            return
        line = self._waiting.pop(client)
        line.popleft().set()
        if line:
            self._waiting[client] = line
