"""A session talks to Kafka at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.testing import LocalBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_session_reads_and_writes_a_topic(spark: SparkSession, broker: LocalBroker) -> None:
    broker.create_topic("numbers", partitions=2)
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers}
    rows = spark.range(10).selectExpr("cast(id as string) as key", "cast(id as string) as value")
    rows.write.format("kafka").options(**options, topic="numbers").save()

    read = spark.read.format("kafka").options(**options, subscribe="numbers").load()

    assert sorted(int(row.value) for row in read.collect()) == list(range(10))
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
