"""Where blocking work runs: in worker threads, or wherever a simulation wants it."""

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

HELP_AFTER_SECONDS = 0.0002
"""What takes less, as one sync of a fast disk does, is not worth waking threads for."""
HELPERS_MAX = 15
"""With twice as many 200 syncs took as long; with a quarter a third longer on a busy disk."""


class InThread(Protocol):
    """Runs a function off the event loop, as `run_in_thread` does."""

    def __call__(self, work: Callable[[], Result], /) -> Awaitable[Result]:
        """Return what `work` returns, or raise what it raises."""
        ...


async def run_in_thread(
    work: Callable[[], Result],
    *,
    limiter: trio.CapacityLimiter | None = None,
    abandon_on_cancel: bool = False,
) -> Result:
    """Run a function in a worker thread of trio.

    If the function itself raised, trio would keep references from the frames of its thread to the
    exception. That cycle keeps what the frames of `work` reference, for example a decompressed
    batch, until the garbage collector runs, which is rare in a server. So the outcome is passed in a
    list instead.

    Args:
        work: The function.
        limiter: Limits the number of threads, None for trio's own limit.
        abandon_on_cancel: If True, a cancelled caller leaves the thread running.

    Returns:
        What `work` returns. Raises what it raises.
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
    """Make calls that block, several of them at once when they take long; any thread may ask.

    Parameters: `threads_max` is how many threads at most, with that of the caller; None for as many as help.

    The caller's thread begins alone: a fast disk has synced one file or a few before another thread is
    awake. Returns when all calls are done. Raises what the first one raised that failed; those that
    had not begun by then are left out.
    """
    left = deque(calls)
    alone_until = time.perf_counter() + HELP_AFTER_SECONDS
    while left and time.perf_counter() < alone_until:
        left.popleft()()
    if not left:  # as in most passes: what follows costs more than a sync
        return
    failed: list[Exception] = []
    helpers_max = HELPERS_MAX if threads_max is None else threads_max - 1
    helpers = max(min(len(left) - 1, helpers_max, shares().helpers), 0)
    ended = threading.Semaphore(0)
    for _ in range(helpers):
        trio.lowlevel.start_thread_soon(lambda: _make(left, failed), lambda _: ended.release())
    _make(left, failed)
    for _ in range(helpers):
        ended.acquire()
    if failed:
        raise failed[0]


def _make(left: deque[Callable[[], None]], failed: list[Exception]) -> None:
    """Make the calls that nobody has taken yet, until one fails."""
    while left and not failed:
        try:
            call = left.popleft()
        except IndexError:  # another thread was faster
            return
        try:
            call()
        except Exception as error:  # noqa: BLE001 - whoever waits for the calls is told
            failed.append(error)
