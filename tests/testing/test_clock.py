"""Time that a test moves: logs age, members stay, and the other way round."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer

from kbroker.testing import LocalBroker
from kbroker.testing.clock import MovableClock, milliseconds


@contextmanager
def member(broker: LocalBroker, group: str = "g") -> Iterator[None]:
    """A consumer that polls in a thread, so that its group sees a living member."""
    client = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 50,
            "session.timeout.ms": 30_000,
            "heartbeat.interval.ms": 200,
            "log_level": 0,
        }
    )
    client.subscribe(["orders"])
    going = True

    def poll() -> None:
        while going:
            client.poll(0.05)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        broker.wait_for_group(group, members=1, timeout=10)
        yield
    finally:
        going = False
        thread.join()
        client.close()


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with LocalBroker() as broker:
        yield broker


def test_retention_without_waiting(broker: LocalBroker) -> None:
    broker.create_topic("orders", configs={"retention.ms": str(24 * 3600 * 1000)})
    broker.produce("orders", "old")
    broker.clock.advance(hours=23)
    broker.produce("orders", "young")
    assert len(broker.records("orders")) == 2
    broker.clock.advance(hours=2)
    assert len(broker.records("orders")) == 2, "they are in one segment"
    broker.clock.advance(hours=23)
    assert broker.records("orders") == []
    assert broker.produce("orders", "new").offset == 2


def test_records_get_the_time_of_the_broker(broker: LocalBroker) -> None:
    before = broker.produce("orders", "x").timestamp
    broker.clock.advance(days=7)
    assert broker.produce("orders", "y").timestamp - before >= 7 * 24 * 3600 * 1000


def test_a_day_passes_and_no_member_notices(broker: LocalBroker) -> None:
    broker.create_topic("orders")
    with member(broker):
        broker.clock.advance(hours=25)
        time.sleep(0.2)
        group = broker.group("g")
        assert group is not None
        assert (group.state, len(group.members)) == ("Stable", 1)


def test_offsets_expire_when_nobody_uses_them(broker: LocalBroker) -> None:
    broker.produce("orders", "x")
    with member(broker):
        broker.wait_for_commit("g", "orders", 0, 1, timeout=10)
    broker.wait_for_group("g", state="Empty", members=0)
    broker.clock.advance(days=6)
    assert broker.committed("g") == {("orders", 0): 1}
    broker.clock.advance(days=2)
    assert broker.committed("g") == {}


def test_members_time_out_on_demand(broker: LocalBroker) -> None:
    broker.create_topic("orders")
    with member(broker):
        broker.clock.coordinator.advance(seconds=50, keep_members=True)
        group = broker.group("g")
        assert group is not None
        assert len(group.members) == 1
        broker.clock.coordinator.advance(seconds=50)
        group = broker.group("g")
        assert group is not None
        assert (group.state, group.members) == ("Empty", [])
        broker.wait_for_group("g", members=1, timeout=10)  # and it comes back


def test_a_clock_that_stands_still() -> None:
    clock = MovableClock()
    clock.log.freeze()
    stood = clock.log_ms()
    time.sleep(0.01)
    assert clock.log_ms() == stood
    clock.log.add(1000)
    assert clock.log_ms() == stood + 1000
    clock.log.resume()
    assert stood + 1000 <= clock.log_ms() < stood + 1500
    with pytest.raises(ValueError, match="does not go back"):
        milliseconds(days=0, hours=-1, minutes=0, seconds=0)
