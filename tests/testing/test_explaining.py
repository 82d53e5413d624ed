"""Explanations of groups and partitions, with the actions of the test."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka import KafkaProducer

from kbroker.protocol.errors import KafkaError
from kbroker.testing import LocalBroker, WaitTimeout, open_test_broker

from .test_clock import member

MEMBER: dict[str, Any] = {
    "client.id": "app",
    "session.timeout.ms": 6_000,
    "heartbeat.interval.ms": 100,
}
TIME = r"\d\d:\d\d:\d\d"


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(topics={"orders": 2}) as broker:
        yield broker


def test_explanation_shows_missed_heartbeats_fault_and_clock(broker: LocalBroker) -> None:
    """The explanation has the fault, the moved clock and the rebalance, in this order."""
    with member(broker, **MEMBER):
        (group_member,) = broker.wait_for_group("g", members=1, timeout=10).members
        delayed = broker.fault("Heartbeat", group="g").delay(500)
        delayed.wait(1, timeout=10)
        broker.clock.coordinator.advance(seconds=7)
        text = broker.explain.group("g")
    expected_lines = [
        r"fault delay for Heartbeat, group 'g' hit Heartbeat \d+, group 'g' from 'app'",
        r"the test moved the coordinators' clock 7 s ahead",
        rf"rebalance 2 because member {group_member.id} missed heartbeats {TIME}-{TIME}",
    ]
    assert re.search(".*".join(expected_lines), text, re.DOTALL), text


def test_explanation_of_share_partition_shows_test_actions(broker: LocalBroker) -> None:
    broker.fault("Produce", error="NOT_LEADER_OR_FOLLOWER", topic="orders", partition=0).times(1)
    client = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, retry_backoff_ms=10)
    client.send("orders", b"x", partition=0).get(10)
    client.close()
    text = broker.explain.share("workers", "orders", 0)
    assert text.startswith("group workers in orders-0: no connected member has fetched records")
    assert "fault NOT_LEADER_OR_FOLLOWER" in text


def test_explanation_omits_other_groups_and_topics(broker: LocalBroker) -> None:
    broker.fault("Produce", topic="orders", partition=1).optional()
    broker.fault("Produce", error="NOT_LEADER_OR_FOLLOWER", topic="orders", partition=0).times(2)
    client = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, retry_backoff_ms=10)
    client.send("orders", b"x", partition=0).get(10)
    client.close()
    explanation = broker.explain.partition("orders", 0)
    assert (
        "fault NOT_LEADER_OR_FOLLOWER for Produce, topic 'orders', partition 0 hit Produce"
        in explanation
    )
    assert explanation.endswith(" and 1 more")
    assert "fault" not in broker.explain.partition("orders", 1)
    assert "fault" not in broker.explain.group("g")


def test_explanation_shows_failed_disk() -> None:
    with LocalBroker(topics={"orders": 1}, disk=True) as broken:
        broken.disk.fail("fsync")
        with pytest.raises(KafkaError):
            broken.produce("orders", "x")
        text = broken.explain.partition("orders", 0)
        assert text.startswith("partition orders-0 is offline on node 1: ")
        assert re.search(
            rf"\n  {TIME}\.\d+ topic orders created: CreateTopics by kbroker-kit", text
        )
        assert re.search(rf"\n  {TIME}\.\d+ offline because ", text)
        assert "partition orders-0 is offline" in broken.report()


def test_report_of_crashed_broker_names_crash() -> None:
    with LocalBroker(topics={"orders": 1}, disk=True) as broken:
        broken.crash_at("produce.appended")
        client = Producer(
            {
                "bootstrap.servers": broken.bootstrap_servers,
                "client.id": "app",
                "reconnect.backoff.ms": 10,
                "log_level": 0,
            }
        )
        client.produce("orders", b"x")
        while "has crashed" not in broken.report():
            time.sleep(0.01)
        report = broken.report()
        with pytest.raises(RuntimeError, match="has crashed"):
            broken.wait_until_idle()
        broken.wait_for_crash()
        assert client.flush(10) == 0
    assert "client 'app' sent" in report


def test_explanation_shows_actions_of_test(broker: LocalBroker) -> None:
    with member(broker, **MEMBER):
        broker.wait_for_group("g", members=1, timeout=10)
        broker.expire_member("g", "app")
        text = broker.explain.group("g")
    assert re.search(r"the test expired member app\n.*rebalance 2 because member app-", text)
    broker.move_leader("orders", 1)
    broker.clock.advance(hours=1)
    text = broker.explain.partition("orders", 1)
    assert "the test moved the leader of orders [1]" in text
    assert "the test moved the logs' clock 3600 s ahead" in text
    assert "expired member" not in text
    assert "moved the leader" not in broker.explain.group("g")


def test_failed_wait_explains_state(broker: LocalBroker) -> None:
    with member(broker, **MEMBER):
        broker.wait_for_group("g", members=1, timeout=10)
        with pytest.raises(WaitTimeout, match=r"(?s)group g is Stable: .*rebalance 1 because"):
            broker.wait_for_group("g", members=2, timeout=0.05)
        with pytest.raises(WaitTimeout, match="rebalance 1 because"):
            broker.wait_for_commit("g", "orders", 0, 99, timeout=0.05)
    with pytest.raises(WaitTimeout, match="group h does not exist"):
        broker.wait_for_lag("h", timeout=0.05)
    with pytest.raises(WaitTimeout, match="partition orders-1 is online"):
        broker.wait_for("orders", timeout=0.05)


def test_report_has_last_requests_of_each_client(broker: LocalBroker) -> None:
    for name in ("one", "two"):
        client = KafkaProducer(
            bootstrap_servers=broker.bootstrap_servers,
            client_id=name,
            enable_idempotence=False,
        )
        for _ in range(10):
            client.send("orders", b"x", partition=0).get(10)
        client.close()
    lines = broker.report().splitlines()
    for name in ("one", "two"):
        (position,) = [i for i, line in enumerate(lines) if f"client {name!r} sent" in line]
        assert len([line for line in lines[position + 1 : position + 6] if repr(name) in line]) == 5


async def test_failed_wait_in_trio_explains_state() -> None:
    async with open_test_broker(topics={"orders": 1}) as broker:
        assert broker.explain.partition("orders", 0).now.startswith("partition orders-0 is online")
        with pytest.raises(WaitTimeout, match="partition orders-0 is online"):
            await broker.wait_for("orders", timeout=0.01)
