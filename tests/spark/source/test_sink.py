"""Tests of kbroker's Spark sink.

It writes the same records as Spark's Kafka connector and reports all errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import StructType

from kbroker.spark.source.options import OptionError, SinkOptions
from kbroker.spark.source.sink import DeliveryError, OutgoingRecord, TaskProducer, check_columns
from kbroker.testing import KafkaRecord, LocalBroker

from .topics import FORMATS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The partition of the last two rows is NULL. Both sinks derive it from the key as Java producers do.
ROWS = """
    SELECT * FROM VALUES
      ('k', 'v', 1, array(named_struct('key', 'h', 'value', X'01'),
                          named_struct('key', 'h', 'value', CAST(NULL AS BINARY)))),
      (NULL, 'no key', 0, NULL),
      ('tombstone', NULL, 2, array()),
      ('as java does', 'x', NULL, NULL),
      ('as java does too', 'y', NULL, NULL)
    AS t(key, value, partition, headers)
"""


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalBroker]:
    with LocalBroker() as running:
        yield running


def written(broker: LocalBroker, topic: str) -> list[Any]:
    """Return the records of a topic without timestamps and offsets."""
    records: list[KafkaRecord] = broker.records(topic)
    found = [(each.partition, each.key, each.value, list(each.headers)) for each in records]
    return sorted(found, key=repr)


def test_written_records_equal_records_of_connector(
    spark: SparkSession, shared: LocalBroker
) -> None:
    for kind in FORMATS:
        shared.create_topic(kind, 4)
        options = {"kafka.bootstrap.servers": shared.bootstrap_servers, "topic": kind}
        spark.sql(ROWS).write.format(kind).options(**options).mode("append").save()
    ours = written(shared, "kbroker")
    assert len(ours) == 5
    assert ours == written(shared, "kafka")


def test_stream_is_written_to_topic(
    spark: SparkSession, shared: LocalBroker, tmp_path: Path
) -> None:
    shared.create_topic("in")
    shared.create_topic("out")
    for number in range(3):
        shared.produce("in", f"value {number}", key=f"key {number}", headers=[("h", b"x")])
    servers = {"kafka.bootstrap.servers": shared.bootstrap_servers}
    reading = spark.readStream.format("kbroker").options(**servers, subscribe="in")
    rows = reading.options(startingOffsets="earliest", includeHeaders="true").load()
    writing = rows.selectExpr("'out' AS topic", "key", "value", "headers").writeStream
    writing = writing.format("kbroker").options(**servers, checkpointLocation=str(tmp_path))
    query = writing.trigger(availableNow=True).start()
    query.awaitTermination()
    assert written(shared, "out") == written(shared, "in")


def test_undelivered_record_fails_job(spark: SparkSession, shared: LocalBroker) -> None:
    shared.create_topic("small", configs={"max.message.bytes": "1000"})
    options = {"kafka.bootstrap.servers": shared.bootstrap_servers, "topic": "small"}
    rows = spark.sql("SELECT repeat('x', 5000) AS value")
    with pytest.raises(Exception, match=r"topic small partition 0 was not delivered: .*large"):
        rows.write.format("kbroker").options(**options).mode("append").save()


@pytest.mark.parametrize(
    ("columns", "topic", "message"),
    [
        ("value bigint", "t", r"value attribute unsupported type bigint. value must be a\(n\) str"),
        ("value string", None, "topic option required when no 'topic' attribute is present"),
        ("key string", "t", "Required attribute 'value' not found"),
        ("value string, key int", "t", "key attribute unsupported type int"),
        ("value string, partition bigint", "t", r"partition must be a\(n\) int"),
        ("value string, headers map<string,string>", "t", "headers attribute unsupported type map"),
        ("value string, topic int", None, "topic attribute unsupported type int"),
    ],
)
def test_invalid_columns_are_rejected_with_message_of_connector(
    spark: SparkSession, columns: str, topic: str | None, message: str
) -> None:
    empty = spark.createDataFrame([], columns)
    options = {"kafka.bootstrap.servers": "127.0.0.1:1"} | ({"topic": topic} if topic else {})
    with pytest.raises(Exception, match=message):
        empty.write.format("kafka").options(**options).mode("append").save()
    with pytest.raises(OptionError, match=message):
        check_columns(StructType.fromDDL(columns), topic)


def test_sink_errors_reach_spark_user(spark: SparkSession) -> None:
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}
    writing = spark.sql("SELECT 1 AS value").write.format("kbroker").options(**options)
    with pytest.raises(Exception, match="value attribute unsupported type int"):
        writing.mode("append").save()
    with pytest.raises(Exception, match="overwrite is not allowed for Kafka"):
        writing.mode("overwrite").save()


def open_producer(broker: LocalBroker, topic: str | None, **kafka: str) -> TaskProducer:
    """Return a producer; `kafka` contains producer settings with underscores for dots."""
    named = {f"kafka.{name.replace('_', '.')}": value for name, value in kafka.items()}
    servers = {"kafka.bootstrap.servers": broker.bootstrap_servers}
    return TaskProducer(SinkOptions.parse(servers | named | ({"topic": topic} if topic else {})))


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (OutgoingRecord(None, None, None, b"v", None), "null topic present in the data"),
        (OutgoingRecord("two", -1, None, b"v", None), "Invalid partition: -1"),
        (OutgoingRecord("two", 9, None, b"v", None), "Unknown partition"),
    ],
)
def test_row_without_valid_target_fails(
    shared: LocalBroker, record: OutgoingRecord, message: str
) -> None:
    if "two" not in shared.topics():
        shared.create_topic("two", 2)
    with pytest.raises(DeliveryError, match=message):
        send(open_producer(shared, None), record)


def send(task: TaskProducer, record: OutgoingRecord) -> None:
    """Send one record and finish the task."""
    task.send([record])
    task.finish()


def test_full_queue_blocks_and_unavailable_broker_fails_task(shared: LocalBroker) -> None:
    shared.create_topic("full")
    record = OutgoingRecord("full", None, None, b"v", None)
    task = open_producer(shared, None, queue_buffering_max_messages="10")
    task.send([record] * 100)
    assert task.finish().records == 100
    assert len(shared.records("full")) == 100

    with LocalBroker(topics=["away"]) as broker:
        task = open_producer(broker, "away", delivery_timeout_ms="300")
        broker.stop()
        with pytest.raises(DeliveryError, match=r"was not delivered: .*timed out"):
            send(task, OutgoingRecord(None, None, None, b"v", None))
