"""Tests of the monotonic clock that does not count stalls of the event loop."""

from __future__ import annotations

from random import Random

import pytest
import trio
from trio.testing import MockClock

from kbroker.runtime.clock import DELAY_MS_MAX, TICK_MS, UnstalledTime

STEP_MS_MAX = TICK_MS + DELAY_MS_MAX


class Monotonic:
    """A monotonic clock that tests move."""

    def __init__(self) -> None:
        self.time_ms = 1000

    def now_ms(self) -> int:
        return self.time_ms


def test_time_without_ticks_counts_fully() -> None:
    monotonic = Monotonic()
    unstalled = UnstalledTime(monotonic.now_ms)
    monotonic.time_ms += 60_000
    assert unstalled.now_ms() == monotonic.time_ms


def test_stall_counts_as_one_late_tick() -> None:
    monotonic = Monotonic()
    unstalled = UnstalledTime(monotonic.now_ms)
    unstalled.tick()
    began_ms = unstalled.now_ms()
    monotonic.time_ms += 30_000
    assert unstalled.now_ms() - began_ms == STEP_MS_MAX, "another task ran before the tick"
    unstalled.tick()
    assert unstalled.now_ms() - began_ms == STEP_MS_MAX
    monotonic.time_ms += STEP_MS_MAX
    assert unstalled.now_ms() - began_ms == 2 * STEP_MS_MAX


def test_time_never_goes_back(pytestconfig: pytest.Config) -> None:
    random = Random(pytestconfig.getoption("--seed"))
    monotonic = Monotonic()
    unstalled = UnstalledTime(monotonic.now_ms)
    latest_ms = unstalled.now_ms()
    for _ in range(1000):
        step_ms = random.choice((0, 1, TICK_MS, STEP_MS_MAX, 5000))
        monotonic.time_ms += step_ms
        if random.random() < 0.5:
            unstalled.tick()
        now_ms = unstalled.now_ms()
        assert latest_ms <= now_ms <= latest_ms + step_ms
        latest_ms = now_ms


async def test_running_clock_follows_responsive_event_loop(autojump_clock: MockClock) -> None:
    unstalled = UnstalledTime(lambda: round(trio.current_time() * 1000))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(unstalled.run)
        nursery.start_soon(unstalled.run)  # a second node with the same clock
        await trio.testing.wait_all_tasks_blocked()
        began_ms = unstalled.now_ms()
        await trio.sleep(60)
        assert unstalled.now_ms() - began_ms == 60_000
        nursery.cancel_scope.cancel()
