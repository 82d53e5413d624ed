"""One event loop in a thread of its own, in which brokers come and go."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import trio

from kbroker.client.errors import first_error

T = TypeVar("T")

STOP_SECONDS = 30
PORTS_REMEMBERED = 1000


@dataclass(slots=True)
class Held(Generic[T]):
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
    thread but its own.
    """

    def __init__(self) -> None:
        self.ports: deque[int] = deque(maxlen=PORTS_REMEMBERED)
        """Those that brokers had lately: a client of one must not meet another one there."""
        started: Future[tuple[trio.lowlevel.TrioToken, trio.Nursery]] = Future()
        self._end = trio.Event()
        self._ending = False
        self._thread = threading.Thread(
            target=self._run, args=(started,), name="kbroker", daemon=True
        )
        self._thread.start()
        self._token, self._nursery = started.result()

    def _run(self, started: Future[tuple[trio.lowlevel.TrioToken, trio.Nursery]]) -> None:
        async def main() -> None:
            async with trio.open_nursery() as nursery:
                started.set_result((trio.lowlevel.current_trio_token(), nursery))
                await self._end.wait()
                nursery.cancel_scope.cancel()

        trio.run(main, strict_exception_groups=True)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def call(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run an async function in the loop and return what it returns."""
        return trio.from_thread.run(function, *args, trio_token=self._token)

    def hold(self, open_it: Callable[[], AbstractAsyncContextManager[T]]) -> Held[T]:
        """Enter a context manager in the loop; it stays open until `let_go`.

        Raises what entering it raises.
        """

        async def keep(task_status: trio.TaskStatus[Held[T]]) -> None:
            with trio.CancelScope() as scope:
                async with open_it() as value:
                    held = Held(value, scope, trio.Event(), trio.Event())
                    task_status.started(held)
                    await held.release.wait()

        async def supervise(task_status: trio.TaskStatus[Held[T]]) -> None:
            """A broker that fails must not take the others of this thread along."""
            held: Held[T] | None = None
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
                    held.closed.set()

        async def start() -> Held[T]:
            try:
                held: Held[T] = await self._nursery.start(supervise)
            except BaseExceptionGroup as group:
                raise first_error(group) from None
            return held

        return self.call(start)

    def wait_for_end(self, held: Held[Any], timeout: float) -> bool:
        """Wait until what `hold` opened has ended by itself; False when it did not in time."""

        async def wait() -> bool:
            with trio.move_on_after(timeout):
                await held.closed.wait()
            return held.closed.is_set()

        return self.call(wait)

    def abort(self, held: Held[Any]) -> None:
        """End what `hold` opened where it is."""

        async def cancel() -> None:
            held.scope.cancel()
            await held.closed.wait()

        self.call(cancel)

    def let_go(self, held: Held[Any]) -> None:
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
