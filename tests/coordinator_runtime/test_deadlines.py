"""Timers of coordinators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kbroker.coordinator import Now, Result
from kbroker.coordinator_runtime.deadlines import EXPIRED_AT_ONCE, Deadlines
from kbroker.coordinator_runtime.shard import Shard


class TrioClock:
    """A clock that follows trio's clock, in milliseconds."""

    def __init__(self) -> None:
        self.jumped_ms = 0

    def coordinator_ms(self) -> int:
        return round(trio.current_time() * 1000) + self.jumped_ms

    def log_ms(self) -> int:
        return self.coordinator_ms()

    def monotonic_ms(self) -> int:
        return self.coordinator_ms()

    async def run(self) -> None:
        """Detect no stalls."""


class OneDeadline:
    """A coordinator with at most one deadline."""

    def __init__(self, deadline_ms: int | None = None) -> None:
        self.deadline_ms = deadline_ms

    def next_deadline(self) -> int | None:
        return self.deadline_ms

    def due(self, now: Now) -> Iterator[Result[None]]:
        if self.deadline_ms is not None and self.deadline_ms <= now.coordinator_ms:
            self.deadline_ms = None
            yield Result()


class ManyExpired:
    """A coordinator with many timers that expire together."""

    def __init__(self, count: int) -> None:
        self.left = count

    def next_deadline(self) -> int | None:
        return 0 if self.left else None

    def due(self, now: Now) -> Iterator[Result[None]]:
        while self.left:
            self.left -= 1
            yield Result()


class World:
    """The `Deadlines` under test, with two coordinators.

    Attributes:
        ran: Indexes of the coordinators whose results were processed, in order.
    """

    def __init__(self) -> None:
        self.clock = TrioClock()
        self.coordinators: list[Any] = [OneDeadline(), OneDeadline()]
        self.ran: list[int] = []
        self._shards = [Shard[Any](cast(Any, None), cast(Any, each)) for each in self.coordinators]
        self.deadlines = Deadlines[Any](cast(Any, self.clock), lambda: self._shards, self._run)

    def _run(self, shard: Shard[Any], results: Iterator[Result[None]]) -> None:
        for _ in results:
            self.ran.append(self._shards.index(shard))

    def add(self, coordinator: ManyExpired) -> None:
        self.coordinators.append(coordinator)
        self._shards.append(Shard[Any](cast(Any, None), cast(Any, coordinator)))

    def remove_last(self) -> None:
        self._shards.pop()

    def set_deadline(self, number: int, deadline_ms: int | None) -> None:
        self.coordinators[number].deadline_ms = deadline_ms
        self.deadlines.arm(self._shards[number])


async def run(world: World, act: Callable[[], object], seconds: float) -> None:
    """Call `act` while the deadline task runs, then let time pass."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.deadlines.run)
        await wait_all_tasks_blocked()
        act()
        await trio.sleep(seconds)
        nursery.cancel_scope.cancel()


@pytest.fixture
def world(autojump_clock: MockClock) -> World:
    return World()


async def test_deadline_armed_while_waiting_expires(world: World) -> None:
    await run(world, lambda: world.set_deadline(1, world.clock.coordinator_ms() + 500), 1)
    assert world.ran == [1]


async def test_earlier_deadline_expires_before_later_one(world: World) -> None:
    start = world.clock.coordinator_ms()
    world.set_deadline(0, start + 700)
    await run(world, lambda: world.set_deadline(1, start + 200), 1)
    assert world.ran == [1, 0]


async def test_cancelled_deadline_does_not_expire(world: World) -> None:
    world.set_deadline(0, world.clock.coordinator_ms() + 200)
    await run(world, lambda: world.set_deadline(0, None), 1)
    assert world.ran == []


async def test_clock_jump_expires_deadlines(world: World) -> None:
    world.set_deadline(0, world.clock.coordinator_ms() + 60_000)

    def jump() -> None:
        world.clock.jumped_ms = 60_000
        world.deadlines.clock_moved()

    await run(world, jump, 0)
    assert world.ran == [0]


async def test_next_deadline_is_earliest_of_all_coordinators(world: World) -> None:
    assert world.deadlines.next() is None
    world.set_deadline(0, 30)
    world.set_deadline(1, 20)
    assert world.deadlines.next() == 20


async def test_timers_that_expire_together_do_not_block_event_loop(world: World) -> None:
    world.add(ManyExpired(1_000))
    seen: list[int] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.deadlines.run)
        while not seen or seen[-1] < 1_000:
            await trio.lowlevel.checkpoint()
            seen.append(len(world.ran))
        nursery.cancel_scope.cancel()
    steps = [later - earlier for earlier, later in pairwise([0, *seen])]
    assert max(steps) <= 2 * EXPIRED_AT_ONCE, "this task may run after two steps of the other one"


async def test_coordinator_that_moves_away_keeps_its_expired_timers(world: World) -> None:
    world.add(moved := ManyExpired(1_000))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.deadlines.run)
        while not world.ran:
            await trio.lowlevel.checkpoint()
        world.remove_last()
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert 0 < moved.left < 1_000
