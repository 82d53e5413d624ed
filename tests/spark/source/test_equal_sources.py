"""The connector, the wire source and the file source read equal rows from the same topics.

The broker runs on a data directory, and keeps running while its files are read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kbroker.spark.source.stored import DataDirectories
from kbroker.testing import LocalBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = tuple[Any, ...]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SMALL = {"internal.segment.bytes": "20000"}
# Timeout of the open transaction in milliseconds.
OPEN = 10 * 60 * 1000


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def full_broker(directory: Path) -> Iterator[LocalBroker]:
    """A broker with committed, aborted, compacted and deleted records in all codecs."""
    with LocalBroker(data_dir=str(directory)) as broker:
        _codecs(broker)
        _stamped(broker)
        _compacted(broker)
        _trimmed(broker)
        open_one = _transactions(broker)
        _wait_until_stored(broker, directory)
        yield broker
        del open_one


def _producer(broker: LocalBroker, **settings: object) -> Producer:
    options = {name.replace("_", "."): value for name, value in settings.items()}
    fixed = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 2}
    return Producer({**fixed, **options, "on_delivery": _delivered})


def _delivered(error: object, _: object) -> None:
    assert error is None, error


def _codecs(broker: LocalBroker) -> None:
    """Write with each codec, to several segments, with nulls and with null, duplicate and empty headers."""
    # The timestamps are old, so retention must not delete the records.
    broker.create_topic("both-codecs", 2, {**SMALL, "retention.ms": "-1"})
    headers = [None, [("a", b"1"), ("a", None), ("b", b"")], [("ü", b"\xff")]]
    for number, codec in enumerate(CODECS):
        producer = _producer(broker, compression_type=codec, linger_ms=20, batch_num_messages=25)
        for each in range(200):
            producer.produce(
                "both-codecs",
                key=None if each % 7 == 0 else b"" if each % 7 == 1 else b"key %d" % each,
                value=None if each % 11 == 0 else bytes([each]) * (each * 3),
                partition=each % 2,
                timestamp=1_000_000_000_000 + number * 1000 + each,
                headers=headers[each % 3],
            )
        producer.flush()


def _stamped(broker: LocalBroker) -> None:
    broker.create_topic("both-stamped", 1, {"message.timestamp.type": "LogAppendTime"})
    producer = _producer(broker, compression_type="lz4")
    for each in range(50):
        producer.produce("both-stamped", value=b"%d" % each, timestamp=5)
    producer.flush()


def _compacted(broker: LocalBroker) -> None:
    """Create gaps within batches and between them."""
    broker.create_topic("both-compacted", 1, {**SMALL, "cleanup.policy": "compact"})
    producer = _producer(broker, batch_num_messages=7)
    for each in range(3000):
        producer.produce("both-compacted", key=b"%d" % (each * each % 97), value=bytes(50))
    producer.flush()
    assert broker.run_in_broker(lambda it: it.broker.node.maintenance.cleaner.clean_all()) > 0


def _trimmed(broker: LocalBroker) -> None:
    """Move the log start into the middle of a batch."""
    broker.create_topic("both-trimmed", 1)
    producer = _producer(broker, linger_ms=20)
    for each in range(100):
        producer.produce("both-trimmed", value=b"%d" % each)
    producer.flush()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    (deleted,) = admin.delete_records([TopicPartition("both-trimmed", 0, 33)]).values()
    assert deleted.result().low_watermark == 33


def _transactions(broker: LocalBroker) -> Producer:
    """Write overlapping committed and aborted transactions, and return the producer of an open one.

    A committed transaction follows the open one.
    """
    broker.create_topic("both-transactions", 2, SMALL)
    first, second, third = (
        _producer(broker, transactional_id=name, transaction_timeout_ms=OPEN, linger_ms=5)
        for name in ("first", "second", "third")
    )
    for producer in (first, second, third):
        producer.init_transactions()
    for turn in range(6):
        first.begin_transaction()
        second.begin_transaction()
        for each in range(60):
            for producer in (first, second):
                value = b"%d %d" % (turn, each)
                producer.produce("both-transactions", value=value * 20, partition=each % 2)
        first.flush()
        second.flush()
        first.abort_transaction() if turn % 2 else first.commit_transaction()
        second.abort_transaction() if turn % 3 else second.commit_transaction()
    third.begin_transaction()
    third.produce("both-transactions", value=b"open", partition=0)
    third.flush()
    first.begin_transaction()
    first.produce("both-transactions", value=b"behind it", partition=0)
    first.commit_transaction()
    return third


def _wait_until_stored(broker: LocalBroker, directory: Path) -> None:
    """Wait until the broker's checkpoint, written every few seconds, contains all end offsets."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    ends = {each: _end(admin, each) for each in DataDirectories([str(directory)]).logs()}
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        logs = DataDirectories([str(directory)]).logs()
        if all(logs[each].high_watermark == end for each, end in ends.items()):
            return
        time.sleep(0.2)
    raise AssertionError("the broker has not written its checkpoint")


