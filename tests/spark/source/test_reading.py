"""Batch reads return the same rows as the connector, for all topics and options."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from kbroker.testing import LocalBroker

from .topics import FORMATS, Transaction, delete_before, produce, read, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def mixed() -> Iterator[LocalBroker]:
    """A topic `mixed` with all kinds of records, and a few small topics."""
    with LocalBroker() as broker:
        broker.create_topic("mixed", 2)
        broker.create_topic("stamped", configs={"message.timestamp.type": "LogAppendTime"})
        _produce_special_records(broker)
        for codec in CODECS:
            produce(broker, "mixed", [f"{codec} {n}" for n in range(5)], compression_codec=codec)
        produce(broker, "mixed", ["other"], partition=1)
        Transaction(broker, "mixed", ["aborted"]).abort()
        Transaction(broker, "mixed", ["committed"]).commit()
        produce(broker, "stamped", ["s"])
        yield broker


def _produce_special_records(broker: LocalBroker) -> None:
    """Produce nulls, empty values, headers and old timestamps."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    headers = [("h", b"1"), ("h", None), ("", b"")]
    producer.produce("mixed", None, key=b"tombstone", partition=0, timestamp=1_000)
    producer.produce("mixed", b"", key=b"", partition=0, headers=headers, timestamp=2_000)
    producer.produce("mixed", b"\xff\x00", partition=0, timestamp=3_000)
    producer.produce("mixed", b"plain", partition=0, timestamp=4_000)
    assert producer.flush(20) == 0


OPTIONS = [
    {"subscribe": "mixed,stamped", "includeHeaders": "true"},
    {"subscribe": "mixed,stamped", "kafka.isolation.level": "read_committed"},
    {"subscribePattern": "^m.*d|stamp"},
    {"assign": '{"mixed": [1]}'},
    {"subscribe": "mixed", "minPartitions": "6"},
    {
        "subscribe": "mixed",
        "startingOffsets": '{"mixed": {"0": 3, "1": -2}}',
        "endingOffsets": '{"mixed": {"0": 9, "1": -1}}',
    },
    {"assign": '{"mixed": [0]}', "startingTimestamp": "2000", "endingTimestamp": "4000"},
    {"assign": '{"mixed": [0]}', "startingOffsetsByTimestamp": '{"mixed": {"0": 5000}}'},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(options))
def test_rows_equal_rows_of_connector(
    spark: SparkSession, mixed: LocalBroker, options: dict[str, str]
) -> None:
    theirs, ours = (read(spark, kind, mixed, **options) for kind in FORMATS)
    assert theirs
    assert ours == theirs


def test_missing_topics_and_offsets_are_rejected_by_both_sources(
    spark: SparkSession, mixed: LocalBroker
) -> None:
    rejected: list[tuple[dict[str, str], str]] = [
        ({"subscribe": "nowhere"}, "does not host this topic-partition"),
        ({"subscribe": "mixed", "startingTimestamp": "9" * 13}, "No offset matched from request"),
        (
            {"subscribe": "mixed", "startingOffsets": '{"mixed": {"0": 3}}'},
            "Use -1 for latest, -2 for earliest",
        ),
    ]
    for kind in FORMATS:
        for options, message in rejected:
            with pytest.raises(Exception, match=message):
                read(spark, kind, mixed, **options)
        late = {"startingTimestamp": "9" * 13, "startingOffsetsByTimestampStrategy": "latest"}
        assert read(spark, kind, mixed, subscribe="mixed", **late) == []


def test_lost_records_fail_batch_or_are_skipped(spark: SparkSession, mixed: LocalBroker) -> None:
    mixed.create_topic("lost")
    produce(mixed, "lost", ["a", "b", "c"])
    delete_before(mixed, "lost", 2)
    from_zero = {"subscribe": "lost", "startingOffsets": json.dumps({"lost": {"0": 0}})}
    for kind in FORMATS:
        with pytest.raises(Exception, match="Some data may have been lost"):
            read(spark, kind, mixed, **from_zero)
        assert values(read(spark, kind, mixed, **from_zero, failOnDataLoss="false")) == ["c"]


def test_partitions_are_split_into_more_tasks(spark: SparkSession, mixed: LocalBroker) -> None:
    def tasks(**options: Any) -> int:
        servers = {"kafka.bootstrap.servers": mixed.bootstrap_servers, "subscribe": "mixed"}
        given = servers | {name: str(value) for name, value in options.items()}
        frame = spark.read.format("kbroker").options(**given).load()
        return int(frame.rdd.getNumPartitions())

    assert tasks() == 2
    assert tasks(minPartitions=8) == 8
    assert tasks(maxRecordsPerPartition=10) == 5
