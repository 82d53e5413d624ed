"""Limit of the memory of large incomplete requests, over all connections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import trio

# Seconds between two checks for slow requests, while other requests wait.
CHECK_SECONDS = 1.0
# Minimum rate of a request in bytes per second while other requests wait for its memory.
BYTES_PER_SECOND_MIN = 64 * 1024
# Fraction of the limit that the requests of one host may use while other hosts use some.
SHARE_OF_HOST = 0.5
# Fraction of the limit that almost complete requests may use beyond the limit.
SHARE_BEYOND = 0.125


class RequestMemory:
    """Memory of large requests: counts received bytes against a limit.

    Only received bytes count, not announced sizes. Above the limit, requests wait, but never
    forever. Two kinds of requests continue anyway: one request at a time, from the host that holds
    the least memory, and almost complete requests, bounded by `SHARE_BEYOND`. So the limit can be
    exceeded by one request, by `SHARE_BEYOND`, and by one read of each connection. A request that
    arrives too slowly is cancelled while other requests wait, after two checks in a row: before one
    check, the event loop may have been too busy to receive its bytes.

    Args:
        limit: Maximum number of bytes; 0 or less for no limit.
    """

    def __init__(self, limit: int) -> None:
        self.used = 0
        self._limit = limit
        self._of_host: Counter[str] = Counter()
        # Waiting requests, the longest wait first.
        self._waiting: dict[Claim, trio.Event] = {}
        # The request that continues although the limit is exceeded.
        self._first: Claim | None = None
        # Almost complete requests that continue too, with the bytes that were missing.
        self._beyond: dict[Claim, int] = {}
        self._claims: dict[Claim, None] = {}
        # Received bytes at the last check, of each request that did not wait since.
        self._seen: dict[Claim, int] = {}
        # Requests that were too slow at the last check.
        self._slow: set[Claim] = set()
        self._checked_at = trio.current_time()

    def add(self, claim: Claim, size: int) -> None:
        """Count received bytes."""
        self.used += size
        self._of_host[claim.host] += size
        self._claims[claim] = None

    def may_continue(self, claim: Claim) -> bool:
        """Return True if more of a request may be received without `wait`."""
        return claim is self._first or claim in self._beyond or self._fits(claim)

    def remove(self, claim: Claim, size: int) -> None:
        """Remove a request with `size` received bytes."""
        self.used -= size
        self._of_host[claim.host] -= size
        if not self._of_host[claim.host]:
            del self._of_host[claim.host]
        del self._claims[claim]
        self._seen.pop(claim, None)
        self._slow.discard(claim)
        self._beyond.pop(claim, None)
        if claim is self._first:
            self._first = None
        self._wake_allowed()

    async def wait(self, claim: Claim) -> None:
        """Wait until more of a request may be received."""
        event = self._waiting[claim] = trio.Event()
        self._seen.pop(claim, None)
        self._wake_allowed()
        try:
            while not event.is_set():
                self._cancel_slow_requests()
                with trio.move_on_after(CHECK_SECONDS):
                    await event.wait()
        finally:
            self._waiting.pop(claim, None)

    def _fits(self, claim: Claim) -> bool:
        if self._limit <= 0 or self.used == claim.held:
            return True
        of_host = self._of_host[claim.host]
        is_alone = of_host == claim.held or of_host == self.used
        return self.used <= self._limit and (is_alone or of_host <= self._limit * SHARE_OF_HOST)

    def _wake_allowed(self) -> None:
        """Wake the waiting requests that may continue."""
        for claim in [each for each in self._waiting if self._fits(each)]:
            self._wake(claim)
        if self._waiting and self._first is None:
            self._first = min(self._waiting, key=lambda each: self._of_host[each.host])
            self._wake(self._first)
        available = self._limit * SHARE_BEYOND - sum(self._beyond.values())
        for claim in sorted(self._waiting, key=lambda each: each.left):
            available -= claim.left
            if available < 0:
                break
            self._beyond[claim] = claim.left
            self._wake(claim)

    def _wake(self, claim: Claim) -> None:
        self._waiting.pop(claim).set()

    def _cancel_slow_requests(self) -> None:
        """Cancel the requests that received too few bytes before this check and the last one.

        Requests that waited or completed in the meantime are exempt. After a longer time without
        checks, for example while the process was suspended, only record the received bytes.
        """
        now = trio.current_time()
        seconds = now - self._checked_at
        if seconds < CHECK_SECONDS:
            return
        slow: list[Claim] = []
        if seconds < 2 * CHECK_SECONDS:
            for claim, held in self._seen.items():
                if claim.left and claim.held - held < BYTES_PER_SECOND_MIN * seconds:
                    slow.append(claim)
                    if claim in self._slow:
                        claim.cancel()
        self._slow = set(slow)
        self._checked_at = now
        self._seen = {each: each.held for each in self._claims if each not in self._waiting}


def _do_nothing() -> None:
    """Do nothing: the connection is closed."""


class Claim:
    """Memory of one connection's large request.

    Args:
        memory: Memory of all requests.
        host: Address of the client.
        cancel: Closes the connection, because it is too slow while other requests wait.

    Attributes:
        held: Received bytes.
        left: Missing bytes.
        is_waiting: The node delays the request; True until `wait` has returned.
    """

    __slots__ = ("_memory", "cancel", "held", "host", "is_waiting", "left")

    def __init__(self, memory: RequestMemory, host: str, cancel: Callable[[], None]) -> None:
        self.host = host
        self.cancel = cancel
        self.held = 0
        self.left = 0
        self.is_waiting = False
        self._memory = memory

    @property
    def may_continue(self) -> bool:
        """True if more bytes may be received."""
        return self._memory.may_continue(self)

    def count(self, held: int, left: int) -> None:
        """Update the number of received and missing bytes."""
        size, self.held, self.left = held - self.held, held, left
        self._memory.add(self, size)

    async def wait(self) -> None:
        """Wait until more may be received."""
        self.is_waiting = True
        try:
            await self._memory.wait(self)
        finally:
            self.is_waiting = False

    def release(self) -> None:
        """Stop counting the request, because it is handled or will never be complete."""
        if self.held or self.left:  # only the length of the request may have arrived
            self._memory.remove(self, self.held)
            self.held = self.left = 0

    def end(self) -> None:
        """Release the request and the reference to the closed connection."""
        self.release()
        self.cancel = _do_nothing
