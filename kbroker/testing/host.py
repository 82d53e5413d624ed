"""One event loop in a thread of its own, in which brokers come and go."""

from __future__ import annotations

import errno
import os
import random
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import trio

from kbroker.client.errors import first_error

from .patched_threads import check_threads
from .real_time import steady_seconds

T = TypeVar("T")

STOP_SECONDS = 30
PORTS_REMEMBERED = 1000
_OFFSET_SECONDS_MAX = 200_000


class RealTrioClock(trio.abc.Clock):
    """The clock of an event loop whose timeouts no library can freeze."""

    def __init__(self) -> None:
        # As trio does: times of this clock must not be mistaken for those of another one.
        self._offset = random.SystemRandom().uniform(0, _OFFSET_SECONDS_MAX)

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        return self._offset + steady_seconds()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return deadline - self.current_time()


@dataclass(slots=True, eq=False)
class OpenResource(Generic[T]):
    """Something that is open in the loop until it is released.

    `scope` ends it without a release; `failure` is what it ended with, if it ended by itself.
    """

    value: T
    scope: trio.CancelScope
    release: trio.Event
    closed: trio.Event
    failure: BaseException | None = None


class BrokerThread:
    """Runs async code for programs that are not async.

    Resource handling: the thread ends with `close`, or with the process. Calls may come from any
    thread but its own, and only from the process that created it: a forked child has no such thread.

    Raises:
        RuntimeError: the event loop cannot start in this process; the message says why.
    """

    def __init__(self) -> None:
        check_threads()
        self._process = os.getpid()
        self._open: dict[object, Callable[[], None]] = {}
        """What is open, with what a forked child has to do about it."""
        _call_after_fork(weakref.WeakMethod(self._forked))
        self.ports: deque[int] = deque(maxlen=PORTS_REMEMBERED)
        """Those that brokers had lately: a client of one must not meet another one there."""
        started: Future[tuple[trio.lowlevel.TrioToken, trio.Nursery]] = Future()
        self._end = trio.Event()
        self._ending = False
        self._thread = threading.Thread(
            target=self._run, args=(started,), name="kbroker", daemon=True
        )
        self._thread.start()
        try:
            self._token, self._nursery = started.result()
        except Exception as error:
            raise RuntimeError(_start_failure(error)) from error

    def _run(self, started: Future[tuple[trio.lowlevel.TrioToken, trio.Nursery]]) -> None:
        async def main() -> None:
            async with trio.open_nursery() as nursery:
                started.set_result((trio.lowlevel.current_trio_token(), nursery))
                await self._end.wait()
                nursery.cancel_scope.cancel()

        try:
            trio.run(main, clock=RealTrioClock(), strict_exception_groups=True)
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    @property
    def running(self) -> bool:
        return self.is_own and self._thread.is_alive()

    @property
    def is_own(self) -> bool:
        """True in the process that created the thread, False in its forked children."""
        return os.getpid() == self._process

    def call(self, function: Callable[..., Awaitable[T]], *args: object) -> T:
        """Run an async function in the loop and return what it returns.

        Raises:
            RuntimeError: this is a forked child of the process that has the thread.
        """
        if not self.is_own:
            raise RuntimeError(
                f"this broker runs in process {self._process}, and this is its child {os.getpid()}: "
                "connect clients to bootstrap_servers, or create a broker after the fork"
            )
        return trio.from_thread.run(function, *args, trio_token=self._token)

    def _forked(self) -> None:
        """Give up, in a forked child, what only the parent may use."""
        for give_up in self._open.values():
            give_up()
        self._open.clear()

    def hold(
        self,
        open_it: Callable[[], AbstractAsyncContextManager[T]],
        after_fork: Callable[[T], None] | None = None,
    ) -> OpenResource[T]:
        """Enter a context manager in the loop; it stays open until `release_resource`.

        Args:
            open_it: Returns the context manager.
            after_fork: Called in each forked child with the value, to close what it inherited.

        Raises what entering it raises.
        """

        async def keep(task_status: trio.TaskStatus[OpenResource[T]]) -> None:
            with trio.CancelScope() as scope:
                async with open_it() as value:
                    held = OpenResource(value, scope, trio.Event(), trio.Event())
                    if after_fork is not None:
                        self._open[held] = partial(after_fork, value)
                    task_status.started(held)
                    await held.release.wait()

        async def supervise(task_status: trio.TaskStatus[OpenResource[T]]) -> None:
            """A broker that fails must not take the others of this thread along."""
            held: OpenResource[T] | None = None
            try:
                async with trio.open_nursery() as nursery:
                    held = await nursery.start(keep)
                    task_status.started(held)
            except BaseException as error:
                if held is None or self._ending:
                    raise
                held.failure = error
            finally:
                if held is not None:
                    self._open.pop(held, None)
                    held.closed.set()

        async def start() -> OpenResource[T]:
            try:
                held: OpenResource[T] = await self._nursery.start(supervise)
            except BaseExceptionGroup as group:
                raise first_error(group) from None
            return held

        return self.call(start)

    def wait_for_end(self, held: OpenResource[T], timeout: float) -> bool:
        """Wait until what `hold` opened has ended by itself; False when it did not in time."""

        async def wait() -> bool:
            with trio.move_on_after(timeout):
                await held.closed.wait()
            return held.closed.is_set()

        return self.call(wait)

    def abort(self, held: OpenResource[T]) -> None:
        """End what `hold` opened where it is."""

        async def cancel() -> None:
            held.scope.cancel()
            await held.closed.wait()

        self.call(cancel)

    def release_resource(self, held: OpenResource[T]) -> None:
        """Close what `hold` opened. Raises what it failed with, if it did."""

        async def release() -> None:
            held.release.set()
            await held.closed.wait()

        self.call(release)
        if isinstance(held.failure, BaseExceptionGroup):
            raise first_error(held.failure) from held.failure
        if held.failure is not None:
            raise held.failure

    def close(self) -> None:
        """Close what is open and end the thread."""
        if self.running:
            self._ending = True
            trio.from_thread.run_sync(self._end.set, trio_token=self._token)
            self._thread.join(STOP_SECONDS)


def _call_after_fork(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    """Call a method in each forked child of this process, as long as its object exists."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=partial(_call_if_alive, method))


def _call_if_alive(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    call = method()
    if call is not None:
        call()


def _start_failure(error: Exception) -> str:
    """Return why the event loop cannot start, and what to do about it."""
    reason = f"the broker's event loop cannot start: {error!r}"
    if type(error).__module__.startswith("pytest_socket"):
        return f"{reason}; allow connections to this machine with --allow-hosts=127.0.0.1,::1"
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return f"{reason}; close files, or raise the limit of open files (ulimit -n)"
    return reason
