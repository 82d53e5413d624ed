"""Work that keeps a processor busy for long, off the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import trio

from .threads import InThread

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)

STEPS_AT_ONCE = 16
"""Steps of one client's work before others have the thread: some milliseconds."""
HEAVY_SECONDS = 0.1
"""Processor time that a client may be ahead of its share before its work counts as heavy."""
SHARE = 0.5
"""Part of the thread's time that a client may use without its work counting as heavy."""


class Steps(Protocol[Result_co]):
    """Work that is done in steps of about a millisecond."""

    def step(self) -> bool:
        """Do one step; True once all is done."""

    def result(self) -> Result_co:
        """Return what comes of it, after the last step."""


class HeavyClient:
    """A client, normally a connection, and the heavy work that was done for it."""

    __slots__ = ("busy_until", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        """Time that the thread has worked for the client."""
        self.busy_until = 0.0
        """Time of trio's clock at which the client has had no more than its share."""

    def charge(self, seconds: float, now: float) -> None:
        """Count time that the thread has worked for the client."""
        self.seconds += seconds
        self.busy_until = max(self.busy_until, now) + seconds / SHARE

    def is_heavy(self, now: float) -> bool:
        return self.busy_until > now + HEAVY_SECONDS / SHARE


class HeavyWork:
    """Runs functions in a worker thread, one at a time.

    One at a time, because they share the interpreter with the event loop: a second thread would
    take time away from clients and finish nothing earlier.

    Light work takes turns in the order in which it comes. Work that does not end within
    `STEPS_AT_ONCE` steps, or of a client that has just used more than its share, is heavy: only one
    piece of heavy work is begun at a time, which bounds the memory that all of them take, and
    light work runs between its steps. The client that has used the least goes first.
    """

    __slots__ = ("_heavy", "_in_thread", "_thread")

    def __init__(self, in_thread: InThread = trio.to_thread.run_sync) -> None:
        self._in_thread = in_thread
        self._thread = trio.Lock()  # who waits for it goes on in order
        self._heavy = _LeastFirst()

    async def run(self, work: Callable[[], Result], client: HeavyClient | None = None) -> Result:
        """Run a function as one step.

        Args:
            work: The function. It must not touch a node's state.
            client: The client that the time is counted for, None for the node itself.

        Returns:
            What `work` returns. Raises what it raises.
        """
        client = client or HeavyClient()
        if not client.is_heavy(trio.current_time()):
            return await self._run(work, client)
        async with self._heavy.turn(client):
            return await self._run(work, client)

    async def run_in_steps(self, begin: Callable[[], Steps[Result]], client: HeavyClient) -> Result:
        """Run work in turns with that of other clients.

        Args:
            begin: Begins the work, perhaps twice: work that turns out to be heavy is dropped, and
                begun again once no other heavy work is in progress. It must not touch a node's state.
            client: The client that the time is counted for.

        Returns:
            The result of the steps. Raises what they raise.
        """
        if not client.is_heavy(trio.current_time()):
            done = await self._run(_Progress(begin).go_on, client)
            if done is not None:
                return done[0]
        async with self._heavy.turn(client):
            progress = _Progress(begin)
            while (done := await self._run(progress.go_on, client)) is None:
                pass
            return done[0]

    async def _run(self, work: Callable[[], Result], client: HeavyClient) -> Result:
        async with self._thread:
            began = trio.current_time()
            try:
                return await self._in_thread(work)
            finally:
                now = trio.current_time()
                client.charge(now - began, now)


class _Progress(Generic[Result]):
    """Work that is begun by its first steps."""

    def __init__(self, begin: Callable[[], Steps[Result]]) -> None:
        self._begin = begin
        self._work: Steps[Result] | None = None

    def go_on(self) -> tuple[Result] | None:
        """Do some steps; returns the result in a tuple once all are done."""
        if self._work is None:
            self._work = self._begin()
        for _ in range(STEPS_AT_ONCE):
            if self._work.step():
                return (self._work.result(),)
        return None


class _LeastFirst:
    """A lock that goes to the waiter whose client has used the least."""

    def __init__(self) -> None:
        self._holder: trio.Event | None = None
        self._waiters: dict[trio.Event, HeavyClient] = {}

    def turn(self, client: HeavyClient) -> _Turn:
        return _Turn(self, client)

    async def acquire(self, client: HeavyClient) -> None:
        mine = trio.Event()
        self._waiters[mine] = client
        if self._holder is None:
            self._call_next()
        try:
            await mine.wait()
        except trio.Cancelled:
            self._waiters.pop(mine, None)
            if self._holder is mine:
                self._call_next()
            raise

    def release(self) -> None:
        self._call_next()

    def _call_next(self) -> None:
        waiters = self._waiters
        self._holder = min(waiters, key=lambda each: waiters[each].busy_until, default=None)
        if self._holder is not None:
            del waiters[self._holder]
            self._holder.set()


class _Turn:
    """The lock while it is held."""

    def __init__(self, lock: _LeastFirst, client: HeavyClient) -> None:
        self._lock = lock
        self._client = client

    async def __aenter__(self) -> None:
        await self._lock.acquire(self._client)

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()
