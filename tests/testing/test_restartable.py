"""Consecutive runs of one broker."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial

import pytest
import trio

from kbroker.config import BrokerConfig
from kbroker.testing.async_broker import RunningBroker, run_broker
from kbroker.testing.broker_security import UNSECURED
from kbroker.testing.broker_thread import BrokerThread
from kbroker.testing.clock import MovableClock
from kbroker.testing.kit import WaitTimeout
from kbroker.testing.log_tail import LogTail
from kbroker.testing.restartable import RestartableBroker
from kbroker.testing.rules import Faults
from kbroker.testing.stores import BreakableStore, MemoryStore, Store


@pytest.fixture
def thread() -> Iterator[BrokerThread]:
    thread = BrokerThread()
    yield thread
    thread.close()


def new_restartable_broker(thread: BrokerThread, store: Store) -> RestartableBroker:
    config = BrokerConfig.load()
    open_run = partial(
        run_broker, config, store, faults=Faults(), clock=MovableClock(), log=LogTail()
    )
    return RestartableBroker(open_run, store, thread, [UNSECURED.listener(config)], None)


async def list_topics(running: RunningBroker) -> dict[str, int]:
    return await running.topics()


def test_restarted_broker_has_its_port_and_its_data(thread: BrokerThread) -> None:
    broker = new_restartable_broker(thread, MemoryStore(2**20))
    broker.start()
    servers, first = broker.bootstrap_servers, broker.running
    thread.call(first.create_topic, "t")
    with broker.restarting():
        broker.end()
        assert broker.watched is first
    assert broker.bootstrap_servers == servers
    assert thread.call(list_topics, broker.running) == {"t": 1}
    broker.stop()


def test_stopped_broker_is_not_running(thread: BrokerThread) -> None:
    broker = new_restartable_broker(thread, MemoryStore(2**20))
    broker.start()
    broker.stop()
    with pytest.raises(RuntimeError):
        _ = broker.running
    with pytest.raises(RuntimeError):
        _ = broker.watched


def test_broker_without_disk_cannot_crash(thread: BrokerThread) -> None:
    broker = new_restartable_broker(thread, MemoryStore(2**20))
    with pytest.raises(ValueError, match="no disk that can fail"):
        broker.crash_at("produce.appended", "drop", 0)


def test_broker_starts_again_after_a_power_cut(thread: BrokerThread) -> None:
    broker = new_restartable_broker(thread, BreakableStore())
    broker.start()
    servers = broker.bootstrap_servers
    broker.power_cut("drop", 0)
    assert broker.bootstrap_servers == servers
    assert thread.call(list_topics, broker.running) == {}
    broker.stop()


def test_crash_that_ends_broker_after_the_timeout_is_handled(
    thread: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash, the tasks of the broker take some time to end."""
    store = BreakableStore()
    broker = new_restartable_broker(thread, store)
    broker.start()

    def crash_and_time_out(_: float) -> bool:
        store.disk.cut("drop", 0)
        return False

    monkeypatch.setattr(broker, "_wait_for_end", crash_and_time_out)
    broker.wait_for_crash(timeout=20)
    assert thread.call(list_topics, broker.running) == {}
    broker.stop()


def test_wait_for_crash_that_was_not_requested_names_crash_at(thread: BrokerThread) -> None:
    broker = new_restartable_broker(thread, BreakableStore())
    broker.start()
    with pytest.raises(WaitTimeout, match=r"call crash_at\(\) first"):
        broker.wait_for_crash(timeout=0.01)
    broker.crash_at("index.written", "drop", 0)
    with pytest.raises(WaitTimeout, match=r"'index\.written'; check"):
        broker.wait_for_crash(timeout=0.01)
    broker.stop()


class Interrupted(BaseException):
    """Raised in the main thread, as Ctrl+C and timeouts of tests do."""


@contextlib.contextmanager
def interrupted_at(started: threading.Event) -> Iterator[None]:
    """Interrupt the main thread in the block after an event, and expect that."""

    def interrupt(*_: object) -> None:
        raise Interrupted

    def send_signal() -> None:
        started.wait()
        time.sleep(0.1)  # until the main thread waits for the call
        signal.pthread_kill(main, signal.SIGUSR1)

    main = threading.get_ident()
    before = signal.signal(signal.SIGUSR1, interrupt)
    sender = threading.Thread(target=send_signal)
    sender.start()
    try:
        with pytest.raises(Interrupted):
            yield
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGUSR1")
def test_interrupted_call_is_cancelled(thread: BrokerThread) -> None:
    started, ended = threading.Event(), threading.Event()

    async def wait() -> None:
        started.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    with interrupted_at(started):
        thread.call(wait)
    assert ended.wait(20)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGUSR1")
def test_interrupted_start_leaves_nothing_open(thread: BrokerThread) -> None:
    started, closed = threading.Event(), threading.Event()

    @contextlib.asynccontextmanager
    async def open_slowly() -> AsyncIterator[None]:
        started.set()
        try:
            await trio.sleep(1)
            yield
        finally:
            closed.set()

    with interrupted_at(started):
        thread.open_resource(open_slowly)
    assert closed.wait(20)


def test_call_after_the_end_of_the_thread_names_the_remedy(thread: BrokerThread) -> None:
    thread.close()
    with pytest.raises(RuntimeError, match="has ended; create a new broker"):
        thread.call(trio.lowlevel.checkpoint)
