"""A bound on the bytes of large requests that are being received, over all connections."""

from __future__ import annotations

from collections import deque

import trio


class RequestMemory:
    """Hands out at most `limit` bytes, without one (0 or less) any; who asks for more waits in turn.

    One request that is larger than the limit is let in alone, so that no request waits for ever.
    """

    def __init__(self, limit: int) -> None:
        self.used = 0
        self._limit = limit
        self._waiting: deque[tuple[int, trio.Event]] = deque()

    async def claim(self, size: int) -> None:
        """Wait until `size` bytes are free and take them."""
        if not self._waiting and self._fits(size):
            self.used += size
            return
        turn = (size, trio.Event())
        self._waiting.append(turn)
        try:
            await turn[1].wait()
        except trio.Cancelled:
            if turn[1].is_set():
                self.release(size)
            else:
                self._waiting.remove(turn)
            raise

    def release(self, size: int) -> None:
        """Give `size` bytes back."""
        self.used -= size
        while self._waiting and self._fits(self._waiting[0][0]):
            waiting_size, event = self._waiting.popleft()
            self.used += waiting_size
            event.set()

    def _fits(self, size: int) -> bool:
        return self._limit <= 0 or not self.used or self.used + size <= self._limit
