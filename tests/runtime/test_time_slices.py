"""Long work in the event loop, divided into slices."""

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


async def test_rest_is_proportional_to_work(mock_clock: MockClock) -> None:
    mock_clock.autojump_threshold = 0
    duty_cycle = DutyCycle()
    mock_clock.jump(WORK_SECONDS)
    await duty_cycle.pause()
    assert trio.current_time() == WORK_SECONDS, "the work was too short for a rest"
    mock_clock.jump(WORK_SECONDS)
    await duty_cycle.pause()
    assert trio.current_time() == 2 * WORK_SECONDS * (1 + REST)
    mock_clock.jump(WORK_SECONDS / 2)
    before = trio.current_time()
    await duty_cycle.pause()
    assert trio.current_time() == before, "work before the last rest does not count"


async def test_waiting_before_restart_does_not_count_as_work(mock_clock: MockClock) -> None:
    mock_clock.autojump_threshold = 0
    duty_cycle = DutyCycle()
    mock_clock.jump(3600)
    duty_cycle.restart()
    await duty_cycle.pause()
    assert trio.current_time() == 3600


async def test_waiting_without_waits_does_not_count_as_work(mock_clock: MockClock) -> None:
    mock_clock.autojump_threshold = 0

    async def wait_and_work() -> None:
        await trio.sleep(3600)
        mock_clock.jump(2 * WORK_SECONDS)
        await trio.sleep(3600)

    duty_cycle = DutyCycle()
    await duty_cycle.without_waits(wait_and_work())
    before = trio.current_time()
    await duty_cycle.pause()
    assert trio.current_time() - before == pytest.approx(2 * WORK_SECONDS * REST, abs=1e-6)


async def share_of_work(clock: MockClock, resting: trio.Lock | None) -> float:
    """Return the fraction of the time in which 20 tasks work if each has its own slices."""
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


async def test_tasks_with_shared_lock_rest_one_at_a_time(mock_clock: MockClock) -> None:
    mock_clock.autojump_threshold = 0
    assert await share_of_work(mock_clock, None) > 0.9
    assert await share_of_work(mock_clock, trio.Lock()) < 0.55


class TimeSliceCounter(trio.abc.Instrument):
    """Counter of the time slices in each event-loop iteration."""

    def __init__(self) -> None:
        self.slices = [0]

    def before_io_wait(self, timeout: float) -> None:
        self.slices.append(0)


async def test_one_client_continues_per_event_loop_iteration(mock_clock: MockClock) -> None:
    queue = FairQueue(cpu_seconds=trio.current_time)
    counter = TimeSliceCounter()
    slices = [0] * 20
    start = trio.Event()

    async def work_long(index: int) -> None:
        time_slice = TimeSlice(queue)
        await time_slice.next()
        await start.wait()
        while min(slices) < 10:
            mock_clock.jump(TIME_SLICE_SECONDS)
            await time_slice.pause()
            slices[index] += 1
            counter.slices[-1] += 1

    async with trio.open_nursery() as nursery:
        for index in range(len(slices)):
            nursery.start_soon(work_long, index)
        await wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(counter)
        start.set()
    trio.lowlevel.remove_instrument(counter)
    assert max(counter.slices) == 1
    assert len(counter.slices) < sum(slices) + 10, "nearly every iteration has one"
    # A slice that began while no client waited begins again once.
    assert max(slices) - min(slices) <= 2, "all clients have the same number of slices"


async def test_client_that_waits_first_time_overtakes_long_requests() -> None:
    """Long requests still continue while new clients keep arriving."""
    queue = FairQueue(cpu_seconds=trio.current_time)
    began = long_slices = 0
    short_slices: list[int] = []

    async def work_long() -> None:
        nonlocal began, long_slices
        time_slice = TimeSlice(queue)
        await time_slice.next()
        began += 1
        while True:
            await time_slice.next()
            long_slices += 1

    async def send_short_requests() -> None:
        time_slice = TimeSlice(queue)
        for _ in range(20):
            before = long_slices
            time_slice.begin(trio.current_time())
            await time_slice.next()
            short_slices.append(long_slices - before)

    async with trio.open_nursery() as nursery:
        for _ in range(300):
            nursery.start_soon(work_long)
        while began < 300:
            await trio.lowlevel.checkpoint()
        async with trio.open_nursery() as polite:
            for _ in range(3):
                polite.start_soon(send_short_requests)
        nursery.cancel_scope.cancel()
    assert len(short_slices) == 60
    assert max(short_slices) <= 6, "about the number of clients in the same line"
    assert long_slices >= 60, "long requests continue too"


