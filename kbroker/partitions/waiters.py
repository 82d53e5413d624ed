"""Answers that come later: what a handler returns when its work is done but the answer must wait.

What a handler does before it has returned is its ordered work: append, join, create. The reader of a
connection does the ordered work of one request to its end before it looks at the next one, whether
or not anybody still waits for the answer. A handler that need not wait for that is a plain function;
one that has to is a coroutine function, or returns a coroutine. What comes out of either is one of

* the response, or None where no answer is owed; `Encoded` where many are told the same;
* a `Pending`: the answer is given by whoever has what it waits for;
* a `Waiting`: the answer is looked for when its turn comes, and nothing changes if it never is.

The connection's writer resolves the last two one by one, in order, so that a parked fetch delays
later answers on its own connection and never a later append (KIP-74 order of replies). Everything
runs in one event loop: no lock is needed because nothing here awaits between reading and changing
state.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import trio

Response = TypeVar("Response")


class Pending(Generic[Response]):
    """One answer to come.

    `deadline` is in seconds of trio's clock; when it passes first, `on_timeout` makes the answer.
    """

    __slots__ = ("_event", "_on_timeout", "deadline", "on_ready", "ready", "response")

    is_given = True
    """Whoever has what it waits for calls `resolve`; otherwise somebody has to `wait`."""

    def __init__(
        self,
        *,
        deadline: float = math.inf,
        on_timeout: Callable[[], Response] | None = None,
    ) -> None:
        self.ready = False
        self.deadline = deadline
        self.response: Response | None = None
        self.on_ready: Callable[[], None] | None = None
        """Called once, when the answer is there. It must not raise."""
        self._on_timeout = on_timeout
        self._event: trio.Event | None = None

    def resolve(self, response: Response | None) -> None:
        """Give the answer; only the first one counts."""
        if self.ready:
            return
        self.ready = True
        self.response = response
        self._on_timeout = None  # it may hold this, and all of the request
        if self._event is not None:
            self._event.set()
        if self.on_ready is not None:
            on_ready, self.on_ready = self.on_ready, None
            on_ready()

    async def until_ready(self) -> None:
        """Wait until the answer is there, at most until the deadline. Several may."""
        if not self.ready:
            if self._event is None:
                self._event = trio.Event()
            with trio.move_on_at(self.deadline):
                await self._event.wait()

    async def wait(self) -> Response | None:
        """Wait for the answer; at the deadline it is made."""
        await self.until_ready()
        self.expire()
        return self.response

    def expire(self) -> None:
        """The deadline has passed: without an answer until now this makes one."""
        if not self.ready:
            self.resolve(self._on_timeout() if self._on_timeout is not None else None)

    def abandon(self) -> None:
        """The one who asked has gone."""
        self.resolve(None)


class Waiting(NamedTuple, Generic[Response]):
    """An answer that is only waited for, as a long poll is.

    `begin` is called when all earlier answers of the connection are given, or never, when the client
    has gone by then: so it must not change anything.
    """

    begin: Callable[[], Awaitable[Response]]


Outcome: TypeAlias = Response | Pending[Response] | Waiting[Response] | None
"""What comes of a request once its ordered work is done."""


class CommitWaiters:
    """Waiters for the high watermark or the durable end offset of a partition to reach their offset.

    Offsets arrive in rising order, so a queue is enough: `advance` pops from its left. Most partitions
    never have a waiter, and no queue.
    """

    __slots__ = ("queue",)

    def __init__(self) -> None:
        self.queue: deque[tuple[int, Callable[[bool], None]]] | None = None
        """Nobody waits while it is empty or None; asking it is cheaper than a call."""

    def add(self, offset: int, done: Callable[[bool], None]) -> None:
        """Call `done(True)` when that end reaches `offset`, `done(False)` if it cannot."""
        if self.queue is None:
            self.queue = deque()
        self.queue.append((offset, done))

    def advance(self, end: int) -> None:
        queue = self.queue
        while queue and queue[0][0] <= end:
            queue.popleft()[1](True)

    def fail(self) -> None:
        """The partition went offline or its leader changed: what they wait for will not come."""
        queue = self.queue
        while queue:
            queue.popleft()[1](False)


NEWS_SECONDS = 0.01
"""How long news without records wait for records that they can go with. With less, each record that
producers wait for costs its followers two answers."""


class Parked(Protocol):
    """Who hears of a partition."""

    def grow(self, size: int) -> None:
        """So many more bytes are readable."""

    def settled(self) -> None:
        """Transactions have ended: more can be read than the bytes of their markers."""

    def wake(self) -> None:
        """What it tells its readers changed for another reason: deleted, moved, stopping."""


class FetchWait:
    """A parked fetch: woken once, by enough new bytes or by anything that changes the answer."""

    __slots__ = ("_event", "_missing_bytes", "_scope", "deadline")

    def __init__(self, missing_bytes: int, deadline: float) -> None:
        self.deadline = deadline
        """When it ends in any case, in seconds of trio's clock."""
        self._missing_bytes = missing_bytes
        self._event = trio.Event()
        self._scope: trio.CancelScope | None = None

    def grow(self, size: int) -> None:
        """A partition of this fetch has `size` more readable bytes."""
        self.count(size)
        if self.is_due:
            self._event.set()

    def count(self, size: int) -> None:
        """As `grow`, but somebody else says when the fetch wakes."""
        self._missing_bytes -= size

    @property
    def is_due(self) -> bool:
        """Whether there are as many bytes as it waits for."""
        return self._missing_bytes <= 0

    @property
    def is_woken(self) -> bool:
        return self._event.is_set()

    def settled(self) -> None:
        """Transactions of a partition have ended."""
        self._event.set()

    def wake(self) -> None:
        """The answer changed for another reason: topic deleted, leader moved, node stopping."""
        self._event.set()

    def hurry(self) -> None:
        """There is news without records: it may be told soon."""
        self.deadline = min(self.deadline, trio.current_time() + NEWS_SECONDS)
        if self._scope is not None:
            self._scope.deadline = self.deadline

    async def wait(self) -> None:
        with trio.move_on_at(self.deadline) as self._scope:
            await self._event.wait()
