"""Waits during restarts, stops and crashes of their broker."""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel

from kbroker.client.cluster import ClusterClient
from kbroker.testing import LocalBroker, Snapshot, WaitTimeout, open_test_broker
from kbroker.testing.clock import ClockStates
from kbroker.testing.kit import Kit, Pauses
from kbroker.testing.session_broker import SessionBroker
from kbroker.testing.stores import DirectoryStore

from .test_disk import crash_in_produce
from .test_snapshot import commit

# Maximum seconds of each wait; longer than any wait in this module takes.
RETRY_TIMEOUT_SECONDS = 20


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(topics={"orders": 1}, disk=True) as broker:
        yield broker


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as threads:
        yield threads


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + RETRY_TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def start_waits(
    threads: ThreadPoolExecutor, broker: LocalBroker, *waits: Callable[[], Any]
) -> list[Future[Any]]:
    """Start calls in threads, and return when all of them wait."""
    availability = broker.running.availability
    started = [threads.submit(wait) for wait in waits]
    wait_until(lambda: len(availability.attempts) == len(waits))
    return started


def order_wait(broker: LocalBroker, seconds: float = RETRY_TIMEOUT_SECONDS) -> Callable[[], Any]:
    return lambda: broker.wait_for("orders", timeout=seconds)


def crash_and_return(broker: LocalBroker) -> None:
    crash_in_produce(broker)
    broker.wait_for_crash()


@pytest.mark.parametrize(
    "interrupt",
    [
        LocalBroker.restart,
        LocalBroker.power_cut,
        crash_and_return,
        lambda broker: broker.restore(broker.snapshot()),
    ],
    ids=["restart", "power cut", "crash", "restore"],
)
def test_wait_continues_after_restart(
    broker: LocalBroker, threads: ThreadPoolExecutor, interrupt: Callable[[LocalBroker], None]
) -> None:
    (wait,) = start_waits(threads, broker, order_wait(broker))
    interrupt(broker)
    record = broker.produce("orders", "x")
    assert wait.result() == [record]


def test_all_waits_continue_after_restart(broker: LocalBroker, threads: ThreadPoolExecutor) -> None:
    fault = broker.fault("OffsetCommit")
    waits = start_waits(
        threads,
        broker,
        lambda: broker.expect("orders").value("x").within(RETRY_TIMEOUT_SECONDS),
        lambda: broker.wait_for_group("g", state="Empty", timeout=RETRY_TIMEOUT_SECONDS),
        lambda: broker.wait_for_commit("g", "orders", 0, 1, timeout=RETRY_TIMEOUT_SECONDS),
        lambda: broker.wait_for_lag("g", timeout=RETRY_TIMEOUT_SECONDS),
        lambda: broker.wait_for_request("OffsetCommit", timeout=RETRY_TIMEOUT_SECONDS),
        lambda: fault.wait(timeout=RETRY_TIMEOUT_SECONDS),
        lambda: broker.run_in_broker(
            lambda running: running.wait_for("orders", timeout=RETRY_TIMEOUT_SECONDS)
        ),
    )
    broker.restart()
    broker.produce("orders", "x")
    commit(broker, 1)
    for wait in waits:
        wait.result()


async def test_observation_is_repeated_if_broker_closes_its_connection() -> None:
    """The cancellation comes too late for an observation that fails at the same time."""
    observations = []

    async with open_test_broker() as broker, trio.open_nursery() as nursery:

        async def mark_available() -> None:
            broker.availability.mark_available()

        async def observe() -> tuple[bool, int]:
            observations.append(broker.availability.is_available)
            if len(observations) == 1:
                broker.availability.mark_unavailable()
                nursery.start_soon(mark_available)
                raise OSError(errno.EBADF, "Bad file descriptor")
            return True, 2

        assert await broker.wait_until(observe, "two observations", RETRY_TIMEOUT_SECONDS) == 2
    assert observations == [True, True]


@pytest.mark.parametrize("end", [LocalBroker.stop, LocalBroker.close])
def test_stop_fails_waits(
    broker: LocalBroker, threads: ThreadPoolExecutor, end: Callable[[LocalBroker], None]
) -> None:
    (wait,) = start_waits(threads, broker, order_wait(broker, 600))
    end(broker)
    with pytest.raises(RuntimeError, match="the broker is stopped"):
        wait.result(RETRY_TIMEOUT_SECONDS)


def test_wait_that_times_out_during_power_cut_names_it(
    broker: LocalBroker, threads: ThreadPoolExecutor
) -> None:
    (wait,) = start_waits(threads, broker, order_wait(broker, 0.5))
    crash_in_produce(broker)
    with pytest.raises(WaitTimeout, match="has crashed; wait_for_crash"):
        wait.result()


