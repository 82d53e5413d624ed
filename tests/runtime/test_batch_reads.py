"""Reads of stored batches: quick ones in the event loop, long ones in a thread, shared fairly."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import trio
import trio.lowlevel
import trio.testing

from kbroker.runtime import batch_reads
from kbroker.runtime.batch_reads import BatchReads, ignore_cpu_time
from kbroker.runtime.fair_slots import FairSlots


def work(seconds: float) -> None:
    """Use CPU time."""
    ends_at = time.thread_time() + seconds
    while time.thread_time() < ends_at:
        pass


def steps(number: int, seconds: float, result: str | None) -> Iterator[str | None]:
    for _ in range(number):
        work(seconds)
        yield None
    if result is not None:
        yield result


async def test_quick_read_runs_in_event_loop() -> None:
    here = threading.get_ident()
    threads = set()

    def find() -> Iterator[str | None]:
        threads.add(threading.get_ident())
        yield "found"

    assert await BatchReads().read(find, "client", ignore_cpu_time) == "found"
    assert await BatchReads().read(lambda: steps(3, 0, None), "client", ignore_cpu_time) is None
    assert threads == {here}


async def test_long_read_runs_in_thread_and_is_charged() -> None:
    charged: list[float] = []
    found = await BatchReads().read(lambda: steps(20, 0.005, "late"), "client", charged.append)
    assert found == "late"
    assert sum(charged) >= 0.1
    assert len(charged) > 1
    assert await BatchReads().read(lambda: steps(2, 0.002, None), "c", ignore_cpu_time) is None


async def test_error_of_long_read_is_raised_to_caller() -> None:
    def broken() -> Iterator[str | None]:
        yield from steps(3, 0.002, None)
        raise ZeroDivisionError

    reads = BatchReads()
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await reads.read(broken, "client", ignore_cpu_time)
    assert await reads.read(lambda: steps(3, 0.002, "next"), "client", ignore_cpu_time) == "next"


async def test_short_reads_overtake_many_long_reads() -> None:
    reads = BatchReads()
    done: list[str] = []
    open_now, open_most = 0, 0

    def read_endlessly() -> Iterator[str | None]:
        nonlocal open_now, open_most
        open_now += 1
        open_most = max(open_most, open_now)
        try:
            while len(done) < 5:
                work(0.002)
                yield None
            yield "long"
        finally:
            open_now -= 1

    async def read_long(number: int) -> None:
        assert await reads.read(read_endlessly, number, ignore_cpu_time) == "long"

    async with trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(read_long, number)
        await trio.sleep(0.05)
        for number in range(5):
            short = await reads.read(lambda: steps(2, 0.002, "short"), "short", ignore_cpu_time)
            done.append(f"{short} {number}")
    assert len(done) == 5
    assert open_most <= batch_reads.OPEN_MAX + 1  # and the read that has its first slice
    assert open_now == 0


async def test_cancelled_read_releases_its_slot() -> None:
    reads = BatchReads()
    with trio.move_on_after(0.1):
        await reads.read(lambda: steps(10_000, 0.001, None), "gone", ignore_cpu_time)
    with trio.fail_after(5):
        for _ in range(3):
            assert await reads.read(lambda: steps(30, 0.002, "x"), "c", ignore_cpu_time) == "x"


async def test_clients_get_slots_in_round_robin_order() -> None:
    slots = FairSlots(1)
    order: list[str] = []

    async def take(client: str) -> None:
        async with slots.taken(client):
            order.append(client)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery, slots.taken("first"):
        for client in ("a", "a", "a", "a", "b", "c", "b"):
            nursery.start_soon(take, client)
            await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0.01):
            await take("gone")
    assert order == ["a", "b", "c", "a", "b", "a", "a"]
