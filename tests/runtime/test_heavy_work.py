"""CPU-intensive work in a worker thread."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import pytest
import trio
import trio.testing

from kbroker.runtime.cpu_shares import CpuAccount
from kbroker.runtime.heavy_work import STEPS_AT_ONCE, HeavyWork

Result = TypeVar("Result")


async def test_work_runs_one_at_a_time_off_event_loop() -> None:
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
        results[number] = await work.run(lambda: piece(number), CpuAccount())

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(run, number)
    assert results == {number: (number, True) for number in range(5)}


async def test_error_is_raised_to_caller() -> None:
    work = HeavyWork()
    with pytest.raises(ZeroDivisionError):
        await work.run(lambda: 1 // 0, CpuAccount())
    assert await work.run(lambda: 1, CpuAccount()) == 1


class Counted:
    """Work with a number of steps, each of which records what else is in progress."""

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
            nursery.start_soon(work.run_in_steps, begin, CpuAccount())
        await work.run_in_steps(partial(Counted, "first", 1, seen), CpuAccount())
        before = len(seen)
        light = await work.run_in_steps(partial(Counted, "light", 3, seen), CpuAccount())
        assert light == "light"
        assert seen.index("light") - before < 40 * STEPS_AT_ONCE
    assert len(seen) >= 400 * STEPS_AT_ONCE


async def test_only_one_heavy_work_is_in_progress() -> None:
    """Work that turns out to be heavy is dropped, and started again when it gets the lock."""
    work, seen = HeavyWork(), list[str]()
    started: list[weakref.ref[Counted]] = []
    most = 0

    def begin(name: str) -> Counted:
        nonlocal most
        one = Counted(name, 4 * STEPS_AT_ONCE, seen)
        started.append(weakref.ref(one))
        most = max(most, sum(each() is not None for each in started))
        return one

    results: list[str] = []

    async def run(name: str) -> None:
        results.append(await work.run_in_steps(lambda: begin(name), CpuAccount()))

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(run, str(number))
    assert sorted(results, key=int) == [str(number) for number in range(20)]
    assert len(started) == 40
    assert most <= 2


def use(seconds: float, cpu: list[float]) -> None:
    """Advance a fake clock of CPU time."""
    cpu[0] += seconds


def work_with_clock() -> tuple[HeavyWork, list[float]]:
    cpu = [0.0]
    return HeavyWork(cpu_seconds=lambda: cpu[0]), cpu


async def order_behind(
    work: HeavyWork, holder: CpuAccount, waiting: Mapping[str, CpuAccount]
) -> list[str]:
    """Return the order in which waiting work runs after `holder` releases the thread."""
    order: list[str] = []
    release = threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(work.run, release.wait, holder)
        await trio.testing.wait_all_tasks_blocked()
        for name, client in waiting.items():
            nursery.start_soon(work.run_in_steps, partial(Counted, name, 2, order), client)
        await trio.testing.wait_all_tasks_blocked()
        release.set()
    return list(dict.fromkeys(order))


async def test_client_with_less_cpu_time_goes_first() -> None:
    work, cpu = work_with_clock()
    greedy, modest = CpuAccount(), CpuAccount()
    await work.run(partial(use, 4.0, cpu), greedy)
    await work.run(partial(use, 2.0, cpu), modest)
    waiting = {"greedy": greedy, "modest": modest, "new": CpuAccount()}
    assert await order_behind(work, CpuAccount(), waiting) == ["new", "modest", "greedy"]
    assert greedy.seconds == 4.0


async def test_wait_for_busy_cpu_is_not_charged(autojump_clock: object) -> None:
    """On a busy machine a function takes long, although it uses little CPU time."""

    async def delayed(function: Callable[[], Result]) -> Result:
        await trio.sleep(5)
        return function()

    work, cpu = HeavyWork(delayed, cpu_seconds=lambda: cpu[0]), [0.0]
    client = CpuAccount()
    for _ in range(10):
        await work.run(partial(use, 0.001, cpu), client)
    assert client.seconds == pytest.approx(0.01)


async def test_real_cpu_time_is_charged() -> None:
    client = CpuAccount()
    work = HeavyWork()
    await work.run(partial(threading.Event().wait, 0.1), client)
    waited = client.seconds
    await work.run(lambda: sum(range(1_000_000)), client)
    assert waited < 0.05 < 20 * client.seconds


async def test_failed_work_is_charged() -> None:
    work, cpu = work_with_clock()
    client = CpuAccount()

    def fail() -> None:
        use(3.0, cpu)
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011  # raised by fail()
        await work.run(fail, client)
    assert client.seconds == 3.0


async def test_many_connections_of_one_client_are_heavy_together() -> None:
    """Work that was queued before its client became heavy waits for another client."""
    work, cpu = work_with_clock()
    order: list[str] = []

    def piece(name: str, seconds: float) -> None:
        use(seconds, cpu)
        order.append(name)

    release = threading.Event()
    polite = CpuAccount("polite")
    await work.run(partial(use, 0.001, cpu), polite)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(work.run, release.wait, CpuAccount())
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(50):
            client = CpuAccount("greedy")
            nursery.start_soon(work.run, partial(piece, "greedy", 0.02), client)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(work.run, partial(piece, "polite", 0.001), polite)
        await trio.testing.wait_all_tasks_blocked()
        release.set()
    assert order.index("polite") <= 1
    assert len(order) == 51


async def test_cancelled_waiter_leaves_the_queue() -> None:
    work, cpu = work_with_clock()
    client = CpuAccount()
    await work.run(partial(use, 4.0, cpu), client)
    release = threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(work.run, release.wait, client)
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0.01) as scope:
            await work.run(lambda: None, client)
        assert scope.cancelled_caught
        release.set()
        assert await work.run(lambda: 1, client) == 1
