"""Tests that run on the test kit's own broker and on Apache Kafka (`--kbroker-bootstrap`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from harness.brokers import ApacheBroker

from kbroker.testing import ExternalKafka

CLIENT = "kbroker's test kit"
RUN_SECONDS = 120
TESTS = """
import os

import pytest
from confluent_kafka import Consumer, Producer
from kafka import KafkaProducer

from kbroker.client.errors import NoSuchGroup
from kbroker.testing import KafkaTestCase, WaitTimeout


@pytest.mark.kbroker(topics={"orders": 2})
def test_produced_record_is_matched(kbroker):
    assert kbroker.records("orders") == []
    kbroker.produce("orders", {"id": 1}, key="a")
    (record,) = kbroker.wait_for("orders", match=lambda record: record.key == b"a")
    assert record.json == {"id": 1}


def test_kafka_topic_fixture_creates_topic(kbroker, kafka_topic):
    client = KafkaProducer(bootstrap_servers=os.environ["KAFKA_BOOTSTRAP_SERVERS"])
    client.send(kafka_topic, b"x").get(10)
    client.close()
    kbroker.create_topic("made")
    assert len(kbroker.wait_for(kafka_topic)) == 1
    with pytest.raises(NoSuchGroup):
        kbroker.lag("nobody")
    assert kbroker.group("nobody") is None


def test_topics_of_earlier_tests_are_deleted(kbroker):
    assert set(kbroker.topics()) <= {"not-mine"}
    kbroker.create_topic("made")


def reads_all(servers, topic, count):
    consumer = Consumer({
        "bootstrap.servers": servers, "group.id": "readers", "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    })
    consumer.subscribe([topic])
    while count:
        if (message := consumer.poll(0.1)) is not None and not message.error():
            count -= 1
    consumer.commit(asynchronous=False)
    return consumer


@pytest.mark.kbroker(topics={"orders": 2, "invoices": 1})
def test_wait_until_idle_reports_lag(kbroker):
    assert kbroker.group("readers") is None
    kbroker.produce("orders", "x", partition=0)
    kbroker.produce("orders", "y", partition=1)
    consumer = reads_all(kbroker.bootstrap_servers, "orders", 2)
    kbroker.wait_until_idle(timeout=20)
    assert kbroker.lag("readers") == 0
    kbroker.expect_nothing("invoices", timeout=20)
    producer = KafkaProducer(bootstrap_servers=kbroker.bootstrap_servers)
    producer.send("invoices", b"surprise").get(10)
    producer.close()
    with pytest.raises(AssertionError, match="has records that the test has not produced"):
        kbroker.expect_nothing("invoices", timeout=20)
    kbroker.produce("orders", "z", partition=0)
    with pytest.raises(WaitTimeout, match="has committed 1 of 2 in orders-0"):
        kbroker.wait_until_idle("readers", timeout=1)
    consumer.close()


@pytest.mark.kbroker(topics=["orders"])
def test_wait_until_idle_reports_open_transaction(kbroker):
    assert kbroker.group("readers") is None, "that of the test before"
    settings = {"bootstrap.servers": kbroker.bootstrap_servers, "transactional.id": "tx"}
    producer = Producer(settings)
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce("orders", b"x")
    producer.flush(10)
    kbroker.records("orders")
    with pytest.raises(WaitTimeout, match="transaction of tx is Ongoing"):
        kbroker.wait_until_idle(timeout=1)


class OrdersTest(KafkaTestCase):
    kbroker_settings = {"topics": {"orders": 1}}

    def test_case_class_creates_topics(self):
        self.assertEqual(set(self.kbroker.topics()) - {"not-mine"}, {"orders"})
        self.kbroker.produce("orders", "x")
        self.kbroker.expect_nothing("orders", timeout=20)


@pytest.mark.kbroker(config={"num.partitions": "3"})
def test_broker_config_needs_own_broker(kbroker):
    kbroker.produce("orders", "x")
    assert kbroker.topics() == {"orders": 3}
"""


def run(directory: Path, *options: str) -> str:
    """Run the tests and return the last line of pytest's output."""
    directory.mkdir()
    (directory / "pytest.ini").write_text("[pytest]\nkbroker_env = KAFKA_BOOTSTRAP_SERVERS\n")
    (directory / "test_it.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


def test_same_tests_pass_on_kbroker_and_apache_kafka(tmp_path: Path) -> None:
    assert run(tmp_path / "ours").startswith("7 passed")
    broker = ApacheBroker(tmp_path / "apache")
    broker.start()
    kafka = ExternalKafka(broker.address)
    try:
        kafka.create_topic("not-mine")
        outcome = run(tmp_path / "theirs", "--kbroker-bootstrap", broker.address)
        assert outcome.startswith("6 passed, 1 skipped")
        assert kafka.topics() == {"not-mine": 1}
        assert kafka.group("readers") is None
    finally:
        kafka.close()
        broker.kill()