async def test_cancelled_waiter_does_not_block_queue() -> None:
    queue = FairQueue(cpu_seconds=trio.current_time)
    continued = []

    async def wait(index: int, scope: trio.CancelScope) -> None:
        with scope:
            await queue.wait(Line.FIRST)
            continued.append(index)

    scopes = [trio.CancelScope() for _ in range(6)]
    async with trio.open_nursery() as nursery:
        for index, scope in enumerate(scopes):
            nursery.start_soon(wait, index, scope)
        await trio.lowlevel.checkpoint()
        for index in (0, 1, 3, 5):
            scopes[index].cancel()
    assert set(continued) >= {2, 4}
    assert not len(queue)


async def test_names_sorted_in_pieces_are_in_order() -> None:
    names = [str(index * 7919 % 5000) for index in range(5000)]
    assert list(await TimeSlice(FairQueue()).in_order(names, str)) == sorted(names)
    some = await TimeSlice(FairQueue()).in_order(names, lambda name: name if name >= "4" else None)
    assert list(some) == sorted(name for name in names if name >= "4")
    assert list(await TimeSlice(FairQueue()).in_order([], str)) == []


async def test_many_steps_run_as_burst_then_one_per_iteration(
    mock_clock: MockClock,
) -> None:
    throttle, counter = StepThrottle(), TimeSliceCounter()
    order: list[int] = []

    def step(index: int) -> None:
        mock_clock.jump(BURST_SECONDS / 4)
        order.append(index)
        counter.slices[-1] += 1

    async def run_step(index: int) -> None:
        await start.wait()
        await throttle.run(lambda: step(index))

    start = trio.Event()
    async with trio.open_nursery() as nursery:
        for index in range(50):
            nursery.start_soon(run_step, index)
        await wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(counter)
        start.set()
    trio.lowlevel.remove_instrument(counter)
    burst, *later_slices = sorted(counter.slices, reverse=True)
    assert 1 < burst <= BURST_SECONDS / (STEP_REST - 1) / (BURST_SECONDS / 4) + 1
    assert max(later_slices) == 1
    assert sorted(order) == list(range(50))
    assert len(counter.slices) < 50 + 10, "nearly every iteration has one"


async def test_rare_steps_do_not_wait(mock_clock: MockClock) -> None:
    throttle, counter = StepThrottle(), TimeSliceCounter()
    trio.lowlevel.add_instrument(counter)
    for _ in range(50):
        await throttle.run(lambda: mock_clock.jump(BURST_SECONDS))
        mock_clock.jump((STEP_REST - 1) * BURST_SECONDS)
    trio.lowlevel.remove_instrument(counter)
    assert counter.slices == [0]


async def test_failed_step_counts_as_work(mock_clock: MockClock) -> None:
    throttle = StepThrottle()

    def fail() -> None:
        mock_clock.jump(10 * BURST_SECONDS)
        raise ValueError("it fails")

    counter = TimeSliceCounter()
    for _ in range(2):
        with pytest.raises(ValueError, match="it fails"):
            await throttle.run(fail)
    trio.lowlevel.add_instrument(counter)
    await throttle.run(lambda: None)
    trio.lowlevel.remove_instrument(counter)
    assert len(counter.slices) > 1, "the next step waits for other clients"


async def test_quiet_client_does_not_wait_for_all_new_connections(mock_clock: MockClock) -> None:
    queue = FairQueue()
    quiet, served = TimeSlice(queue), 0
    mock_clock.jump(2 * QUIET_SECONDS)

    async def connect() -> None:
        nonlocal served
        await TimeSlice(queue).next()
        served += 1

    async with trio.open_nursery() as nursery:
        for _ in range(300):
            nursery.start_soon(connect)
        await trio.lowlevel.checkpoint()
        await quiet.next()
        assert served <= 4
        quiet.begin(trio.current_time())
        await quiet.next()
        assert served == 300, "this client has just waited, like the others"


async def test_time_slice_does_not_include_waits(mock_clock: MockClock) -> None:
    time_slice = TimeSlice(FairQueue())

    async def wait_in_between() -> None:
        mock_clock.jump(TIME_SLICE_SECONDS / 2)
        await trio.lowlevel.checkpoint()
        start.set()
        await jumped.wait()

    async def jump() -> None:
        await start.wait()
        mock_clock.jump(10 * TIME_SLICE_SECONDS)
        jumped.set()

    start, jumped = trio.Event(), trio.Event()
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
        assert not time_slice.is_over, "threads used the CPU"
        used += TIME_SLICE_SECONDS
        assert time_slice.is_over
        time_slice.begin(trio.current_time())
        mock_clock.jump(TIME_SLICE_SECONDS + STALLED_TIME_SLICE_SECONDS)
        assert time_slice.is_over, "other clients have waited for too long"


async def test_iteration_does_not_wait_after_last_item(mock_clock: MockClock) -> None:
    queue = FairQueue()
    time_slice = TimeSlice(queue)
    async for _ in time_slice.each([1]):
        mock_clock.jump(TIME_SLICE_SECONDS)
    assert time_slice.is_over, "the loop ended without another time slice"
