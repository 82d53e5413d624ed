"""Measurement of the steps of an awaitable: the work between two waits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from types import coroutine
from typing import TypeVar, cast

import trio

Result = TypeVar("Result")


@coroutine
def in_timed_steps(
    work: Awaitable[Result],
    resumed: Callable[[float], None],
    paused: Callable[[float], None],
) -> Generator[object, object, Result]:
    """Await work, and report when each of its steps begins and ends.

    Args:
        work: The awaitable.
        resumed: Called before each step with the time in seconds of trio's clock.
        paused: Called after each step with the time in seconds of trio's clock.

    Returns:
        The result of `work`. Exceptions of `work` are passed on.
    """
    steps = work.__await__()
    step, value = steps.send, None
    while True:
        resumed(trio.current_time())
        try:
            waits_for = step(value)
        except StopIteration as end:
            return cast(Result, end.value)
        finally:
            paused(trio.current_time())
        try:
            value = yield waits_for
        except BaseException as error:  # noqa: BLE001  # passed on to the work
            step, value = steps.throw, error
        else:
            step = steps.send