def test_wait_for_crash_continues_after_restart(
    broker: LocalBroker, threads: ThreadPoolExecutor
) -> None:
    broker.crash_at("produce.appended")
    wait = threads.submit(broker.wait_for_crash, RETRY_TIMEOUT_SECONDS)
    broker.restart()
    with contextlib.suppress(OSError):
        broker.produce("orders", "lost")
    wait.result()
    assert broker.records("orders") == []


async def test_close_fails_waits_of_trio_program() -> None:
    errors = []

    async with trio.open_nursery() as nursery, open_test_broker(topics={"orders": 1}) as broker:

        async def wait() -> None:
            try:
                await broker.wait_for("orders", timeout=600)
            except RuntimeError as error:
                errors.append(str(error))

        nursery.start_soon(wait)
        while not broker.availability.attempts:
            await trio.lowlevel.checkpoint()
    assert errors == ["the broker is closed"]


async def test_change_shortly_before_timeout_is_observed(autojump_clock: object) -> None:
    began = trio.current_time()

    async def observe() -> tuple[bool, float]:
        now = trio.current_time() - began
        return now >= 0.999, now

    cluster = ClusterClient([], "kit", direct=False)
    kit = Kit(cluster, Pauses(), lambda: 0)
    assert await kit.wait_until(observe, "a late change", 1) == pytest.approx(1)


async def test_change_during_slow_last_observation_is_observed(autojump_clock: object) -> None:
    """A busy machine may take longer for one observation than the timeout."""
    is_met = False

    async def observe() -> tuple[bool, None]:
        nonlocal is_met
        seen, is_met = is_met, True
        await trio.sleep(3)
        return seen, None

    cluster = ClusterClient([], "kit", direct=False)
    await Kit(cluster, Pauses(), lambda: 0).wait_until(observe, "a change", 1)


def restore_two_directories(broker: LocalBroker, directory: Path) -> None:
    store = DirectoryStore([str(directory / "one"), str(directory / "two")])
    broker.restore(Snapshot(store, ClockStates()))


@pytest.mark.parametrize("disk", [True, False])
def test_rejected_restore_keeps_broker_and_data(
    tmp_path: Path, threads: ThreadPoolExecutor, disk: bool
) -> None:
    with LocalBroker(topics={"orders": 1}, disk=disk) as broker:
        (wait,) = start_waits(threads, broker, order_wait(broker))
        with pytest.raises(ValueError, match="2 directories"):
            restore_two_directories(broker, tmp_path)
        record = broker.produce("orders", "x")
        assert wait.result() == broker.wait_for("orders") == [record]
        broker.restart()
        assert broker.records("orders") == [record]


def test_rejected_power_cut_keeps_broker_and_waits(
    broker: LocalBroker, threads: ThreadPoolExecutor
) -> None:
    (wait,) = start_waits(threads, broker, order_wait(broker))
    mode: Any = "drpo"
    with pytest.raises(ValueError, match="mode"):
        broker.power_cut(mode)
    record = broker.produce("orders", "x")
    assert wait.result() == broker.wait_for("orders") == [record]


class FailingService:
    """A service that fails on demand, and with it the broker."""

    def __init__(self) -> None:
        self._is_failing = False
        self._end = trio.Event()

    async def bind(self, nodes: object) -> None:
        self._is_failing, self._end = False, trio.Event()

    async def run(self) -> None:
        await self._end.wait()
        if self._is_failing:
            raise LookupError("the service is broken")

    async def close(self) -> None:
        self._end.set()

    async def fail(self, _: object) -> None:
        self._is_failing = True
        self._end.set()


def test_failed_broker_fails_waits_and_can_be_started(threads: ThreadPoolExecutor) -> None:
    service = FailingService()
    broker = LocalBroker(topics={"orders": 1}, service=service)
    (wait,) = start_waits(threads, broker, order_wait(broker, 600))
    broker.run_in_broker(service.fail)
    with pytest.raises(RuntimeError, match=r"the service is broken.*start"):
        wait.result(RETRY_TIMEOUT_SECONDS)
    with pytest.raises(RuntimeError, match=r"the service is broken.*start"):
        broker.topics()
    broker.start()
    assert broker.topics() == {"orders": 1}
    broker.run_in_broker(service.fail)
    with pytest.raises(LookupError):
        broker.close()


def test_session_broker_that_failed_in_one_test_runs_in_the_next() -> None:
    service = FailingService()
    with SessionBroker(service=service) as broker:
        broker.run_in_broker(service.fail)
        wait_until(lambda: broker._life.failure is not None)
        broker.clock.freeze()
        with pytest.raises(RuntimeError, match="the service is broken"):
            broker.reset()
        assert broker.topics() == {}
        broker.reset()
