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
SHARE_BEYOND = 0.125
"""How much of the limit is left to requests of which little is missing when there is no room."""


class RequestMemory:
    """Counts the bytes of large requests that have come, against `limit`; 0 or less is no limit.

    What is announced costs nothing. Who has received more than there is room for waits, but nobody
    for ever. Two kinds go on in any case: one at a time, from the address that holds the least, and
    those to whom the least is missing, which `SHARE_BEYOND` bounds. So the limit is exceeded by one
    request, by that share, and by what one read of each connection brings. And a request of which
    hardly anything comes is given up while others wait, after one to two looks, however many such
    there are.
    """

    def __init__(self, limit: int) -> None:
        self.used = 0
        self._limit = limit
        self._of_host: Counter[str] = Counter()
        self._waiting: dict[Claim, trio.Event] = {}
        """Who has waited longest stands first."""
        self._first: Claim | None = None
        """The one that goes on although there is no room, however much is missing to it."""
        self._beyond: dict[Claim, int] = {}
        """Others that do, and how much was missing to them."""
        self._claims: dict[Claim, None] = {}
        self._seen: dict[Claim, int] = {}
        """How much had come at the last look of each request that has been free to come since."""
        self._looked_at = trio.current_time()

    def add(self, claim: Claim, size: int) -> None:
        """Count bytes that have come."""
        self.used += size
        self._of_host[claim.host] += size
        self._claims[claim] = None

    def may_go_on(self, claim: Claim) -> bool:
        """Whether more of a request may be received without `wait`."""
        return claim is self._first or claim in self._beyond or self._has_room(claim)

    def remove(self, claim: Claim, size: int) -> None:
        """Forget a request of which `size` bytes had come."""
        self.used -= size
        self._of_host[claim.host] -= size
        if not self._of_host[claim.host]:
            del self._of_host[claim.host]
        del self._claims[claim]
        self._seen.pop(claim, None)
        self._beyond.pop(claim, None)
        if claim is self._first:
            self._first = None
        self._let_go_on()

    async def wait(self, claim: Claim) -> None:
        """Wait until more of a request may be received."""
        event = self._waiting[claim] = trio.Event()
        self._seen.pop(claim, None)
        self._let_go_on()
        try:
            while not event.is_set():
                self._look_for_slow_ones()
                with trio.move_on_after(LOOK_SECONDS):
                    await event.wait()
        finally:
            self._waiting.pop(claim, None)

    def _has_room(self, claim: Claim) -> bool:
        if self._limit <= 0 or self.used == claim.held:
            return True
        of_host = self._of_host[claim.host]
        is_alone = of_host == claim.held or of_host == self.used
        return self.used <= self._limit and (is_alone or of_host <= self._limit * SHARE_OF_HOST)

    def _let_go_on(self) -> None:
        """Wake those who may go on."""
        for claim in [each for each in self._waiting if self._has_room(each)]:
            self._wake(claim)
        if self._waiting and self._first is None:
            self._first = min(self._waiting, key=lambda each: self._of_host[each.host])
            self._wake(self._first)
        room = self._limit * SHARE_BEYOND - sum(self._beyond.values())
        for claim in sorted(self._waiting, key=lambda each: each.left):
            room -= claim.left
            if room < 0:
                break
            self._beyond[claim] = claim.left
            self._wake(claim)

    def _wake(self, claim: Claim) -> None:
        self._waiting.pop(claim).set()

    def _look_for_slow_ones(self) -> None:
        """Give up those of whom hardly anything has come since the last look.

        Who waited or was complete in the meantime is not at fault. After a time without looks, and
        after a time in which nothing ran, this one only takes note.
        """
        now = trio.current_time()
        seconds = now - self._looked_at
        if seconds < LOOK_SECONDS:
            return
        if seconds < 2 * LOOK_SECONDS:
            for claim, held in self._seen.items():
                if claim.left and claim.held - held < BYTES_PER_SECOND_MIN * seconds:
                    claim.give_up()
        self._looked_at = now
        self._seen = {each: each.held for each in self._claims if each not in self._waiting}


def _nobody() -> None:
    """There is no connection any more to be ended."""


class Claim:
    """What one connection has received of a large request.

    Parameters: `host` is who sends it; `give_up` ends the connection, which is too slow while others
    wait.
    """

    __slots__ = ("_memory", "give_up", "held", "host", "is_waiting", "left")

    def __init__(self, memory: RequestMemory, host: str, give_up: Callable[[], None]) -> None:
        self.host = host
        self.give_up = give_up
        self.held = 0
        self.left = 0
        """Bytes that are still to come."""
        self.is_waiting = False
        """Whether the request is held up here, and not by its client: until `wait` has returned,
        not only until there is room."""
        self._memory = memory

    @property
    def may_go_on(self) -> bool:
        """Whether there is room for more."""
        return self._memory.may_go_on(self)

    def count(self, held: int, left: int) -> None:
        """Say that `held` bytes have come and `left` are to follow."""
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
        """The request is done with, or never will be complete: its bytes no longer count."""
        if self.held:
            self._memory.remove(self, self.held)
            self.held = self.left = 0

    def end(self) -> None:
        """The connection has ended: forget it, for it holds this, and what it had received."""
        self.release()
        self.give_up = _nobody
