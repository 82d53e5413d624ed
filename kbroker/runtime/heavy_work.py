"""CPU-intensive work in a worker thread, so that it does not block the event loop."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Generic, Protocol, TypeVar

import trio

from .cpu_shares import CpuAccount, CpuShares
from .threads import InThread, run_in_thread

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)

# Steps of one client's work before other clients get the thread (some milliseconds).
STEPS_AT_ONCE = 16


class Steps(Protocol[Result_co]):
    """Work in steps of about a millisecond each."""

    def step(self) -> bool:
        """Do one step. Return True if it was the last one."""

    def result(self) -> Result_co:
        """Return the result, after the last step."""


class HeavyWork:
    """Runs functions in a worker thread, one at a time.

    Functions share the interpreter with the event loop, so a second thread would slow down clients
    and finish nothing earlier.

    Work is heavy if it takes more than `STEPS_AT_ONCE` steps, or if its client has used more than its
    share of the thread's CPU time. Only one piece of heavy work is in progress at a time, which bounds
    its memory, and light work runs between its steps. The work of the client with the least CPU time
    runs first; see `CpuShares`.
    """

    __slots__ = ("_cpu_seconds", "_heavy", "_in_thread", "_shares", "_thread")

    def __init__(
        self,
        in_thread: InThread = run_in_thread,
        *,
        cpu_seconds: Callable[[], float] = time.thread_time,
    ) -> None:
        """Create the queues.

        Args:
            in_thread: Runs functions.
            cpu_seconds: Clock of the CPU time that the calling thread has used, in seconds. Other
                processes on a busy machine do not move it.
        """
        self._in_thread = in_thread
        self._cpu_seconds = cpu_seconds
        self._shares = CpuShares()
        self._thread = _LeastFirst(self._shares)
        self._heavy = _LeastFirst(self._shares)

    async def run(self, work: Callable[[], Result], client: CpuAccount) -> Result:
        """Run a function as one step.

        Args:
            work: The function. It must not touch a node's state.
            client: The client to which the CPU time is charged.

        Returns:
            The result of `work`. Exceptions of `work` are passed on.
        """
        done = await self._run_light(work, client)
        if done is not None:
            return done[0]
        async with self._heavy.acquire(client):
            return await self._run(work, client)

    async def run_in_steps(self, begin: Callable[[], Steps[Result]], client: CpuAccount) -> Result:
        """Run work in steps, so that light work of other clients can run in between.

        Args:
            begin: Starts the work. It is called a second time if the work is heavy: the first attempt
                is dropped, and the work starts again when no other heavy work is in progress. It must
                not touch a node's state.
            client: The client to which the CPU time is charged.

        Returns:
            The result of the last step. Exceptions of the steps are passed on.
        """
        done = await self._run_light(_Progress(begin).run_steps, client)
        if done is not None and done[0] is not None:
            return done[0][0]
        async with self._heavy.acquire(client):
            progress = _Progress(begin)
            while (last := await self._run(progress.run_steps, client)) is None:
                pass
            return last[0]

    async def _run_light(
        self, work: Callable[[], Result], client: CpuAccount
    ) -> tuple[Result] | None:
        """Run a function and return its result in a tuple, or return None if the work is heavy.

        The check follows the wait for the thread, because other connections of the same client may
        have been served in the meantime.
        """
        async with self._thread.acquire(client):
            if self._shares.is_heavy(client, trio.current_time()):
                return None
            return (await self._run_charged(work, client),)

    async def _run(self, work: Callable[[], Result], client: CpuAccount) -> Result:
        async with self._thread.acquire(client):
            return await self._run_charged(work, client)

    async def _run_charged(self, work: Callable[[], Result], client: CpuAccount) -> Result:
        used: list[float] = []
        try:
            return await self._in_thread(partial(_run_measured, work, self._cpu_seconds, used))
        finally:
            self._shares.charge(client, sum(used), trio.current_time())


def _run_measured(
    work: Callable[[], Result], cpu_seconds: Callable[[], float], used: list[float]
) -> Result:
    """Run a function, and append the CPU time in seconds that it used."""
    began = cpu_seconds()
    try:
        return work()
    finally:
        used.append(cpu_seconds() - began)


class _Progress(Generic[Result]):
    """Work that starts with its first step."""

    def __init__(self, begin: Callable[[], Steps[Result]]) -> None:
        self._begin = begin
        self._work: Steps[Result] | None = None

    def run_steps(self) -> tuple[Result] | None:
        """Run up to `STEPS_AT_ONCE` steps. Return the result in a tuple, or None."""
        if self._work is None:
            self._work = self._begin()
        for _ in range(STEPS_AT_ONCE):
            if self._work.step():
                return (self._work.result(),)
        return None


class _LeastFirst:
    """A lock that the waiter with the least CPU time gets next; see `CpuShares.sort_key`."""

    __slots__ = ("_is_held", "_shares", "_waiters")

    def __init__(self, shares: CpuShares) -> None:
        self._is_held = False
        self._shares = shares
        self._waiters: dict[trio.Event, CpuAccount] = {}  # in order of arrival

    @asynccontextmanager
    async def acquire(self, client: CpuAccount) -> AsyncIterator[None]:
        """Hold the lock for a client within the block."""
        if self._is_held:
            await self._wait(client)
        self._is_held = True
        try:
            yield
        finally:
            self._release()

    async def _wait(self, client: CpuAccount) -> None:
        granted = trio.Event()
        self._waiters[granted] = client
        try:
            await granted.wait()
        except trio.Cancelled:
            if self._waiters.pop(granted, None) is None:  # the lock was passed on to this waiter
                self._release()
            raise

    def _release(self) -> None:
        """Pass the held lock to the next waiter, or free it if no client waits."""
        waiters, now = self._waiters, trio.current_time()
        first = min(
            waiters, key=lambda each: self._shares.sort_key(waiters[each], now), default=None
        )
        if first is None:
            self._is_held = False
        else:
            del waiters[first]
            first.set()
