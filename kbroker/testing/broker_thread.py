"""An event loop in a thread, in which several brokers can run."""

from __future__ import annotations

import contextlib
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

# Maximum seconds to wait for the end of the thread.
STOP_SECONDS = 30
# Number of recent ports that new brokers avoid.
RECENT_PORTS_MAX = 1000
# Maximum seconds of the random offset of a clock.
_OFFSET_SECONDS_MAX = 200_000


class RealTrioClock(trio.abc.Clock):
    """Clock of an event loop. Its timeouts expire even if a test library freezes the time."""

    def __init__(self) -> None:
        # A random offset, as in trio, makes it obvious if times of two clocks are mixed up.
        self._offset = random.SystemRandom().uniform(0, _OFFSET_SECONDS_MAX)

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        return self._offset + steady_seconds()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return deadline - self.current_time()


@dataclass(slots=True, eq=False)
class OpenResource(Generic[T]):
    """A context manager that stays open in the event loop until `BrokerThread.release_resource`.

    Attributes:
        value: Object that the context manager returned on entry.
        scope: Cancel scope of the context manager; `abort` cancels it.
        release: Set to exit the context manager.
        closed: Set when the context manager has exited.
        failure: Exception that ended the context manager before a release, if any.
    """

    value: T
    scope: trio.CancelScope
    release: trio.Event
    closed: trio.Event
    failure: BaseException | None = None


class BrokerThread:
    """Thread with an event loop that runs async code for synchronous programs.

    The thread ends with `close` or with the process. Any other thread of the same process may call
    the methods. A forked child of the process does not have the thread.

    Raises:
        RuntimeError: The event loop cannot start in this process; the message has the reason.
    """

    def __init__(self) -> None:
        check_threads()
        self._process = os.getpid()
        # Functions that close the descriptors of open resources in a forked child, by resource.
        self._open: dict[object, Callable[[], None]] = {}
        _call_after_fork(weakref.WeakMethod(self._close_inherited))
        # Ports of recent brokers. Clients of these brokers may still try to connect, so new brokers
        # do not use the ports.
        self.ports: deque[int] = deque(maxlen=RECENT_PORTS_MAX)
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
        """Run an async function in the loop.

        If the call is interrupted, for example by Ctrl+C or by the timeout of a test, the function is
        cancelled.

        Args:
            function: Async function.
            args: Its positional arguments.

        Returns:
            The result of the function.

        Raises:
            RuntimeError: The caller is a forked child of the process that has the thread, or runs in
                an event loop of trio, or the thread has ended.
        """
        if trio.lowlevel.in_trio_task():
            raise RuntimeError(
                "this call would block the event loop of trio that runs it: call it in a thread "
                "(trio.to_thread.run_sync), or use open_test_broker, which has async methods"
            )
        if not self.is_own:
            raise RuntimeError(
                f"this broker runs in process {self._process}, and this is its child {os.getpid()}: "
                "connect clients to bootstrap_servers, or create a broker after the fork"
            )
        scope = trio.CancelScope()

        async def run() -> T:
            with scope:
                return await function(*args)
            raise RuntimeError("the call was interrupted")

        try:
            return trio.from_thread.run(run, trio_token=self._token)
        except trio.RunFinishedError:
            raise RuntimeError(
                "the thread of this broker has ended; create a new broker, or close the thread later"
            ) from None
        except BaseException:
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(scope.cancel)
            raise

    def _close_inherited(self) -> None:
        """Close the inherited descriptors of all open resources, in a forked child."""
        for close_inherited in self._open.values():
            close_inherited()
        self._open.clear()

    def open_resource(
        self,
        open_context: Callable[[], AbstractAsyncContextManager[T]],
        after_fork: Callable[[T], None] | None = None,
    ) -> OpenResource[T]:
        """Enter a context manager in the event loop; it stays open until `release_resource`.

        Args:
            open_context: Creates the context manager.
            after_fork: Called in each forked child with the value, to close inherited descriptors.

        Raises:
            Exception: The exception that entering the context manager raised.
        """

        async def keep(task_status: trio.TaskStatus[OpenResource[T]]) -> None:
            with trio.CancelScope() as scope:
                async with open_context() as value:
                    held = OpenResource(value, scope, trio.Event(), trio.Event())
                    if after_fork is not None:
                        self._open[held] = partial(after_fork, value)
                    task_status.started(held)
                    await held.release.wait()

        async def supervise(task_status: trio.TaskStatus[OpenResource[T]]) -> None:
            """Store the failure of one resource, so that it does not cancel the other resources."""
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
        """Wait for a resource to end without a release. Return False after the timeout.

        Args:
            held: Resource of `open_resource`.
            timeout: Maximum seconds to wait.
        """

        async def wait() -> bool:
            with trio.move_on_after(timeout):
                await held.closed.wait()
            return held.closed.is_set()

        return self.call(wait)

    def abort(self, held: OpenResource[T]) -> None:
        """Cancel a resource instead of releasing it, and wait until it has exited."""

        async def cancel() -> None:
            held.scope.cancel()
            await held.closed.wait()

        self.call(cancel)

    def release_resource(self, held: OpenResource[T]) -> None:
        """Exit the context manager of a resource, and wait until it has exited.

        Raises:
            BaseException: The exception that ended the resource before.
        """

        async def release() -> None:
            held.release.set()
            await held.closed.wait()

        self.call(release)
        if isinstance(held.failure, BaseExceptionGroup):
            raise first_error(held.failure) from held.failure
        if held.failure is not None:
            raise held.failure

    def close(self) -> None:
        """Close all resources and end the thread."""
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
    """Return a message with the cause of a failed start and a remedy, if one is known."""
    reason = f"the broker's event loop cannot start: {error!r}"
    if type(error).__module__.startswith("pytest_socket"):
        return f"{reason}; allow connections to this machine with --allow-hosts=127.0.0.1,::1"
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return f"{reason}; close files, or raise the limit of open files (ulimit -n)"
    return reason
