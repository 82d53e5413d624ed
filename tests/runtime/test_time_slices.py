"""Long work in the event loop."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kbroker.runtime.time_slices import (
    BURST_SECONDS,
    QUIET_SECONDS,
    REST,
    STALLED_TIME_SLICE_SECONDS,
    STEP_REST,
    TIME_SLICE_SECONDS,
    WORK_SECONDS,
    DutyCycle,
    FairQueue,
    Line,
    StepThrottle,
    TimeSlice,
)


async def test_a_rest_is_as_long_as_the_work_asks_for(mock_clock: MockClock) -> None:
    mock_clock.autojump_threshold = 0
    duty_cycle = DutyCycle()
    mock_clock.jump(WORK_SECONDS)
    await duty_cycle.pause()
    assert trio.current_time() == WORK_SECONDS, "too little for a rest"
    mock_clock.jump(WORK_SECONDS)
    await duty_cycle.pause()
    assert trio.current_time() == 2 * WORK_SECONDS * (1 + REST)
    mock_clock.jump(WORK_SECONDS / 2)
    before = trio.current_time()
    await duty_cycle.pause()
    assert trio.current_time() == before, "what was rested for is done with"


async def share_of_work(clock: MockClock, resting: trio.Lock | None) -> float:
    """Return the fraction of the time in which 20 tasks work that have slices of their own."""
    began, piece, pieces, tasks = trio.current_time(), 2 * WORK_SECONDS, 50, 20

    async def work() -> None:
        duty_cycle = DutyCycle(rest=2, resting=resting)
        for _ in range(pieces):
            clock.jump(piece)
            await duty_cycle.pause()

    async with trio.open_nursery() as nursery:
        for _ in range(tasks):
            nursery.start_soon(work)
    return tasks * pieces * piece / (trio.current_time() - began)


async def test_tasks_with_one_lock_rest_in_turn(mock_clock: MockClock) -> None:
    mock_clock.autojump_threshold = 0
    assert await share_of_work(mock_clock, None) > 0.9
    assert await share_of_work(mock_clock, trio.Lock()) < 0.55


class Passes(trio.abc.Instrument):
    """How many turns there are in each pass of the event loop."""

    def __init__(self) -> None:
        self.turns = [0]

    def before_io_wait(self, timeout: float) -> None:
        self.turns.append(0)


async def test_one_turn_in_a_pass_however_many_want_one(mock_clock: MockClock) -> None:
    queue = FairQueue(cpu_seconds=trio.current_time)
    passes = Passes()
    turns = [0] * 20
    go_on = trio.Event()

    async def work_long(index: int) -> None:
        time_slice = TimeSlice(queue)
        await time_slice.next()
        await go_on.wait()
        while min(turns) < 10:
            mock_clock.jump(TIME_SLICE_SECONDS)
            await time_slice.pause()
            turns[index] += 1
            passes.turns[-1] += 1

    async with trio.open_nursery() as nursery:
        for index in range(len(turns)):
            nursery.start_soon(work_long, index)
        await wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(passes)
        go_on.set()
    trio.lowlevel.remove_instrument(passes)
    assert max(passes.turns) == 1
    assert len(passes.turns) < sum(turns) + 10, "and hardly a pass without one"
    # A slice that began while nobody waited begins again once.
    assert max(turns) - min(turns) <= 2, "all have as many"


async def test_who_has_had_one_turn_does_not_wait_for_all_who_had_more() -> None:
    """And those do not wait for ever for new ones that come and come."""
    queue = FairQueue(cpu_seconds=trio.current_time)
    began = long_turns = 0
    short_turns: list[int] = []

    async def work_long() -> None:
        nonlocal began, long_turns
        time_slice = TimeSlice(queue)
        await time_slice.next()
        began += 1
        while True:
            await time_slice.next()
            long_turns += 1

    async def ask_little() -> None:
        time_slice = TimeSlice(queue)
        for _ in range(20):
            before = long_turns
            time_slice.begin(trio.current_time())
            await time_slice.next()
            short_turns.append(long_turns - before)

    async with trio.open_nursery() as nursery:
        for _ in range(300):
            nursery.start_soon(work_long)
        while began < 300:
            await trio.lowlevel.checkpoint()
        async with trio.open_nursery() as polite:
            for _ in range(3):
                polite.start_soon(ask_little)
        nursery.cancel_scope.cancel()
    assert len(short_turns) == 60
    assert max(short_turns) <= 6, "about as many as wait in the same line"
    assert long_turns >= 60, "and those go on as well"


async def test_who_does_not_wait_any_longer_keeps_nobody_from_a_turn() -> None:
    queue = FairQueue(cpu_seconds=trio.current_time)
    went_on = []

    async def wait(index: int, scope: trio.CancelScope) -> None:
        with scope:
            await queue.wait(Line.FIRST)
            went_on.append(index)

    scopes = [trio.CancelScope() for _ in range(6)]
    async with trio.open_nursery() as nursery:
        for index, scope in enumerate(scopes):
            nursery.start_soon(wait, index, scope)
        await trio.lowlevel.checkpoint()
        for index in (0, 1, 3, 5):
            scopes[index].cancel()
    assert set(went_on) >= {2, 4}
    assert not len(queue)


async def test_what_is_sorted_in_turns_is_in_order() -> None:
    names = [str(index * 7919 % 5000) for index in range(5000)]
    assert list(await TimeSlice(FairQueue()).in_order(names, str)) == sorted(names)
    some = await TimeSlice(FairQueue()).in_order(names, lambda name: name if name >= "4" else None)
    assert list(some) == sorted(name for name in names if name >= "4")
    assert list(await TimeSlice(FairQueue()).in_order([], str)) == []


async def test_many_steps_at_once_are_a_burst_and_then_one_in_each_pass(
    mock_clock: MockClock,
) -> None:
    throttle, passes = StepThrottle(), Passes()
    order: list[int] = []

    def step(index: int) -> None:
        mock_clock.jump(BURST_SECONDS / 4)
        order.append(index)
        passes.turns[-1] += 1

    async def come(index: int) -> None:
        await go_on.wait()
        await throttle.run(lambda: step(index))

    go_on = trio.Event()
    async with trio.open_nursery() as nursery:
        for index in range(50):
            nursery.start_soon(come, index)
        await wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(passes)
        go_on.set()
    trio.lowlevel.remove_instrument(passes)
    burst, *others = sorted(passes.turns, reverse=True)
    assert 1 < burst <= BURST_SECONDS / (STEP_REST - 1) / (BURST_SECONDS / 4) + 1
    assert max(others) == 1
    assert sorted(order) == list(range(50))
    assert len(passes.turns) < 50 + 10, "and hardly a pass without one"


async def test_steps_that_come_seldom_wait_for_nothing(mock_clock: MockClock) -> None:
    throttle, passes = StepThrottle(), Passes()
    trio.lowlevel.add_instrument(passes)
    for _ in range(50):
        await throttle.run(lambda: mock_clock.jump(BURST_SECONDS))
        mock_clock.jump((STEP_REST - 1) * BURST_SECONDS)
    trio.lowlevel.remove_instrument(passes)
    assert passes.turns == [0]


async def test_a_step_that_fails_counts_as_well(mock_clock: MockClock) -> None:
    throttle = StepThrottle()

    def fail() -> None:
        mock_clock.jump(10 * BURST_SECONDS)
        raise ValueError("it fails")

    passes = Passes()
    for _ in range(2):
        with pytest.raises(ValueError, match="it fails"):
            await throttle.run(fail)
    trio.lowlevel.add_instrument(passes)
    await throttle.run(lambda: None)
    trio.lowlevel.remove_instrument(passes)
    assert len(passes.turns) > 1, "the next one lets others have their turn before"


async def test_quiet_client_does_not_wait_for_all_new_connections(mock_clock: MockClock) -> None:
    queue = FairQueue()
    quiet, served = TimeSlice(queue), 0
    mock_clock.jump(2 * QUIET_SECONDS)

    async def connect_and_ask() -> None:
        nonlocal served
        await TimeSlice(queue).next()
        served += 1

    async with trio.open_nursery() as nursery:
        for _ in range(300):
            nursery.start_soon(connect_and_ask)
        await trio.lowlevel.checkpoint()
        await quiet.next()
        assert served <= 4
        quiet.begin(trio.current_time())
        await quiet.next()
        assert served == 300, "this client has just waited, as the others have"


async def test_time_slice_does_not_include_waits(mock_clock: MockClock) -> None:
    time_slice = TimeSlice(FairQueue())

    async def wait_in_between() -> None:
        mock_clock.jump(TIME_SLICE_SECONDS / 2)
        await trio.lowlevel.checkpoint()
        go_on.set()
        await jumped.wait()

    async def jump() -> None:
        await go_on.wait()
        mock_clock.jump(10 * TIME_SLICE_SECONDS)
        jumped.set()

    go_on, jumped = trio.Event(), trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(jump)
        await time_slice.without_waits(wait_in_between())
    assert not time_slice.is_over
    mock_clock.jump(TIME_SLICE_SECONDS)
    assert time_slice.is_over


async def test_client_without_cpu_time_keeps_its_time_slice_while_others_wait(
    mock_clock: MockClock,
) -> None:
    used = 100.0
    queue = FairQueue(cpu_seconds=lambda: used)
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(TimeSlice(queue).next)
        while queue.is_empty:
            await trio.lowlevel.checkpoint()
        time_slice = TimeSlice(queue)
        mock_clock.jump(2 * TIME_SLICE_SECONDS)
        assert not time_slice.is_over, "threads had the CPU"
        used += TIME_SLICE_SECONDS
        assert time_slice.is_over
        time_slice.begin(trio.current_time())
        mock_clock.jump(TIME_SLICE_SECONDS + STALLED_TIME_SLICE_SECONDS)
        assert time_slice.is_over, "others have waited for too long"


async def test_last_item_is_not_followed_by_a_wait(mock_clock: MockClock) -> None:
    queue = FairQueue()
    time_slice = TimeSlice(queue)
    async for _ in time_slice.each([1]):
        mock_clock.jump(TIME_SLICE_SECONDS)
    assert time_slice.is_over, "the loop ended without another time slice"
