"""Syncs in the event loop while the disk is fast, otherwise in a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import trio

from kbroker.runtime.disk_work import DiskWork


def is_in_loop() -> bool:
    return threading.current_thread() is threading.main_thread()


def seconds_of(*took: float) -> Iterator[float]:
    """Yield the timer readings at the start and end of work with these durations in seconds."""
    now = 0.0
    for each in took:
        yield now
        now += each
        yield now


async def places(*took: float) -> str:
    """Return where work with these durations runs: L for the event loop, t for a thread."""
    timer = seconds_of(*took)
    work = DiskWork(timer=lambda: next(timer))
    return "".join(["L" if await work.run(is_in_loop) else "t" for _ in took])


FAST, SLOW, STALLED = 0.0001, 0.01, 0.1


async def test_slow_disk_blocks_event_loop_at_increasing_intervals() -> None:
    assert await places(*[SLOW] * 16) == "LtLttLttttLttttt"
    assert (await places(*[SLOW] * 1000)).count("L") < 25


async def test_disk_returns_to_event_loop_after_one_stall() -> None:
    assert await places(FAST, SLOW, *[FAST] * 5) == "LLtLLLL"


async def test_busy_event_loop_does_not_count_as_slow_disk() -> None:
    """Work in a thread takes long because the event loop holds the interpreter lock."""
    assert await places(SLOW, 0.04, FAST, FAST) == "LtLL"


async def test_stalled_disk_is_not_tried_in_event_loop() -> None:
    assert await places(SLOW, *[STALLED] * 10, SLOW, FAST) == "L" + "t" * 11 + "L"


async def test_work_runs_in_thread_if_requested() -> None:
    work = DiskWork()
    assert not await work.run(is_in_loop, in_thread=True)
    assert await work.run(is_in_loop)


async def test_exception_of_work_is_raised() -> None:
    def fail() -> None:
        raise OSError("no space")

    for in_thread in (False, True):
        with trio.fail_after(5), pytest.raises(OSError, match="no space"):
            await DiskWork().run(fail, in_thread=in_thread)
