"""The Kafka helper for tests of PySpark. Tests with Spark are in examples/pyspark."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.testing import UnfiredFault
from kbroker.testing.spark import KafkaUtils


@pytest.fixture
def kafka() -> Iterator[KafkaUtils]:
    utils = KafkaUtils()
    utils.setup()
    yield utils
    utils.teardown()


def test_kafka_utils_starts_and_stops_broker() -> None:
    utils = KafkaUtils(topics={"orders": 3})
    assert not utils.initialized
    with pytest.raises(RuntimeError, match=r"call setup\(\) first"):
        _ = utils.broker
    utils.setup()
    broker = utils.broker
    utils.setup()
    assert utils.broker == broker
    assert utils.kbroker.topics() == {"orders": 3}
    utils.teardown()
    utils.teardown()
    assert not utils.initialized


def test_kafka_utils_teardown_raises_unfired_fault() -> None:
    utils = KafkaUtils()
    utils.setup()
    utils.kbroker.fault("Produce", error="REQUEST_TIMED_OUT")
    with pytest.raises(UnfiredFault, match="REQUEST_TIMED_OUT for Produce never fired"):
        utils.teardown()


def test_kafka_utils_creates_and_deletes_topics(kafka: KafkaUtils) -> None:
    kafka.create_topics(["a", "b"], num_partitions=2)
    kafka.create_topics(["b", "c"])
    assert kafka.kbroker.topics() == {"a": 2, "b": 2, "c": 1}
    kafka.delete_topics(["a", "never"])
    assert set(kafka.kbroker.topics()) == {"b", "c"}
    with pytest.raises(ValueError, match="replication_factor is 3"):
        kafka.create_topics(["d"], replication_factor=3)


def test_kafka_utils_sends_messages(kafka: KafkaUtils) -> None:
    kafka.send_messages("t", [(1, 2.5), (None, "x"), (b"\xff", None)])
    found = [(record.key, record.value) for record in kafka.kbroker.records("t")]
    assert found == [(b"1", b"2.5"), (None, b"x"), (b"\xff", None)]


def test_kafka_utils_has_kafka_python_clients(kafka: KafkaUtils) -> None:
    kafka.producer.send("t", key=1, value=True).get(10)
    assert kafka.admin_client.list_topics() == ["t"]
    assert (kafka.kbroker.records("t")[0].key, kafka.kbroker.records("t")[0].text) == (b"1", "True")


def test_assert_eventually_waits_for_result(kafka: KafkaUtils) -> None:
    numbers = itertools.count()
    kafka.assert_eventually(lambda: next(numbers), 3, interval=0)
    with pytest.raises(AssertionError, match=r"expected 'a' within 0.01 s; last result: 'b'"):
        kafka.assert_eventually(lambda: "b", "a", timeout=0.01, interval=0.001)


class Query:
    """Stand-in for a streaming query that becomes active."""

    def __init__(self, works_at: float, failure: str | None = None) -> None:
        self._works_at = works_at
        self._failure = failure

    @property
    def status(self) -> dict[str, Any]:
        works = time.monotonic() >= self._works_at
        return {"isDataAvailable": False, "isTriggerActive": works}

    def exception(self) -> str | None:
        return self._failure


def test_wait_for_query_alive_waits_until_active(kafka: KafkaUtils) -> None:
    active_at, never = time.monotonic() + 0.05, float("inf")
    kafka.wait_for_query_alive(Query(active_at), interval=0.01)
    assert time.monotonic() >= active_at
    with pytest.raises(AssertionError, match=r"the query is not active within 0\.01 s"):
        kafka.wait_for_query_alive(Query(never), timeout=0.01, interval=0.001)
    with pytest.raises(AssertionError, match="the query has failed: no such topic"):
        kafka.wait_for_query_alive(Query(never, "no such topic"))


def test_teardown_stops_broker_if_a_client_cannot_be_closed() -> None:
    def fail() -> None:
        raise OSError("the producer is stuck")

    utils = KafkaUtils()
    utils.setup()
    broker = utils.kbroker
    producer: Any = SimpleNamespace(close=fail)
    utils._producer = producer
    with pytest.raises(OSError, match="stuck"):
        utils.teardown()
    assert not utils.initialized
    with pytest.raises(RuntimeError, match="stopped"):
        broker.topics()
