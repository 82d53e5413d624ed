"""Many tests with the same topic and group: none sees the data of another.

`--clusters` sets their number; run them with several workers: `pytest tests/isolation -n 8
--clusters 1000`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer

from kbroker.testing import LocalBroker

TOPIC, GROUP = "orders", "billing"
RECORDS = 3
Seen = list[bytes | None]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "number" in metafunc.fixturenames:
        metafunc.parametrize("number", range(metafunc.config.getoption("--clusters")))


def use_kafka_python(address: str, values: list[bytes]) -> Seen:
    """Produce values, consume them and commit, with kafka-python."""
    producer = KafkaProducer(bootstrap_servers=address)
    for value in values:
        producer.send(TOPIC, value)
    producer.close()
    consumer = KafkaConsumer(
        TOPIC,
        bootstrap_servers=address,
        group_id=GROUP,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=30_000,
    )
    seen = [next(consumer).value for _ in values]
    consumer.commit()
    consumer.close()
    return seen


def use_confluent_kafka(address: str, values: list[bytes]) -> Seen:
    """Produce values, consume them and commit, with confluent-kafka."""
    producer = Producer({"bootstrap.servers": address})
    for value in values:
        producer.produce(TOPIC, value)
    producer.flush()
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([TOPIC])
    seen = [message.value() for message in consumer.consume(len(values), timeout=30)]
    consumer.commit(asynchronous=False)
    consumer.close()
    return seen


CLIENTS: list[Callable[[str, list[bytes]], Seen]] = [use_kafka_python, use_confluent_kafka]


def test_cluster_contains_only_data_of_its_test(kbroker: LocalBroker, number: int) -> None:
    values = [b"%d of test %d" % (each, number) for each in range(RECORDS)]
    kbroker.create_topic(TOPIC)
    assert kbroker.group(GROUP) is None
    seen = CLIENTS[number % len(CLIENTS)](kbroker.bootstrap_servers, values)
    assert seen == values
    assert [record.value for record in kbroker.records(TOPIC)] == values
    assert kbroker.committed(GROUP) == {(TOPIC, 0): RECORDS}
