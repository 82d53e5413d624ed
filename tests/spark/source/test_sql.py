"""SQL tables and views of the source, and DataFrames that several actions read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from kbroker.testing import LocalBroker

from .topics import delete_before, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def options(broker: LocalBroker) -> str:
    broker.create_topic("orders")
    produce(broker, "orders", ["a", "b"])
    return f"'kafka.bootstrap.servers'='{broker.bootstrap_servers}', 'subscribe'='orders'"


@pytest.fixture
def table(spark: SparkSession, options: str) -> Iterator[str]:
    spark.sql(
        f"CREATE TABLE orders USING kbroker OPTIONS ({options}) COMMENT 'text' "
        "TBLPROPERTIES ('a' = 'b')"
    )
    yield "orders"
    spark.sql("DROP TABLE orders")


def count(spark: SparkSession, query: str) -> int:
    return int(spark.sql(f"SELECT count(*) FROM {query}").collect()[0][0])


def test_table_with_options_in_query_reads_newest_records_each_time(
    spark: SparkSession, broker: LocalBroker, options: str, table: str
) -> None:
    assert count(spark, f"{table} WITH ({options})") == 2
    produce(broker, "orders", ["c"])
    assert count(spark, f"{table} WITH ({options})") == 3


def test_table_without_options_in_query_error_shows_syntax(spark: SparkSession, table: str) -> None:
    with pytest.raises(Exception, match=r"SELECT \.\.\. FROM t WITH"):
        count(spark, table)


def test_misspelt_option_of_table_is_rejected(spark: SparkSession, options: str) -> None:
    with pytest.raises(Exception, match="unknown option: subscirbe"):
        spark.sql(f"CREATE TABLE wrong USING kbroker OPTIONS ({options}, 'subscirbe'='orders')")


def test_temporary_view_reads_topic(spark: SparkSession, options: str) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW seen USING kbroker OPTIONS ({options})")
    assert count(spark, "seen") == 2


def test_second_action_after_retention_reads_remaining_records(
    spark: SparkSession, broker: LocalBroker
) -> None:
    broker.create_topic("retained")
    produce(broker, "retained", ["a", "b", "c"])
    servers = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "retained"}
    rows = spark.read.format("kbroker").options(**servers).load()
    assert rows.count() == 3
    delete_before(broker, "retained", 2)
    assert [row.value for row in rows.collect()] == [b"c"]
