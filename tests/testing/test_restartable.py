"""Consecutive runs of one broker."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from kbroker.config import BrokerConfig
from kbroker.testing.async_broker import RunningBroker, run_broker
from kbroker.testing.broker_security import UNSECURED
from kbroker.testing.broker_thread import BrokerThread
from kbroker.testing.clock import MovableClock
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
