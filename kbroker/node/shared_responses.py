"""Cache of large encoded responses that are the same for many clients."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable

import trio

from kbroker.protocol.compile import Encoded
from kbroker.runtime.time_slices import Later, TimeSlice

# Maximum number of cached responses, which differ in version and listener.
RESPONSES_MAX = 8

Make = Callable[[], Generator[None, None, Encoded]]


class _PendingResponse:
    """A response that one of its clients is creating."""

    __slots__ = ("changes", "done", "response")

    def __init__(self, changes: int) -> None:
        # Minimum number of changes that the response contains.
        self.changes = changes
        self.done = trio.Event()
        self.response: Encoded | None = None


class SharedResponses:
    """Cache of large encoded responses until their contents change.

    Args:
        count_changes: Returns the number of changes of the contents.
    """

    def __init__(self, count_changes: Callable[[], int]) -> None:
        self._count_changes = count_changes
        self._changes = count_changes()
        self._cached: dict[Hashable, Encoded] = {}
        self._pending: dict[Hashable, _PendingResponse] = {}

    def get(self, key: Hashable, make: Make, time_slice: TimeSlice) -> Encoded | Later[Encoded]:
        """Return the response for a key, or an awaitable that returns it.

        Args:
            key: Everything that the response depends on besides the counted changes.
            make: Creates the response in pieces.
            time_slice: Time slice of the connection.
        """
        self._forget_old()
        known = self._cached.get(key)
        if known is not None:
            return known
        pending = self._pending.get(key)
        if pending is not None:
            return self._wait(pending, key, make, time_slice)
        return time_slice.run(self._create(key, make))

    def _create(self, key: Hashable, make: Make) -> Generator[None, None, Encoded]:
        self._forget_old()
        pending = self._pending[key] = _PendingResponse(self._changes)
        try:
            response = pending.response = yield from make()
        finally:
            del self._pending[key]
            pending.done.set()
        self._forget_old()
        if self._changes == pending.changes:
            self._add_to_cache(key, response)
        return response

    async def _wait(
        self, pending: _PendingResponse, key: Hashable, make: Make, time_slice: TimeSlice
    ) -> Encoded:
        """Wait for a response that contains all changes before the request."""
        changes = self._changes
        while True:
            await pending.done.wait()
            if pending.response is not None and pending.changes >= changes:
                return pending.response
            other = self._pending.get(key)
            if other is None:
                return await time_slice.finish(self._create(key, make))
            pending = other

    def _forget_old(self) -> None:
        changes = self._count_changes()
        if changes != self._changes:
            self._changes = changes
            self._cached.clear()

    def _add_to_cache(self, key: Hashable, response: Encoded) -> None:
        while len(self._cached) >= RESPONSES_MAX:
            del self._cached[next(iter(self._cached))]
        self._cached[key] = response
