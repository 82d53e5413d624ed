"""The same tests with a broker of their own, and against Apache Kafka by `--kbroker-bootstrap`."""

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
from kafka import KafkaProducer

from kbroker.client.errors import NoSuchGroup


@pytest.mark.kbroker(topics={"orders": 2})
def test_records(kbroker):
    assert kbroker.records("orders") == []
    kbroker.produce("orders", {"id": 1}, key="a")
    (record,) = kbroker.wait_for("orders", match=lambda record: record.key == b"a")
    assert record.json == {"id": 1}


def test_a_topic_of_its_own(kbroker, kafka_topic):
    client = KafkaProducer(bootstrap_servers=os.environ["KAFKA_BOOTSTRAP_SERVERS"])
    client.send(kafka_topic, b"x").get(10)
    client.close()
    kbroker.create_topic("made")
    assert len(kbroker.wait_for(kafka_topic)) == 1
    with pytest.raises(NoSuchGroup):
        kbroker.lag("nobody")
    assert kbroker.group("nobody") is None


def test_no_topic_of_another_test_is_left(kbroker):
    assert set(kbroker.topics()) <= {"not-mine"}
    kbroker.create_topic("made")


@pytest.mark.kbroker(config={"num.partitions": "3"})
def test_needs_a_broker_of_its_own(kbroker):
    kbroker.produce("orders", "x")
    assert kbroker.topics() == {"orders": 3}
"""


def run(folder: Path, *options: str) -> str:
    """The last line that pytest says."""
    folder.mkdir()
    (folder / "pytest.ini").write_text("[pytest]\nkbroker_env = KAFKA_BOOTSTRAP_SERVERS\n")
    (folder / "test_it.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


def test_the_same_tests_on_both(tmp_path: Path) -> None:
    assert run(tmp_path / "ours").startswith("4 passed")
    broker = ApacheBroker(tmp_path / "apache")
    broker.start()
    kafka = ExternalKafka(broker.address)
    try:
        kafka.create_topic("not-mine")
        outcome = run(tmp_path / "theirs", "--kbroker-bootstrap", broker.address)
        assert outcome.startswith("3 passed, 1 skipped")
        assert kafka.topics() == {"not-mine": 1}
    finally:
        kafka.close()
        broker.kill()
