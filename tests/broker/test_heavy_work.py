"""Heavy work runs elsewhere, one piece after the other."""

from __future__ import annotations

import threading

import pytest
import trio

from kbroker.runtime.heavy_work import HeavyWork


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
