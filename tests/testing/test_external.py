"""External Kafka: waits for visible idleness, and cleanup after tests.

The external Kafka of these tests is a broker of this process, so that tests can control it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kbroker.testing import ExternalKafka, LocalBroker, WaitTimeout

from .test_clock import member
from .test_local import call_soon

SETTLE_SECONDS = 0.2


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(topics={"orders": 2}) as broker:
        yield broker


@pytest.fixture
def kafka(broker: LocalBroker) -> Iterator[ExternalKafka]:
    kafka = ExternalKafka(broker.bootstrap_servers, settle_seconds=SETTLE_SECONDS)
    kafka.begin_test()
    yield kafka
    kafka.close()


def commit(broker: LocalBroker, group: str, topic: str = "orders") -> None:
    """Create a group with committed offsets and no members."""
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": group, "log_level": 0}
    client = Consumer(settings)
    client.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    client.close()


def open_producer(broker: LocalBroker, transactional_id: str, topic: str) -> Producer:
    """Return a producer that has written a record in an open transaction."""
    settings = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}
    producer = Producer(settings | {"transactional.id": transactional_id})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(topic, b"x")
    producer.flush(10)
    return producer


# -- idleness


def test_external_kafka_is_idle_after_settle_time_without_changes(
    broker: LocalBroker, kafka: ExternalKafka
) -> None:
    with member(broker):
        for number in range(20):
            kafka.produce("orders", f"{number}", key=f"{number}")
        began = time.monotonic()
        kafka.wait_until_idle(timeout=20)
        assert time.monotonic() - began >= SETTLE_SECONDS
        assert kafka.lag("g") == 0


def test_change_restarts_settle_time(broker: LocalBroker) -> None:
    kafka = ExternalKafka(broker.bootstrap_servers, settle_seconds=1)
    kafka.begin_test()
    kafka.produce("orders", "first")
    written_at: list[float] = []

    def write() -> None:
        written_at.append(time.monotonic())
        broker.produce("orders", "second")

    with call_soon(write):
        kafka.wait_until_idle(timeout=20)
        idle_at = time.monotonic()
    assert idle_at - written_at[0] >= 1
    kafka.close()


def test_failed_wait_names_pending_work_of_external_kafka(
    broker: LocalBroker, kafka: ExternalKafka
) -> None:
    with member(broker):
        fault = broker.fault("OffsetCommit", error="COORDINATOR_LOAD_IN_PROGRESS").always()
        kafka.produce("orders", "x", partition=1)
        seen = r"for 0\.2 s; seen last: group g: has committed None of 1 in orders-1"
        with pytest.raises(WaitTimeout, match=seen):
            kafka.wait_until_idle(timeout=0.3)
        with pytest.raises(WaitTimeout, match=seen):
            kafka.wait_until_idle("g", timeout=0.3)
        fault.disarm()
        kafka.wait_until_idle(timeout=20)


def test_open_transaction_prevents_idleness(broker: LocalBroker, kafka: ExternalKafka) -> None:
    broker.create_topic("of-others")
    others = open_producer(broker, "another", "of-others")
    kafka.produce("orders", "x")
    kafka.wait_until_idle(timeout=20)
    mine = open_producer(broker, "tx", "orders")
    with pytest.raises(WaitTimeout, match="seen last: the transaction of tx is Ongoing"):
        kafka.wait_until_idle(timeout=0.3)
    mine.commit_transaction(10)
    kafka.wait_until_idle(timeout=20)
    others.abort_transaction(10)


def test_uncommitted_changelog_does_not_prevent_idleness(
    broker: LocalBroker, kafka: ExternalKafka
) -> None:
    broker.create_topic("changelog", configs={"cleanup.policy": "compact"})
    for topic in ("orders", "changelog"):
        kafka.produce(topic, "x", key="k", partition=0)
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "log_level": 0}
    client = Consumer(settings | {"enable.auto.commit": False})
    client.subscribe(["orders", "changelog"])
    while not client.assignment():
        client.poll(0.05)
    client.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
    kafka.wait_until_idle(timeout=20)
    client.close()


def test_expect_nothing_fails_on_unknown_record(broker: LocalBroker, kafka: ExternalKafka) -> None:
    broker.produce("orders", "surprise", partition=0)
    with pytest.raises(AssertionError, match=r"'orders' has records that(?s:.*)surprise"):
        kafka.expect_nothing("orders")
    kafka.begin_test()
    kafka.produce("orders", "mine")
    kafka.expect_nothing("orders")
    kafka.expect_nothing("a topic that is not there")


def test_recreated_topic_is_empty(broker: LocalBroker, kafka: ExternalKafka) -> None:
    broker.produce("orders", "old", partition=0)
    kafka.begin_test()
    kafka.recreate_topic("orders", 1)
    broker.produce("orders", "new", partition=0)
    with pytest.raises(AssertionError, match="new"):
        kafka.expect_nothing("orders")


# -- cleanup


def test_end_of_test_deletes_only_its_groups(broker: LocalBroker, kafka: ExternalKafka) -> None:
    broker.create_topic("of-others")
    commit(broker, "of before")
    with kafka.one_test():
        kafka.create_topic("made")
        commit(broker, "of another test", "of-others")
        commit(broker, "named", "of-others")
        kafka.wait_for_commit("named", "of-others", 0, 0)
        commit(broker, "reads what was made", "made")
    left = [name for name in GROUPS if broker.group(name) is not None]
    assert left == ["of before", "of another test"]
    assert set(broker.topics()) == {"orders", "of-others"}


GROUPS = ("of before", "of another test", "named", "reads what was made")


def test_group_with_members_is_deleted_after_later_test(
    broker: LocalBroker, kafka: ExternalKafka
) -> None:
    with kafka.one_test():
        kafka.produce("orders", "x")
        open_member = member(broker)
        open_member.__enter__()
    assert broker.group("g") is not None
    open_member.__exit__(None, None, None)
    with kafka.one_test():
        pass
    assert broker.group("g") is None


def test_end_of_test_aborts_its_transactions(broker: LocalBroker, kafka: ExternalKafka) -> None:
    broker.create_topic("of-others")
    others = open_producer(broker, "another", "of-others")
    with kafka.one_test():
        kafka.produce("orders", "x")
        open_producer(broker, "tx", "orders")
    explanation = str(broker.explain.transaction("tx"))
    assert "CompleteAbort" in explanation
    assert "has no transaction open" in explanation
    assert "is Ongoing" in str(broker.explain.transaction("another"))
    others.abort_transaction(10)
