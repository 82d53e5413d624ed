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


async def test_a_disk_that_becomes_slow_holds_up_nobody_for_long() -> None:
    timer = seconds_of(0.0001, 0.0001, 0.01, 0.01, 0.0001)
    work = DiskWork(timer=lambda: next(timer))
    assert [await work.run(is_in_loop) for _ in range(5)] == [True, True, True, False, False]


async def test_a_disk_that_is_fast_again_needs_no_thread() -> None:
    timer = seconds_of(0.01, *[0.0001] * 12)
    work = DiskWork(timer=lambda: next(timer))
    assert [await work.run(is_in_loop) for _ in range(13)] == [True, *[False] * 2, *[True] * 10]


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
