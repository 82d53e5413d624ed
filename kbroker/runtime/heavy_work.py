"""Work that keeps a processor busy for long, off the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import trio

from .threads import InThread, run_in_thread

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)

STEPS_AT_ONCE = 16
"""Steps of one client's work before other clients get the thread: some milliseconds."""
HEAVY_SECONDS = 0.1
"""CPU time that a client may use beyond its share before its work counts as heavy."""
SHARE = 0.5
"""Fraction of the thread's time that a client may use before its work counts as heavy."""


class Steps(Protocol[Result_co]):
    """Work in steps of about a millisecond each."""

    def step(self) -> bool:
        """Do one step. Return True if it was the last one."""

    def result(self) -> Result_co:
        """Return the result, after the last step."""


class HeavyClient:
    """CPU time that was used for one client, normally a connection."""

    __slots__ = ("busy_until", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        """Seconds that the thread has worked for the client."""
        self.busy_until = 0.0
        """Time of trio's clock from which on the client is within its share."""

    def charge(self, seconds: float, now: float) -> None:
        """Count seconds that the thread has worked for the client."""
        self.seconds += seconds
        self.busy_until = max(self.busy_until, now) + seconds / SHARE

    def is_heavy(self, now: float) -> bool:
        return self.busy_until > now + HEAVY_SECONDS / SHARE


class HeavyWork:
    """Runs functions in a worker thread, one at a time.

    Functions share the interpreter with the event loop, so a second thread would slow down clients
    and finish nothing earlier.

    Light work runs in the order in which it was submitted. Work is heavy if it takes more than
    `STEPS_AT_ONCE` steps, or if its client has used more than its share. Only one piece of heavy work
    is in progress at a time, which bounds its memory, and light work runs between its steps. The heavy
    work of the client with the least CPU time runs first.
    """

    __slots__ = ("_heavy", "_in_thread", "_thread")

    def __init__(self, in_thread: InThread = run_in_thread) -> None:
        self._in_thread = in_thread
        self._thread = trio.Lock()  # first in, first out
        self._heavy = _LeastFirst()

    async def run(self, work: Callable[[], Result], client: HeavyClient | None = None) -> Result:
        """Run a function as one step.

        Args:
            work: The function. It must not touch a node's state.
            client: The client to which the CPU time is charged, None for the node itself.

        Returns:
            The result of `work`. Exceptions of `work` are passed on.
        """
        client = client or HeavyClient()
        if not client.is_heavy(trio.current_time()):
            return await self._run(work, client)
        async with self._heavy.turn(client):
            return await self._run(work, client)

    async def run_in_steps(self, begin: Callable[[], Steps[Result]], client: HeavyClient) -> Result:
        """Run work in steps, so that light work of other clients can run in between.

        Args:
            begin: Starts the work. It is called a second time if the work is heavy: the first attempt
                is dropped, and the work starts again when no other heavy work is in progress. It must
                not touch a node's state.
            client: The client to which the CPU time is charged.

        Returns:
            The result of the last step. Exceptions of the steps are passed on.
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
    """Work that starts with its first step."""

    def __init__(self, begin: Callable[[], Steps[Result]]) -> None:
        self._begin = begin
        self._work: Steps[Result] | None = None

    def go_on(self) -> tuple[Result] | None:
        """Do up to `STEPS_AT_ONCE` steps; return the result in a tuple after the last step, else None."""
        if self._work is None:
            self._work = self._begin()
        for _ in range(STEPS_AT_ONCE):
            if self._work.step():
                return (self._work.result(),)
        return None


class _LeastFirst:
    """A lock that the waiting client with the least CPU time gets next."""

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
    """Context manager that holds the lock for one client."""

    def __init__(self, lock: _LeastFirst, client: HeavyClient) -> None:
        self._lock = lock
        self._client = client

    async def __aenter__(self) -> None:
        await self._lock.acquire(self._client)

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()
