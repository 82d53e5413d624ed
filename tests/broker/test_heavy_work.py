"""Heavy work runs elsewhere, one piece after the other."""

from __future__ import annotations

import threading
import weakref
from functools import partial

import pytest
import trio
import trio.testing

from kbroker.runtime.heavy_work import STEPS_AT_ONCE, HeavyClient, HeavyWork


async def test_one_at_a_time_and_off_the_event_loop() -> None:
    work = HeavyWork()
    here = threading.current_thread()
    running: list[int] = []
    results: dict[int, tuple[int, bool]] = {}

    def piece(number: int) -> tuple[int, bool]:
        running.append(number)
        alone = running == [number]
        threading.Event().wait(0.01)
        running.remove(number)
        return number, alone and threading.current_thread() is not here

    async def run(number: int) -> None:
        results[number] = await work.run(lambda: piece(number))

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(run, number)
    assert results == {number: (number, True) for number in range(5)}


async def test_an_error_is_the_callers() -> None:
    work = HeavyWork()
    with pytest.raises(ZeroDivisionError):
        await work.run(lambda: 1 // 0)
    assert await work.run(lambda: 1) == 1


class Counted:
    """Work of so many steps, each of which says what else is in progress."""

    def __init__(self, name: str, steps: int, seen: list[str], seconds: float = 0.0) -> None:
        self._name, self._left, self._seen, self._seconds = name, steps, seen, seconds

    def step(self) -> bool:
        threading.Event().wait(self._seconds)
        self._seen.append(self._name)
        self._left -= 1
        return self._left <= 0

    def result(self) -> str:
        return self._name


async def test_light_work_runs_between_steps_of_heavy_work() -> None:
    work, seen = HeavyWork(), list[str]()
    async with trio.open_nursery() as nursery:
        for number in range(10):
            begin = partial(Counted, f"heavy {number}", 40 * STEPS_AT_ONCE, seen)
            nursery.start_soon(work.run_in_steps, begin, HeavyClient())
        await work.run_in_steps(partial(Counted, "first", 1, seen), HeavyClient())
        before = len(seen)
        light = await work.run_in_steps(partial(Counted, "light", 3, seen), HeavyClient())
        assert light == "light"
        assert seen.index("light") - before < 40 * STEPS_AT_ONCE
    assert len(seen) >= 400 * STEPS_AT_ONCE


async def test_one_piece_of_heavy_work_is_in_progress() -> None:
    """Work that turns out to be heavy is dropped, and begun again when it is its turn."""
    work, seen = HeavyWork(), list[str]()
    begun: list[weakref.ref[Counted]] = []
    most = 0

    def begin(name: str) -> Counted:
        nonlocal most
        one = Counted(name, 4 * STEPS_AT_ONCE, seen)
        begun.append(weakref.ref(one))
        most = max(most, sum(each() is not None for each in begun))
        return one

    results: list[str] = []

    async def run(name: str) -> None:
        results.append(await work.run_in_steps(lambda: begin(name), HeavyClient()))

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(run, str(number))
    assert sorted(results, key=int) == [str(number) for number in range(20)]
    assert len(begun) == 40
    assert most <= 2


async def test_client_that_has_used_less_goes_first() -> None:
    work, order = HeavyWork(), list[str]()
    greedy, modest = HeavyClient(), HeavyClient()
    now = trio.current_time()
    greedy.charge(100.0, now)
    modest.charge(50.0, now)

    async def run(name: str, client: HeavyClient) -> None:
        order.append(await work.run_in_steps(partial(Counted, name, 2, []), client))

    release = threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(work.run, release.wait, greedy)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(3):
            nursery.start_soon(run, f"greedy {number}", greedy)
        nursery.start_soon(run, "modest", modest)
        await trio.testing.wait_all_tasks_blocked()
        release.set()
    assert order[0] == "modest"
    assert greedy.seconds >= 100.0


async def test_cancelled_waiter_leaves_the_queue() -> None:
    work = HeavyWork()
    client = HeavyClient()
    client.charge(100.0, trio.current_time())
    release = threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(work.run, release.wait, client)
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0.01) as scope:
            await work.run(lambda: None, client)
        assert scope.cancelled_caught
        release.set()
        assert await work.run(lambda: 1, client) == 1
