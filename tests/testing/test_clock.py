"""Log clock and coordinator clock that a test moves independently."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import trio
from confluent_kafka import Consumer
from kafka import KafkaProducer

from kbroker.testing import LocalBroker, RunningBroker, open_test_broker
from kbroker.testing.clock import AdjustableClock, MovableClock, milliseconds
from kbroker.testing.real_clock import RealClock

from ..handlers.test_groups import Member, state
from ..wire import connected

DAY_MS = 24 * 3_600_000


@contextmanager
def member(broker: LocalBroker, group: str = "g", **settings: Any) -> Iterator[None]:
    """Run a consumer that polls in a thread, so that its group has a live member."""
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
        | settings
    )
    client.subscribe(["orders"])
    is_polling = True

    def poll() -> None:
        while is_polling:
            client.poll(0.05)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        broker.wait_for_group(group, members=1, timeout=10)
        yield
    finally:
        is_polling = False
        thread.join()
        client.close()


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with LocalBroker() as broker:
        yield broker


def test_retention_runs_when_clock_advances(broker: LocalBroker) -> None:
    broker.create_topic("orders", configs={"retention.ms": str(24 * 3600 * 1000)})
    broker.produce("orders", "old")
    broker.clock.advance(hours=23)
    broker.produce("orders", "young")
    assert len(broker.records("orders")) == 2
    broker.clock.advance(hours=2)
    assert len(broker.records("orders")) == 2, "all records are in one segment"
    broker.clock.advance(hours=23)
    assert broker.records("orders") == []
    assert broker.produce("orders", "new").offset == 2


def test_kit_records_have_time_of_broker_clock(broker: LocalBroker) -> None:
    before = broker.produce("orders", "x").timestamp
    broker.clock.advance(days=7)
    assert broker.produce("orders", "y").timestamp - before >= 7 * 24 * 3600 * 1000


def test_log_clock_does_not_expire_members(broker: LocalBroker) -> None:
    broker.create_topic("orders")
    with member(broker):
        broker.clock.advance(hours=25)
        time.sleep(0.2)
        group = broker.group("g")
        assert group is not None
        assert (group.state, len(group.members)) == ("Stable", 1)


def test_unused_offsets_expire_when_clock_advances(broker: LocalBroker) -> None:
    broker.produce("orders", "x")
    with member(broker):
        broker.wait_for_commit("g", "orders", 0, 1, timeout=10)
    broker.wait_for_group("g", state="Empty", members=0)
    broker.clock.advance(days=6)
    assert broker.committed("g") == {("orders", 0): 1}
    broker.clock.advance(days=2)
    assert broker.committed("g") == {}


def test_compaction_waits_for_minimum_lag(broker: LocalBroker) -> None:
    configs = {
        "cleanup.policy": "compact",
        "min.compaction.lag.ms": str(DAY_MS),
        "min.cleanable.dirty.ratio": "0.01",
        "segment.ms": "3600000",
    }
    broker.create_topic("state", configs=configs)
    for number in range(3):
        broker.produce("state", f"{number}", key="k")
    broker.clock.advance(hours=2)
    # This record rolls a new segment, so that the previous one can be compacted.
    broker.produce("state", "3", key="k")
    broker.clock.advance(hours=21)
    assert len(broker.records("state")) == 4
    broker.clock.advance(hours=2)
    assert [record.text for record in broker.records("state")] == ["2", "3"]


def test_tombstones_are_removed_one_day_after_compaction(broker: LocalBroker) -> None:
    """Compaction keeps a tombstone for one day. A later compaction removes it, as in Kafka."""
    configs = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": str(DAY_MS),
        "segment.ms": "3600000",
    }
    broker.create_topic("state", configs=configs)
    broker.produce("state", "1", key="k")
    broker.produce("state", None, key="k")
    broker.clock.advance(hours=2)
    broker.produce("state", "x", key="other")
    broker.clock.advance(hours=12)
    assert [record.value for record in broker.records("state")] == [None, b"x"]
    broker.clock.advance(hours=15)
    assert broker.records("state")[0].value is None
    # The records roll a new segment, so that the previous one can be compacted.
    for _ in range(2):
        broker.produce("state", "y", key="other")
        broker.clock.advance(hours=2)
    assert None not in [record.value for record in broker.records("state")]


def count_producers(broker: LocalBroker) -> int:
    """Return the number of producers in the log of orders-0."""

    async def count(running: RunningBroker) -> int:
        log = running.broker.node.partitions.logs.get("orders", 0)
        assert log is not None
        return len(list(log.producers))

    return broker.run_in_broker(count)


def test_producer_continues_after_its_state_expired(broker: LocalBroker) -> None:
    broker.create_topic("orders", configs={"retention.ms": "-1"})
    client = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, enable_idempotence=True)
    client.send("orders", b"1").get(10)
    broker.clock.advance(hours=23)
    assert count_producers(broker) == 1
    broker.clock.advance(hours=2)
    assert count_producers(broker) == 0
    assert client.send("orders", b"2").get(10).offset == 1
    client.close()


def test_frozen_log_clock_moves_only_on_advance(broker: LocalBroker) -> None:
    broker.create_topic("orders", configs={"retention.ms": str(DAY_MS)})
    broker.clock.freeze()
    first = broker.produce("orders", "1").timestamp
    time.sleep(0.01)
    assert broker.produce("orders", "2").timestamp == first
    broker.clock.advance(hours=23)
    assert broker.produce("orders", "3").timestamp == first + 23 * 3_600_000
    broker.clock.resume()
    assert broker.produce("orders", "4").timestamp >= first + 23 * 3_600_000


@asynccontextmanager
async def group_with_two_sessions() -> AsyncIterator[RunningBroker]:
    """Run a broker with a stable group of two members.

    The session timeouts are 10 s and 300 s, the rebalance timeouts 60 s.
    """
    async with (
        open_test_broker() as broker,
        connected(broker.broker.endpoint) as one,
        connected(broker.broker.endpoint) as two,
        trio.open_nursery() as nursery,
    ):
        broker.clock.coordinator.freeze()  # real time must not affect the coordinator clock
        short = Member(one, session_timeout_ms=10_000, rebalance_timeout_ms=60_000)
        long = Member(two, session_timeout_ms=300_000, rebalance_timeout_ms=60_000)
        await short.enter()
        nursery.start_soon(long.enter)
        await broker.wait_for_group("g", members=2, state="PreparingRebalance")
        await short.enter()
        await broker.wait_for_group("g", members=2)
        yield broker


async def test_timeouts_are_handled_in_order() -> None:
    """The session timeout starts a rebalance, whose timeout is due as well."""
    async with group_with_two_sessions() as broker:
        await broker.advance_coordinator(9_000, keep_members=False)
        assert len(state(broker.broker).members) == 2
        await broker.advance_coordinator(2_000, keep_members=False)
        assert state(broker.broker).group_state == "PreparingRebalance"
        assert len(state(broker.broker).members) == 1
        await broker.advance_coordinator(60_000, keep_members=False)
        assert state(broker.broker).group_state == "Empty"


@pytest.mark.parametrize(("seconds", "state_after"), [(69, "PreparingRebalance"), (71, "Empty")])
async def test_one_advance_handles_timeouts_that_others_cause(
    seconds: int, state_after: str
) -> None:
    """The session timeout takes 10 s, and the rebalance that follows takes 60 s."""
    async with group_with_two_sessions() as broker:
        await broker.advance_coordinator(seconds * 1000, keep_members=False)
        assert state(broker.broker).group_state == state_after


async def test_kept_members_do_not_expire() -> None:
    async with open_test_broker() as broker, connected(broker.broker.endpoint) as wire:
        broker.clock.coordinator.freeze()
        member = Member(wire, session_timeout_ms=10_000)
        await member.enter()
        await broker.advance_coordinator(100_000, keep_members=True)
        assert await member.heartbeat() == 0
        await broker.advance_coordinator(11_000, keep_members=False)
        assert state(broker.broker).group_state == "Empty"


def test_coordinator_clock_expires_members(broker: LocalBroker) -> None:
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
        broker.wait_for_group("g", members=1, timeout=10)  # the member joins again


def test_frozen_clock_stands_still_until_resumed() -> None:
    clock = MovableClock()
    clock.log.freeze()
    frozen_at = clock.log_ms()
    time.sleep(0.01)
    assert clock.log_ms() == frozen_at
    clock.log.add(1000)
    assert clock.log_ms() == frozen_at + 1000
    began = time.monotonic()
    clock.log.resume()
    passed = clock.log_ms() - frozen_at - 1000
    assert 0 <= passed <= (time.monotonic() - began) * 1000 + 1
    with pytest.raises(ValueError, match="cannot move a clock back"):
        milliseconds(days=0, hours=-1, minutes=0, seconds=0)


def test_client_record_is_as_old_as_clock_is_ahead() -> None:
    """Clients use real time for timestamps; the kit uses the broker's clock."""
    with LocalBroker(topics=["t"], config={"log.retention.hours": 24}) as broker:
        broker.clock.advance(hours=25)
        broker.produce("t", "of a client", timestamp=int(time.time() * 1000))
        broker.clock.advance(seconds=1)
        assert broker.records("t") == []
        broker.produce("t", "of the kit")
        broker.clock.advance(seconds=1)
        assert [record.text for record in broker.records("t")] == ["of the kit"]


def test_clock_never_goes_back_while_it_is_resumed() -> None:
    """The broker reads the clock in another thread, also between two steps of a change."""
    seen: list[int] = []

    class ObservedClock(AdjustableClock):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if is_observed:
                seen.append(self.now_ms())

    is_observed, real_ms = False, 1000
    clock = ObservedClock(RealClock(), log=True)
    clock._real = lambda: real_ms
    is_observed = True
    clock.freeze()
    real_ms += 5000
    clock.add(10)
    clock.resume()
    real_ms += 1
    clock.add(0)
    assert seen == [1000, 1010, 1010, 1011]
