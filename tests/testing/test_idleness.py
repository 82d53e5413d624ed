"""Waits for an idle broker, and expectations of records."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio
from confluent_kafka import Consumer, Producer, TopicPartition

from kbroker.testing import ExternalKafka, LocalBroker, UnfiredFault, WaitTimeout
from kbroker.testing.expectation import seconds

from .test_clock import member
from .test_local import call_soon


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(topics={"orders": 2}) as broker:
        yield broker


@pytest.fixture
def other_program(broker: LocalBroker) -> Iterator[ExternalKafka]:
    """Yield a second client, whose records the test does not know."""
    kafka = ExternalKafka(broker.bootstrap_servers)
    yield kafka
    kafka.close()


def test_broker_is_idle_when_all_records_are_consumed(broker: LocalBroker) -> None:
    broker.wait_until_idle()
    with member(broker):
        for number in range(50):
            broker.produce("orders", f"{number}", key=f"{number}")
        broker.wait_until_idle("g", timeout=10)
        assert broker.lag("g") == 0
        assert sum(broker.committed("g").values()) == 50


def test_failed_wait_until_idle_names_pending_work(broker: LocalBroker) -> None:
    with member(broker):
        broker.wait_until_idle(timeout=10)
        fault = broker.fault("OffsetCommit", error="COORDINATOR_LOAD_IN_PROGRESS").always()
        broker.produce("orders", "x", partition=1)
        with pytest.raises(WaitTimeout, match=r"group g: has committed None of 1 in orders-1"):
            broker.wait_until_idle(timeout=0.3)
        fault.disarm()
        broker.wait_until_idle(timeout=10)
        broker.fault("OffsetFetch").blackhole().optional()


def test_offsets_in_open_transaction_do_not_count_as_committed(broker: LocalBroker) -> None:
    broker.produce("orders", "x", partition=0)
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "tx", "log_level": 0}
    )
    producer.init_transactions(10)
    with paused_member(broker, "orders") as client:
        producer.begin_transaction()
        offsets = [TopicPartition("orders", 0, 1)]
        producer.send_offsets_to_transaction(offsets, client.consumer_group_metadata(), 10)
        assert broker.committed("g") == {}
        reason = "offsets are pending in open transactions of producer "
        with pytest.raises(WaitTimeout, match=reason):
            broker.wait_for_commit("g", "orders", 0, 1, timeout=0.3)
        with pytest.raises(WaitTimeout, match=r"group g: has committed None of 1 in orders-0"):
            broker.wait_until_idle(timeout=0.3)
        producer.commit_transaction(10)
        assert broker.wait_for_commit("g", "orders", 0, 1) == 1
        broker.wait_until_idle(timeout=10)


@contextmanager
def paused_member(broker: LocalBroker, *topics: str) -> Iterator[Consumer]:
    """Run a member of group g that consumes no records. It rejoins only when it is polled."""
    client = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "g",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    client.subscribe(list(topics), on_assign=pause, on_revoke=lambda *_: None)
    for _ in range(200):
        client.poll(0.05)
        if client.assignment():
            break
    yield client
    client.close()


def pause(client: Consumer, partitions: list[TopicPartition]) -> None:
    client.assign(partitions)
    client.pause(partitions)


def commit(client: Consumer, topic: str) -> None:
    client.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)


def test_uncommitted_changelog_does_not_prevent_idleness(broker: LocalBroker) -> None:
    broker.create_topic("changelog", configs={"cleanup.policy": "compact"})
    with paused_member(broker, "orders", "changelog") as client:
        broker.produce("changelog", "x", key="k")
        with pytest.raises(WaitTimeout, match="has committed None of 1 in changelog-0"):
            broker.wait_until_idle("g", timeout=0.1)
        broker.produce("orders", "x", partition=0)
        commit(client, "orders")
        broker.wait_until_idle("g")
        commit(client, "changelog")
        broker.produce("changelog", "y", key="k")
        with pytest.raises(WaitTimeout, match="has committed 1 of 2 in changelog-0"):
            broker.wait_until_idle("g", timeout=0.1)


def test_uncommitted_records_of_other_topic_prevent_idleness(broker: LocalBroker) -> None:
    broker.create_topic("bills")
    with paused_member(broker, "orders", "bills") as client:
        broker.produce("orders", "x", partition=0)
        commit(client, "orders")
        broker.produce("bills", "x")
        with pytest.raises(WaitTimeout, match="has committed None of 1 in bills-0"):
            broker.wait_until_idle("g", timeout=0.1)


def test_unopened_log_with_records_prevents_idleness(broker: LocalBroker) -> None:
    with paused_member(broker, "orders"):
        broker.produce("orders", "x", partition=0)
        broker.restart()
        with pytest.raises(WaitTimeout, match="has committed None of 1 in orders-0"):
            broker.wait_until_idle("g", timeout=0.1)


def test_wait_for_lag_waits_until_rebalance_ends(broker: LocalBroker) -> None:
    broker.produce("orders", "x", partition=0)
    with paused_member(broker, "orders") as client:
        commit(client, "orders")
        with member(broker):
            broker.wait_for_group("g", state="PreparingRebalance", timeout=10)
            assert broker.lag("g") == 0
            with pytest.raises(WaitTimeout, match="group 'g' with a lag of 0"):
                broker.wait_for_lag("g", timeout=0.1)
            client.unsubscribe()
            client.poll(0.1)
            assert broker.wait_for_lag("g", timeout=10) == {("orders", 0): 1}


def test_request_in_progress_prevents_idleness(broker: LocalBroker) -> None:
    from kafka import KafkaProducer

    may_continue = threading.Event()

    async def wait_in_hook(request: object, info: object) -> None:
        while not may_continue.is_set():  # noqa: ASYNC110  # set in another thread
            await trio.sleep(0.005)

    fault = broker.fault("Produce").hook(wait_in_hook)
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    sent = producer.send("orders", b"x")
    fault.wait()
    with pytest.raises(WaitTimeout, match="is not answered yet"):
        broker.wait_until_idle(timeout=0.05)
    may_continue.set()
    broker.wait_until_idle()
    assert sent.get(5).offset == 0
    producer.close()


def test_expectation_returns_matching_record(broker: LocalBroker) -> None:
    def later() -> None:
        broker.produce("orders", {"id": 1, "state": "new"}, key="a", headers=[("h", b"v")])

    with call_soon(later):
        record = broker.expect("orders").key("a").json(id=1).header("h", b"v").within("5s")
    assert record.json["state"] == "new"
    with pytest.raises(WaitTimeout):
        broker.expect("orders").value("nothing like this").within("20ms")
    broker.produce("orders", "no json")
    with pytest.raises(WaitTimeout):
        broker.expect("orders").json(id=2).within(0.01)


def test_expect_nothing_fails_on_record_of_other_program(broker: LocalBroker) -> None:
    broker.produce("orders", "x")
    broker.expect_nothing("orders")
    fault = broker.fault("Produce").delay(100)
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    producer.send("orders", b"surprise")
    fault.wait()
    with pytest.raises(AssertionError, match=r"'orders' has records that(?s:.*)surprise"):
        broker.expect_nothing("orders")
    producer.close()


def test_expect_nothing_fails_on_duplicate_record(
    broker: LocalBroker, other_program: ExternalKafka
) -> None:
    for _ in range(2):
        other_program.produce("orders", "x", partition=0)
    assert broker.expect("orders").value("x").within("1s").offset == 0
    assert len(broker.records("orders")) == 2, "a check does not make the record known"
    with pytest.raises(AssertionError, match=r"'orders' has records that(?s:.*)offset=1,"):
        broker.expect_nothing("orders")
    broker.wait_for("orders", count=2)
    broker.expect_nothing("orders")
    broker.expect_nothing("a topic that is not there")


def test_expect_nothing_ignores_records_of_snapshot(
    broker: LocalBroker, other_program: ExternalKafka
) -> None:
    other_program.produce("orders", "before", partition=0)
    snapshot = broker.snapshot()
    broker.restore(snapshot)
    broker.expect_nothing("orders")
    with LocalBroker(load=snapshot) as other:
        other.expect_nothing("orders")
        later = ExternalKafka(other.bootstrap_servers)
        later.produce("orders", "after", partition=0)
        later.close()
        with pytest.raises(AssertionError, match="after"):
            other.expect_nothing("orders")


def test_expect_nothing_treats_recreated_topic_as_new(
    broker: LocalBroker, other_program: ExternalKafka
) -> None:
    broker.produce("short", "x")
    broker.delete_topic("short")
    other_program.produce("short", "x")
    with pytest.raises(AssertionError, match="'short' has records that"):
        broker.expect_nothing("short")


def test_failed_wait_shows_most_similar_records(
    broker: LocalBroker, other_program: ExternalKafka
) -> None:
    broker.produce("orders", {"id": 2}, key="a", partition=0)
    for _ in range(6):
        broker.produce("orders", "far", key="z", partition=1)
    for kafka in (broker, other_program):
        with pytest.raises(WaitTimeout) as failed:
            kafka.expect("orders").key("a").json(id=1).within(0.05)
        first, others, nearest, *_ = str(failed.value).splitlines()
        assert (
            "a record in 'orders' with key 'a', JSON {'id': 1}; seen last: 0 matching records"
            in first
        )
        assert others == "  and 7 others, the most similar:"
        assert "key=b'a'" in nearest
        with pytest.raises(WaitTimeout, match=r"0 matching records\n  and 7 others(?s:.*)key=b'z'"):
            kafka.wait_for("orders", match=lambda record: record.key == b"b", timeout=0.05)


def test_expectation_without_within_fails_test(broker: LocalBroker) -> None:
    forgotten = broker.expect("orders").key("never")
    with pytest.raises(UnfiredFault, match=r"'orders' with key 'never' was never waited for"):
        broker.check_faults()
    broker.produce("orders", "x", key="never")
    forgotten.within("1s")
    broker.check_faults()


def test_time_units_are_converted_to_seconds() -> None:
    assert [seconds("200ms"), seconds("2s"), seconds("1.5m"), seconds(3)] == [0.2, 2, 90, 3]
    with pytest.raises(ValueError, match="500ms, 30s or 10m"):
        seconds("2 seconds")