def _end(admin: AdminClient, partition: tuple[str, int]) -> int:
    from confluent_kafka.admin import OffsetSpec

    (found,) = admin.list_offsets({TopicPartition(*partition): OffsetSpec.latest()}).values()
    end: int = found.result().offset
    return end


def read(
    spark: SparkSession, way: str, broker: LocalBroker, directory: Path, **more: str
) -> list[Row]:
    options = {
        "connector": {"kafka.bootstrap.servers": broker.bootstrap_servers},
        "wire": {"kafka.bootstrap.servers": broker.bootstrap_servers},
        "files": {"path": str(directory)},
    }[way]
    wanted = {"subscribePattern": "both-.*", "includeHeaders": "true", **options, **more}
    reader = spark.read.format("kafka" if way == "connector" else "kbroker")
    rows = reader.options(**wanted).load().collect()
    return sorted(_plain(row) for row in rows)


def _plain(row: Any) -> Row:
    headers = row.headers and [(each.key, each.value and bytes(each.value)) for each in row.headers]
    key, value = (None if it is None else bytes(it) for it in (row.key, row.value))
    time_ms = round(row.timestamp.timestamp() * 1000)
    return row.topic, row.partition, row.offset, key, value, time_ms, row.timestampType, headers


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_connector_wire_and_file_sources_read_equal_rows(
    spark: SparkSession, full_broker: LocalBroker, directory: Path, isolation: str
) -> None:
    level = {"kafka.isolation.level": isolation}

    expected = read(spark, "connector", full_broker, directory, **level)
    over_the_wire = read(spark, "wire", full_broker, directory, **level)
    from_files = read(spark, "files", full_broker, directory, **level, minPartitions="20")

    assert over_the_wire == expected
    assert from_files == expected
    counts = {
        topic: sum(row[0] == topic for row in expected) for topic in {it[0] for it in expected}
    }
    compacted = counts.pop("both-compacted")
    assert 97 <= compacted < 1000
    assert counts == {
        "both-codecs": 1000,
        "both-stamped": 50,
        "both-trimmed": 67,
        "both-transactions": 722 if isolation == "read_uncommitted" else 300,
    }


def test_connector_wire_and_file_sources_find_equal_timestamps(
    spark: SparkSession, full_broker: LocalBroker, directory: Path
) -> None:
    span = {
        "subscribePattern": "both-codecs",
        "startingTimestamp": str(1_000_000_000_000 + 1_150),
        "endingTimestamp": str(1_000_000_000_000 + 3_020),
    }

    found = [
        read(spark, way, full_broker, directory, **span) for way in ("connector", "wire", "files")
    ]

    assert found[1] == found[0]
    assert found[2] == found[0]
    assert len(found[0]) == 50 + 200 + 20
