"""Execution of blocking work in worker threads, or as a simulation schedules it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, TypeVar

import outcome
import trio

from kbroker.storage.files import Calls

from .descriptors import shares

Result = TypeVar("Result")

# Seconds after which other threads help with blocking calls. One sync of a fast disk takes less.
HELP_AFTER_SECONDS = 0.0002
# Maximum number of helper threads. Twice as many do not speed up 200 syncs; a quarter takes a third
# longer on a busy disk.
HELPERS_MAX = 15


class InThread(Protocol):
    """Function that runs another function off the event loop, as `run_in_thread` does."""

    def __call__(self, work: Callable[[], Result], /) -> Awaitable[Result]:
        """Run `work`, and return its result or raise its exception."""
        ...


async def run_in_thread(
    work: Callable[[], Result],
    *,
    limiter: trio.CapacityLimiter | None = None,
    abandon_on_cancel: bool = False,
) -> Result:
    """Run a function in a worker thread of trio.

    If the function raised directly, trio would keep references from the frames of its thread to the
    exception. That cycle would keep the objects in the frames of `work`, for example a decompressed
    batch, until the garbage collector runs, which is rare in a server. So the outcome is passed in
    a list instead.

    Args:
        work: The function.
        limiter: Limits the number of threads; None for trio's own limit.
        abandon_on_cancel: If True, a cancelled caller leaves the thread running.

    Returns:
        The result of `work`. Exceptions of `work` are passed on.
    """
    outcomes: list[outcome.Outcome[Result]] = []
    await trio.to_thread.run_sync(
        partial(_capture, [work], outcomes), limiter=limiter, abandon_on_cancel=abandon_on_cancel
    )
    return outcomes.pop().unwrap()


def _capture(calls: list[Callable[[], Result]], outcomes: list[outcome.Outcome[Result]]) -> None:
    """Make a call, and leave no reference to it."""
    outcomes.append(outcome.capture(calls.pop()))


def at_once(calls: Calls, threads_max: int | None = None) -> None:
    """Run blocking calls, several at the same time if they take long. Any thread may call this.

    The calling thread begins alone: on a fast disk it has synced some files before another thread
    is awake. Returns when all calls are done.

    Args:
        calls: The calls.
        threads_max: Maximum number of threads, including the calling one; None for the default.

    Raises:
        Exception: The first exception of a call. Calls that have not begun by then are skipped.
    """
    left = deque(calls)
    alone_until = time.perf_counter() + HELP_AFTER_SECONDS
    while left and time.perf_counter() < alone_until:
        left.popleft()()
    if not left:  # the usual case; starting threads costs more than a sync
        return
    failed: list[Exception] = []
    helpers_max = HELPERS_MAX if threads_max is None else threads_max - 1
    helpers = max(min(len(left) - 1, helpers_max, shares().helpers), 0)
    ended = threading.Semaphore(0)
    for _ in range(helpers):
        trio.lowlevel.start_thread_soon(lambda: _run_calls(left, failed), lambda _: ended.release())
    _run_calls(left, failed)
    for _ in range(helpers):
        ended.acquire()
    if failed:
        raise failed[0]


def _run_calls(left: deque[Callable[[], None]], failed: list[Exception]) -> None:
    """Run the remaining calls until one fails."""
    while left and not failed:
        try:
            call = left.popleft()
        except IndexError:  # another thread has taken the last call
            return
        try:
            call()
        except Exception as error:  # noqa: BLE001 - at_once() raises it
            failed.append(error)
