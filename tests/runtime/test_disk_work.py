"""Where syncs are done: in the event loop while the disk is fast, else in a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import trio

from kbroker.runtime.disk_work import DiskWork


def is_in_loop() -> bool:
    return threading.current_thread() is threading.main_thread()


def seconds_of(*took: float) -> Iterator[float]:
    """What a timer says at the begin and the end of work that takes so many seconds, in turn."""
    now = 0.0
    for each in took:
        yield now
        now += each
        yield now


async def places(*took: float) -> str:
    """Where work that takes so long is done: L for the event loop, t for a thread."""
    timer = seconds_of(*took)
    work = DiskWork(timer=lambda: next(timer))
    return "".join(["L" if await work.run(is_in_loop) else "t" for _ in took])


FAST, SLOW, STALLED = 0.0001, 0.01, 0.1


async def test_a_slow_disk_holds_up_the_loop_more_and_more_rarely() -> None:
    assert await places(*[SLOW] * 16) == "LtLttLttttLttttt"
    assert (await places(*[SLOW] * 1000)).count("L") < 25


async def test_a_disk_that_stalled_once_needs_no_thread_for_long() -> None:
    assert await places(FAST, SLOW, *[FAST] * 5) == "LLtLLLL"


async def test_a_loop_that_is_busy_does_not_look_like_a_slow_disk() -> None:
    """In a thread it takes long because the loop has the interpreter."""
    assert await places(SLOW, 0.04, FAST, FAST) == "LtLL"


async def test_a_stalled_disk_is_not_tried_in_the_loop() -> None:
    assert await places(SLOW, *[STALLED] * 10, SLOW, FAST) == "L" + "t" * 11 + "L"


async def test_work_is_done_in_a_thread_when_that_is_said() -> None:
    work = DiskWork()
    assert not await work.run(is_in_loop, in_thread=True)
    assert await work.run(is_in_loop)


async def test_what_work_raises_is_raised() -> None:
    def fail() -> None:
        raise OSError("no space")

    for in_thread in (False, True):
        with trio.fail_after(5), pytest.raises(OSError, match="no space"):
            await DiskWork().run(fail, in_thread=in_thread)
