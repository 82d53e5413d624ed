"""A bound on the bytes of large requests that are being received, over all connections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import trio

LOOK_SECONDS = 1.0
"""How often it is looked for requests that hardly come on, while others wait."""
BYTES_PER_SECOND_MIN = 64 * 1024
"""A request that comes more slowly is given up when others wait for its memory."""
SHARE_OF_HOST = 0.5
"""How much of the limit the requests from one address may take while others have some."""


class RequestMemory:
    """Counts the bytes of large requests that have come, against `limit`; 0 or less is no limit.

    What is announced costs nothing. Who has received more than there is room for waits, but nobody
    for ever: of those who wait the one to whom least is left goes on in any case, so the limit is
    exceeded by one request at most; and a request of which hardly anything comes is given up while
    others wait.
    """

    def __init__(self, limit: int) -> None:
        self.used = 0
        self._limit = limit
        self._of_host: Counter[str] = Counter()
        self._waiting: dict[Claim, trio.Event] = {}
        self._beyond: Claim | None = None
        """The one that goes on although there is no room."""
        self._claims: dict[Claim, None] = {}
        self._seen: dict[Claim, int] = {}
        """How much of each request had come at the last look."""
        self._looked_at = trio.current_time()

    def add(self, claim: Claim, size: int) -> bool:
        """Count bytes that have come. Returns False when `wait` comes before the next ones."""
        self.used += size
        self._of_host[claim.host] += size
        self._claims[claim] = None
        return not claim.left or self.may_exceed(claim) or self._has_room(claim)

    def remove(self, claim: Claim, size: int) -> None:
        """Forget a request of which `size` bytes had come."""
        self.used -= size
        self._of_host[claim.host] -= size
        if not self._of_host[claim.host]:
            del self._of_host[claim.host]
        del self._claims[claim]
        if claim is self._beyond:
            self._beyond = None
        self._let_go_on()

    def may_exceed(self, claim: Claim) -> bool:
        """Whether a request goes on although there is no room."""
        return claim is self._beyond

    def is_waiting(self, claim: Claim) -> bool:
        """Whether a request is held up here, and not by its client."""
        return claim in self._waiting

    async def wait(self, claim: Claim) -> None:
        """Wait until more of a request may be received."""
        event = self._waiting[claim] = trio.Event()
        self._let_go_on()
        try:
            while not event.is_set():
                with trio.move_on_after(LOOK_SECONDS):
                    await event.wait()
                self._give_up_slow_ones()
        finally:
            self._waiting.pop(claim, None)

    def _has_room(self, claim: Claim) -> bool:
        if self._limit <= 0 or self.used == claim.held:
            return True
        of_host = self._of_host[claim.host]
        is_alone = of_host == claim.held or of_host == self.used
        return self.used <= self._limit and (is_alone or of_host <= self._limit * SHARE_OF_HOST)

    def _let_go_on(self) -> None:
        """Wake those for whom there is room, and one in any case."""
        for claim in [each for each in self._waiting if self._has_room(each)]:
            self._waiting.pop(claim).set()
        if self._waiting and self._beyond is None:
            self._beyond = min(self._waiting, key=lambda each: each.left)
            self._waiting.pop(self._beyond).set()

    def _give_up_slow_ones(self) -> None:
        """Compare with the last look; the first one of a time without room only takes note."""
        now = trio.current_time()
        seconds = now - self._looked_at
        if not self._waiting or seconds < LOOK_SECONDS:
            return
        if seconds < 2 * LOOK_SECONDS:
            for claim, held in self._seen.items():
                is_slow = claim.held - held < BYTES_PER_SECOND_MIN * seconds
                if is_slow and claim in self._claims and claim not in self._waiting:
                    claim.give_up()
        self._looked_at = now
        self._seen = {each: each.held for each in self._claims if each not in self._waiting}


class Claim:
    """What one connection has received of a large request.

    Parameters: `host` is who sends it; `give_up` ends the connection, which is too slow while others
    wait.
    """

    __slots__ = ("_memory", "give_up", "held", "host", "left")

    def __init__(self, memory: RequestMemory, host: str, give_up: Callable[[], None]) -> None:
        self.host = host
        self.give_up = give_up
        self.held = 0
        self.left = 0
        """Bytes that are still to come."""
        self._memory = memory

    @property
    def is_waiting(self) -> bool:
        """Whether it is not the client that others wait for."""
        return self._memory.is_waiting(self)

    def take(self, size: int, left: int) -> bool:
        """Count `size` bytes that have come, `left` are to follow; see `RequestMemory.add`."""
        self.held += size
        self.left = left
        return self._memory.add(self, size)

    async def wait(self) -> None:
        """Wait until more may be received."""
        await self._memory.wait(self)

    def release(self) -> None:
        """The request is done with, or never will be complete: its bytes no longer count."""
        if self.held:
            self._memory.remove(self, self.held)
            self.held = self.left = 0
