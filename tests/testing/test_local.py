"""A broker in a thread, with faults, used by unmodified clients."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import SkipTest

import pytest
from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.errors import KafkaError, NotLeaderForPartitionError

from kbroker.client.errors import NoSuchGroup, NoSuchTopic
from kbroker.testing import (
    BrokerThread,
    ExternalKafka,
    LocalBroker,
    UnfiredFault,
    WaitTimeout,
    open_test_broker,
)


@pytest.fixture
def broker(thread: BrokerThread) -> Iterator[LocalBroker]:
    with LocalBroker(topics={"orders": 2}, thread=thread) as broker:
        yield broker


def producer(broker: LocalBroker, **settings: Any) -> KafkaProducer:
    return KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, client_id="app", retry_backoff_ms=10, **settings
    )


def consumer(broker: LocalBroker, **settings: Any) -> KafkaConsumer:
    return KafkaConsumer(
        "orders",
        bootstrap_servers=broker.bootstrap_servers,
        group_id="g",
        auto_offset_reset="earliest",
        consumer_timeout_ms=10_000,
        retry_backoff_ms=10,
        reconnect_backoff_ms=10,
        **settings,
    )


def send(broker: LocalBroker, value: bytes = b"x", **settings: Any) -> int:
    client = producer(broker, **settings)
    try:
        return int(client.send("orders", value, partition=0).get(10).offset)
    finally:
        client.close()


@contextmanager
def call_soon(function: Callable[..., object], *arguments: Any) -> Iterator[None]:
    """Call a function 50 ms after the start of the block, and wait for its return at the end."""
    timer = threading.Timer(0.05, function, arguments)
    timer.start()
    try:
        yield
    finally:
        timer.join()


def test_closed_broker_leaves_no_thread_behind() -> None:
    threads = set(threading.enumerate())
    with LocalBroker(topics={"orders": 3}) as broker:
        assert broker.topics() == {"orders": 3}
        port = int(broker.bootstrap_servers.rpartition(":")[2])
    assert port > 0
    mine = {each for each in threading.enumerate() if not each.name.startswith("Trio thread")}
    assert mine <= threads
    with LocalBroker() as other:
        assert other.topics() == {}


def test_produced_records_can_be_read(broker: LocalBroker) -> None:
    first = broker.produce("orders", {"id": 1}, key="a", headers=[("h", b"v")], timestamp=1000)
    second = broker.produce("orders", "text", partition=1, timestamp=2000)
    assert broker.records("orders") == [first, second]
    assert (first.json, first.key, first.headers) == ({"id": 1}, b"a", (("h", b"v"),))
    assert (second.text, second.partition, second.offset) == ("text", 1, 0)
    assert [broker.produce("made", None).value, broker.topics()["made"]] == [None, 1]


def test_wait_for_returns_records_of_client(broker: LocalBroker) -> None:
    with call_soon(send, broker, b"late"):
        (found,) = broker.wait_for("orders", match=lambda record: record.value == b"late")
    assert found.offset == 0


def test_failed_wait_shows_last_state(broker: LocalBroker) -> None:
    broker.produce("orders", "here")
    with pytest.raises(WaitTimeout, match=r"2 records in 'orders'(?s:.*)value=b'here'"):
        broker.wait_for("orders", count=2, timeout=0.05)
    with pytest.raises(WaitTimeout, match=r"group 'nobody' Stable with 1 members.*nothing"):
        broker.wait_for_group("nobody", members=1, timeout=0.05)


def test_wait_for_group_and_commit_observe_group(broker: LocalBroker) -> None:
    broker.produce("orders", "x", partition=1)
    client = consumer(broker, enable_auto_commit=False)
    seen = []
    reader = threading.Thread(target=lambda: seen.append(next(client)))
    reader.start()
    group = broker.wait_for_assignment("g", [("orders", 0), ("orders", 1)], timeout=10)
    assert (group.state, len(group.members)) == ("Stable", 1)
    reader.join()
    assert broker.committed("g") == {}
    client.commit()
    assert broker.wait_for_commit("g", "orders", 1, 1) == 1
    assert broker.wait_for_lag("g") == {("orders", 0): 0, ("orders", 1): 1}
    broker.produce("orders", "y", partition=1)
    assert broker.lag("g") == 1
    client.close()
    broker.wait_for_group("g", members=0, state="Empty")


def test_restart_keeps_port_and_data(broker: LocalBroker, tmp_path: Path) -> None:
    client = producer(broker, reconnect_backoff_ms=10)
    client.send("orders", b"1", partition=0).get(10)
    address = broker.bootstrap_servers
    broker.restart()
    assert broker.bootstrap_servers == address
    assert client.send("orders", b"2", partition=0).get(10).offset == 1
    client.close()
    with LocalBroker(data_dir=str(tmp_path / "data")) as first:
        first.produce("t", "kept")
    with LocalBroker(data_dir=str(tmp_path / "data")) as second:
        assert [record.text for record in second.records("t")] == ["kept"]


# -- faults


def test_client_retries_after_retriable_error(broker: LocalBroker) -> None:
    fault = broker.fault("Produce", error="NOT_LEADER_OR_FOLLOWER", topic="orders").times(2)
    assert send(broker) == 0
    assert fault.hits == 2
    assert len(broker.records("orders")) == 1


def test_error_after_work_causes_duplicate(broker: LocalBroker) -> None:
    """A non-idempotent producer writes the record again after the error."""
    broker.fault("Produce", error="NOT_LEADER_OR_FOLLOWER", at="after")
    assert send(broker, enable_idempotence=False, retries=5) == 1
    assert len(broker.records("orders")) == 2


def test_idempotent_producer_writes_once_despite_error_after_work(broker: LocalBroker) -> None:
    broker.fault("Produce", error="REQUEST_TIMED_OUT", at="after")
    assert send(broker, enable_idempotence=True) == 0
    assert len(broker.records("orders")) == 1


def test_error_of_one_topic_does_not_affect_others(broker: LocalBroker) -> None:
    broker.create_topic("other")
    fault = broker.fault("Produce", error="NOT_LEADER_OR_FOLLOWER", topic="other").always()
    client = producer(broker, linger_ms=100, retries=0, enable_idempotence=False)
    good, bad = client.send("orders", b"x", partition=0), client.send("other", b"x", partition=0)
    assert good.get(10).offset == 0
    with pytest.raises(NotLeaderForPartitionError):
        bad.get(10)
    client.close()
    assert fault.hits == 1


@pytest.mark.parametrize("at", ["before", "after"])
@pytest.mark.parametrize("effect", ["disconnect", "truncate_response"])
def test_client_retries_after_lost_response(broker: LocalBroker, effect: str, at: str) -> None:
    fault = broker.fault("Produce", at=at)
    getattr(fault, effect)()
    assert send(broker, enable_idempotence=True, reconnect_backoff_ms=10) == 0
    assert fault.hits == 1
    assert len(broker.records("orders")) == 1


@pytest.mark.parametrize("at", ["before", "after"])
def test_client_times_out_without_response(broker: LocalBroker, at: str) -> None:
    broker.fault("Produce", at=at).blackhole()
    assert send(broker, enable_idempotence=True, request_timeout_ms=300) == 0
    assert len(broker.records("orders")) == 1


@pytest.mark.parametrize("at", ["before", "after"])
def test_delay_keeps_order_of_records(broker: LocalBroker, at: str) -> None:
    broker.fault("Produce", at=at).delay(200)
    client = producer(broker, max_in_flight_requests_per_connection=5)
    began = time.monotonic()
    sent = []
    for number in range(5):
        sent.append(client.send("orders", b"%d" % number, partition=0))
        time.sleep(0.01)  # separate requests, all sent before the first one is answered
    offsets = [each.get(10).offset for each in sent]
    assert offsets == [0, 1, 2, 3, 4]
    assert time.monotonic() - began >= 0.2
    assert [record.text for record in broker.records("orders")] == list("01234")
    client.close()


def test_fault_hits_incremental_fetch_that_omits_topic(
    broker: LocalBroker,
) -> None:
    """KIP-227: an incremental fetch names only changed partitions."""
    broker.produce("orders", "1")
    client = consumer(broker)
    assert next(client).value == b"1"
    fault = broker.fault("Fetch", error="NOT_LEADER_OR_FOLLOWER", topic="orders").times(2)
    broker.produce("orders", "2")
    assert next(client).value == b"2"
    fault.wait(2)
    client.close()


@pytest.mark.parametrize(
    ("effect", "at"), [("delay", "before"), ("delay", "after"), ("throttle", "after")]
)
def test_fault_hits_requests_with_message_sets(broker: LocalBroker, effect: str, at: str) -> None:
    """Requests of old clients are converted first; their order is kept."""
    fault = broker.fault("Produce", at=at)
    getattr(fault, effect)(100)
    client = producer(
        broker,
        api_version=(0, 10),
        enable_idempotence=False,
        max_in_flight_requests_per_connection=5,
    )
    sent = []
    for number in range(5):
        sent.append(client.send("orders", b"%d" % number, partition=0))
        time.sleep(0.01)
    assert [each.get(10).offset for each in sent] == [0, 1, 2, 3, 4]
    assert [record.text for record in broker.records("orders")] == list("01234")
    assert fault.hits == 1
    client.close()


def test_client_sees_throttle_time(broker: LocalBroker) -> None:
    fault = broker.fault("Produce").throttle(50)
    assert send(broker) == 0
    assert fault.hits == 1


def test_corrupt_produced_batch_is_rejected(broker: LocalBroker) -> None:
    broker.fault("Produce").corrupt_batch()
    with pytest.raises(KafkaError):
        send(broker, retries=0, enable_idempotence=False)
    assert broker.records("orders") == []


def test_corrupt_fetched_batch_is_detected_by_client(broker: LocalBroker) -> None:
    broker.produce("orders", "x")
    fault = broker.fault("Fetch", at="after", topic="orders").corrupt_batch()
    client = consumer(broker, check_crcs=True)
    with pytest.raises(KafkaError):
        next(client)
    client.close()
    assert fault.hits == 1


def test_group_survives_coordinator_error(broker: LocalBroker) -> None:
    broker.produce("orders", "x")
    fault = broker.fault("Heartbeat", error="NOT_COORDINATOR")
    client = consumer(broker, heartbeat_interval_ms=100)
    assert next(client).value == b"x"
    fault.wait()
    broker.produce("orders", "y")
    assert next(client).value == b"y"
    client.close()


def test_hooks_observe_and_answer_requests(broker: LocalBroker) -> None:
    seen = []

    @broker.on("Produce")
    def watch(request: Any, info: Any) -> None:
        seen.append(info.topics if hasattr(info, "topics") else sorted(info.partitions))

    assert send(broker) == 0
    assert seen == [["orders"]]


def test_consumer_recovers_from_group_operations(broker: LocalBroker) -> None:
    broker.produce("orders", "1", partition=0)
    client = consumer(broker, heartbeat_interval_ms=100, enable_auto_commit=False)
    assert next(client).value == b"1"
    broker.move_coordinator("g")
    client.commit()
    assert broker.committed("g")["orders", 0] == 1
    (member,) = broker.wait_for_group("g").members
    assert broker.expire_member("g", member.client_id) == [member.id]
    broker.produce("orders", "2", partition=0)
    assert next(client).value == b"2"
    start = broker.offset_out_of_range("orders", 0)
    broker.produce("orders", "3", partition=0)
    found = next(client)
    assert (found.value, found.offset) == (b"3", start)
    client.close()


def test_fenced_producer_gets_error(broker: LocalBroker) -> None:
    client = producer(broker, enable_idempotence=True)
    client.send("orders", b"1", partition=0).get(10)
    (fenced,) = broker.fence_producer()
    assert fenced >= 0
    with pytest.raises(KafkaError):
        client.send("orders", b"2", partition=0).get(10)
    client.close()


def test_unfired_fault_fails_test() -> None:
    with LocalBroker() as mine:
        fault = mine.fault("Produce", topic="orders")
        client = producer(mine)
        client.send("order", b"x").get(10)
        client.close()
        with pytest.raises(UnfiredFault, match=r"never fired: saw 1 x Produce.*topic 'order'"):
            mine.check_faults()
        fault.disarm()
    with LocalBroker() as mine:
        mine.fault("Produce").optional()


def test_wait_for_request_counts_requests_of_client(broker: LocalBroker) -> None:
    with call_soon(send, broker):
        broker.wait_for_request("Produce", client_id="app", timeout=10)
    with pytest.raises(WaitTimeout, match="0 requests"):
        broker.wait_for_request("Produce", client_id="nobody", timeout=0.01)


def test_report_has_topics_groups_and_requests(broker: LocalBroker) -> None:
    client = consumer(broker)
    reader = threading.Thread(target=client.poll, kwargs={"timeout_ms": 500})
    reader.start()
    broker.wait_for_group("g", timeout=10)
    reader.join()
    report = broker.report()
    client.close()
    assert "topic orders: high watermarks 0, 0" in report
    assert "group g is Stable: generation " in report
    assert "client 'kafka-python" in report


def test_report_after_restart_has_all_records(broker: LocalBroker) -> None:
    broker.produce("orders", "x", partition=0)
    broker.restart()
    assert "topic orders: high watermarks 1, 0" in broker.report()


def test_external_kafka_supports_same_calls(broker: LocalBroker, thread: BrokerThread) -> None:
    kafka = ExternalKafka(broker.bootstrap_servers, thread)
    kafka.create_topic("t", 2)
    record = kafka.produce("t", "x", key="k")
    assert kafka.wait_for("t") == [record] == broker.records("t")
    assert kafka.expect("t").key("k").within("1s") == record
    kafka.delete_topic("t")
    kafka.close()
    assert "t" not in broker.topics()


def test_topic_that_client_recreated_is_recreated_empty(
    broker: LocalBroker, thread: BrokerThread
) -> None:
    broker.produce("orders", "of a client that is still there")
    kafka = ExternalKafka(broker.bootstrap_servers, thread)
    with kafka.one_test():
        kafka.recreate_topic("orders", 3)
        assert broker.topics() == {"orders": 3}
        assert broker.records("orders") == []
    assert broker.topics() == {}
    kafka.close()


def test_unsupported_call_on_external_kafka_skips_test(
    broker: LocalBroker, thread: BrokerThread
) -> None:
    kafka = ExternalKafka(broker.bootstrap_servers, thread)
    with pytest.raises(SkipTest, match="`fault` needs a broker in this process"):
        kafka.fault("Produce")
    with pytest.raises(SkipTest, match="`clock` needs"):
        kafka.clock.advance(hours=1)
    with pytest.raises(AttributeError, match="no attribute 'restrat'"):
        kafka.restrat()
    kafka.close()


def test_lag_counts_partitions_without_commit(broker: LocalBroker) -> None:
    for partition in (0, 0, 1):
        broker.produce("orders", "x", partition=partition)
    client = consumer(broker, enable_auto_commit=False)
    client.poll(timeout_ms=5000)
    client.commit({TopicPartition("orders", 0): OffsetAndMetadata(1, "", -1)})
    client.close()
    assert broker.lag("g") == 2


def test_lag_counts_assigned_topics_until_first_commit(broker: LocalBroker) -> None:
    """After the first commit, only topics with commits count.

    A stream processor never commits in its changelogs.
    """
    broker.create_topic("other")
    for topic in ("orders", "other"):
        broker.produce(topic, "x", partition=0)
    client = consumer(broker, enable_auto_commit=False)
    client.subscribe(["orders", "other"])
    client.poll(timeout_ms=5000)
    broker.wait_for_assignment("g", [("orders", 0), ("orders", 1), ("other", 0)])
    assert broker.lag("g") == 2
    with pytest.raises(WaitTimeout, match="a lag of 0"):
        broker.wait_for_lag("g", timeout=0.05)
    client.commit({TopicPartition("orders", 0): OffsetAndMetadata(1, "", -1)})
    broker.wait_for_lag("g")
    client.close()


def test_missing_topic_or_group_raises_error(broker: LocalBroker) -> None:
    with pytest.raises(NoSuchTopic, match="did you mean 'orders'"):
        broker.records("ordres")
    with pytest.raises(NoSuchGroup, match="'nobody' does not exist"):
        broker.lag("nobody")


def test_hook_that_is_never_called_fails_test(broker: LocalBroker) -> None:
    broker.on("Fetch", topic="typo")(lambda request, info: None)
    with pytest.raises(UnfiredFault, match="hook for Fetch, topic 'typo' never fired"):
        broker.check_faults()
    broker.disarm_faults()


def test_kit_calls_are_not_hit_and_unfired_fault_explains_it(broker: LocalBroker) -> None:
    fault = broker.fault("Produce", error="NOT_LEADER_OR_FOLLOWER")
    broker.produce("orders", "x")
    with pytest.raises(UnfiredFault, match="saw such requests only from calls of the test kit"):
        broker.check_faults()
    fault.disarm()


async def test_open_test_broker_works_in_trio_program() -> None:
    async with open_test_broker(topics={"orders": 1}) as broker:
        await broker.produce("orders", "x")
        (record,) = await broker.wait_for("orders")
        assert record.text == "x"
        await broker.wait_until_idle()
        assert "topic orders: high watermarks 1" in await broker.report()


def test_stopped_broker_raises_runtime_error(broker: LocalBroker) -> None:
    broker.stop()
    assert "the broker is stopped" in broker.report()
    with pytest.raises(RuntimeError, match="call start"):
        broker.wait_until_idle()
    broker.start()
    broker.wait_until_idle()
