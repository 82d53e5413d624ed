"""One small test for every kind of broker; `python -m benchmarks.kit` runs one at a time."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

if TYPE_CHECKING:
    from kbroker.testing.local import KafkaHandle

SECONDS = 10
# If the broker accepts client metrics (KIP-714), a client waits for its last push when it is closed.
QUIET = {"log_level": 0, "enable.metrics.push": False}
number = pytest.mark.parametrize("number", range(int(os.environ.get("KBROKER_KIT_TESTS", "5"))))


@number
def test_empty(number: int) -> None:
    pass


@number
def test_fixture(kbroker: KafkaHandle, number: int) -> None:
    assert kbroker.bootstrap_servers


@number
def test_kit_kbroker(kbroker: KafkaHandle, number: int) -> None:
    run_with_kit(kbroker, "orders")


@number
def test_kit_kafka(kafka: KafkaHandle, number: int) -> None:
    run_with_kit(kafka, f"orders-{number}")


@number
def test_client_kbroker(kbroker: KafkaHandle, number: int) -> None:
    run_with_client(kbroker.bootstrap_servers, "orders")


@number
def test_client_kafka(kafka: KafkaHandle, number: int) -> None:
    run_with_client(kafka.bootstrap_servers, f"orders-{number}")


@number
def test_client_kfake(kfake: str, number: int) -> None:
    run_with_client(kfake, f"orders-{number}")


@number
def test_client_mock(number: int) -> None:
    """The mock cluster runs inside a client, and creates topics on first use only."""
    owner = Producer({"test.mock.num.brokers": 1, **QUIET})
    brokers = owner.list_topics(timeout=SECONDS).brokers.values()
    write_and_read(",".join(f"{each.host}:{each.port}" for each in brokers), "orders")


def run_with_kit(kafka: KafkaHandle, topic: str) -> None:
    """Create a topic, produce, and wait for the record."""
    kafka.create_topic(topic)
    kafka.produce(topic, "hello")
    (record,) = kafka.wait_for(topic)
    assert record.text == "hello"


def run_with_client(bootstrap: str, topic: str) -> None:
    """Create a topic, produce and consume with an unmodified client."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    for made in admin.create_topics([NewTopic(topic, 1, 1)]).values():
        made.result(SECONDS)
    write_and_read(bootstrap, topic)


def write_and_read(bootstrap: str, topic: str) -> None:
    """Produce a record and consume it."""
    producer = Producer({"bootstrap.servers": bootstrap, **QUIET})
    producer.produce(topic, b"hello", partition=0)
    assert producer.flush(SECONDS) == 0
    settings = {"group.id": "g", "enable.auto.commit": False, **QUIET}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    consumer.assign([TopicPartition(topic, 0, 0)])
    message = consumer.poll(SECONDS)
    assert message is not None
    assert message.value() == b"hello"
    consumer.close()
