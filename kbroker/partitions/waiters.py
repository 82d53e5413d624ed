"""Delayed responses: results of handlers whose work is done but whose response must wait.

The work of a handler until it returns is ordered: append, join, create. The reader of a connection
finishes the ordered work of a request before it starts the next request, even if the client is
disconnected. A handler that does not wait is a plain function. Otherwise it is a coroutine function
or returns a coroutine. The result is one of these:

* the response, or None if there is none; `Encoded` if many clients get the same response;
* a `Pending`: the response is set by the component that has the awaited result;
* a `Waiting`: the response is computed after the earlier responses of the connection, or never.

The connection's writer resolves `Pending` and `Waiting` results in order. So a pending fetch delays
later responses on its connection, but no later append (KIP-74 order of replies). Everything runs in
one event loop. No lock is needed, because nothing here awaits between reading and changing state.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import trio

Response = TypeVar("Response")


class Pending(Generic[Response]):
    """A response that is set later.

    At `deadline` (in seconds of trio's clock) `on_timeout` returns the response.
    """

    __slots__ = ("_event", "_on_timeout", "deadline", "on_ready", "ready", "response")

    # True if another component calls `resolve`; otherwise the owner calls `wait`.
    is_given = True

    def __init__(
        self,
        *,
        deadline: float = math.inf,
        on_timeout: Callable[[], Response] | None = None,
    ) -> None:
        self.ready = False
        self.deadline = deadline
        self.response: Response | None = None
        # Called once when the response is set. It must not raise.
        self.on_ready: Callable[[], None] | None = None
        self._on_timeout = on_timeout
        self._event: trio.Event | None = None

    def resolve(self, response: Response | None) -> None:
        """Set the response; later calls are ignored."""
        if self.ready:
            return
        self.ready = True
        self.response = response
        self._on_timeout = None  # the callback may reference this object and the whole request
        if self._event is not None:
            self._event.set()
        if self.on_ready is not None:
            on_ready, self.on_ready = self.on_ready, None
            on_ready()

    async def until_ready(self) -> None:
        """Wait until the response is set or the deadline passes. Several tasks may wait."""
        if not self.ready:
            if self._event is None:
                self._event = trio.Event()
            with trio.move_on_at(self.deadline):
                await self._event.wait()

    async def wait(self) -> Response | None:
        """Wait for the response; at the deadline, use that of `on_timeout`."""
        await self.until_ready()
        self.expire()
        return self.response

    def expire(self) -> None:
        """Set the timeout response if there is no response yet."""
        if not self.ready:
            self.resolve(self._on_timeout() if self._on_timeout is not None else None)

    def abandon(self) -> None:
        """Discard the response, because the client disconnected."""
        self.resolve(None)


class Waiting(NamedTuple, Generic[Response]):
    """A response that is only waited for, for example a long poll.

    Attributes:
        begin: Called once all earlier responses of the connection are sent. It is never called if
            the client disconnects before.
        abandon: Called if the response is dropped, even after `begin`; None for nothing to release.
    """

    begin: Callable[[], Awaitable[Response]]
    abandon: Callable[[], None] | None = None


# The result of a request once its ordered work is done.
Outcome: TypeAlias = Response | Pending[Response] | Waiting[Response] | None


class CommitWaiters:
    """Waiters for an offset of the high watermark or of the durable end of a partition.

    Offsets arrive in ascending order, so a queue is sufficient: `advance` pops from its left. Most
    partitions never have a waiter, and no queue.
    """

    __slots__ = ("queue",)

    def __init__(self) -> None:
        # Empty or None if there are no waiters; callers check it to save a call.
        self.queue: deque[tuple[int, Callable[[bool], None]]] | None = None

    def add(self, offset: int, done: Callable[[bool], None]) -> None:
        """Call `done(True)` once `offset` is reached, or `done(False)` if that is impossible."""
        if self.queue is None:
            self.queue = deque()
        self.queue.append((offset, done))

    def advance(self, end: int) -> None:
        queue = self.queue
        while queue and queue[0][0] <= end:
            queue.popleft()[1](True)

    def fail(self) -> None:
        """Fail all waiters: the partition went offline or its leader changed."""
        queue = self.queue
        while queue:
            queue.popleft()[1](False)


# Maximum delay of a high watermark update for a follower. The next records may then be sent in the
# same response.
# With a shorter delay each record with acks=all costs two responses per follower.
HIGH_WATERMARK_DELAY_SECONDS = 0.01


class FetchListener(Protocol):
    """A listener for changes of a partition."""

    def grow(self, size: int) -> None:
        """Notify of `size` more readable bytes."""

    def on_transactions_ended(self) -> None:
        """Notify of ended transactions: more records than the marker became readable."""

    def wake(self) -> None:
        """Notify of another change of the response: partition deleted or moved, node stopping."""


class FetchWait:
    """A pending fetch, woken once by enough new bytes or by another change of its response."""

    __slots__ = ("_event", "_missing_bytes", "_scope", "deadline")

    def __init__(self, missing_bytes: int, deadline: float) -> None:
        # End of the wait, in seconds of trio's clock.
        self.deadline = deadline
        self._missing_bytes = missing_bytes
        self._event = trio.Event()
        self._scope: trio.CancelScope | None = None

    def grow(self, size: int) -> None:
        """Count `size` more readable bytes, and wake the fetch if they suffice."""
        self.count(size)
        if self.is_due:
            self._event.set()

    def count(self, size: int) -> None:
        """Count `size` more readable bytes; another component wakes the fetch."""
        self._missing_bytes -= size

    @property
    def is_due(self) -> bool:
        """True if there are enough bytes."""
        return self._missing_bytes <= 0

    @property
    def is_woken(self) -> bool:
        return self._event.is_set()

    def on_transactions_ended(self) -> None:
        """Wake the fetch, because transactions of a partition ended."""
        self._event.set()

    def wake(self) -> None:
        """Wake the fetch: the topic was deleted, the leader moved, or the node is stopping."""
        self._event.set()

    def hurry(self) -> None:
        """Shorten the wait, because there is an update without records."""
        self.deadline = min(self.deadline, trio.current_time() + HIGH_WATERMARK_DELAY_SECONDS)
        if self._scope is not None:
            self._scope.deadline = self.deadline

    async def wait(self) -> None:
        with trio.move_on_at(self.deadline) as self._scope:
            await self._event.wait()
