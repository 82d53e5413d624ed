"""External Kafka: waits for visible idleness, and cleanup after tests.

The external Kafka of these tests is a broker of this process, so that tests can control it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kbroker.client import consumer
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.testing import ExternalKafka, LocalBroker, WaitTimeout, kit

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


# -- leftovers, and changes by other tests


def count_threads() -> int:
    return sum(each.name == "kbroker" for each in threading.enumerate())


def test_failed_start_leaves_no_thread() -> None:
    before = count_threads()
    with pytest.raises(ValueError, match="localhost:x"):
        ExternalKafka("localhost:x")
    assert count_threads() == before


def test_external_kafka_can_be_closed_twice(broker: LocalBroker) -> None:
    kafka = ExternalKafka(broker.bootstrap_servers)
    kafka.close()
    kafka.close()


def test_failed_cleanup_of_groups_does_not_keep_topics(
    kafka: ExternalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    monkeypatch.setattr(kafka._kit, "_delete_groups", fail)
    with pytest.raises(KafkaError, match="COORDINATOR_NOT_AVAILABLE"), kafka.one_test():
        kafka.create_topic("mine")
    assert "mine" not in kafka.topics()


def test_topic_whose_deletion_failed_is_deleted_later(
    kafka: ExternalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def reject(*_: object) -> dict[str, tuple[ErrorCode, str]]:
        return {"mine": (ErrorCode.NOT_CONTROLLER, "try later")}

    with monkeypatch.context() as patch:
        patch.setattr("kbroker.testing.kit.delete_topics", reject)
        with pytest.raises(KafkaError, match="try later"), kafka.one_test():
            kafka.create_topic("mine")
    with kafka.one_test():
        assert "mine" in kafka.topics()
    assert "mine" not in kafka.topics()


def test_topic_that_another_test_deletes_does_not_fail_begin_of_test(
    kafka: ExternalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests of parallel workers share a broker with `--kbroker-shared`."""
    known = kafka.topics()
    listed = iter([known | {"deleted": 1}, known])

    async def topics() -> dict[str, int]:
        return next(listed)

    monkeypatch.setattr(kafka._kit, "topics", topics)
    kafka._remember_log_ends()
    monkeypatch.undo()
    assert kafka.topics() == known


def test_wait_until_idle_ignores_topic_that_another_test_deletes(
    kafka: ExternalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = kafka.topics()
    listed = iter([known | {"deleted": 1}])

    async def topics() -> dict[str, int]:
        return next(listed, known)

    monkeypatch.setattr(kafka._kit, "topics", topics)
    kafka.wait_until_idle()


def test_records_that_are_deleted_while_they_are_read_are_left_out(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.produce("orders", "old", partition=0)

    def reading_after_deletion(*args: Any, **settings: Any) -> Any:
        monkeypatch.undo()

        @asynccontextmanager
        async def reading() -> AsyncIterator[Any]:
            await broker.running.offset_out_of_range("orders", 0)
            async with consumer.reading(*args, **settings) as channel:
                yield channel

        return reading()

    monkeypatch.setattr(kit, "reading", reading_after_deletion)
    assert broker.records("orders") == []
