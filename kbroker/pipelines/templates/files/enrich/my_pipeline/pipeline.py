"""Orders joined with their customers: two input topics, one output topic.

    orders                                    {"id": "17", "customer": "ada", "amount": 9.5}
    customers  (compacted)   key "ada"        {"name": "Ada Lovelace", "country": "UK"}
    enriched   (compacted)   key "orders-0-4" {"id": "17", "customer": "ada", "amount": 9.5,
                                               "name": "Ada Lovelace", "country": "UK"}

An order is joined with the customers as of the start of its batch.
"""

from __future__ import annotations

import time

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from my_pipeline import topics
from my_pipeline.conf import Conf

ORDER = "id string, customer string, amount double, _corrupt_record string"
CUSTOMER = "name string, country string"


def build(spark: SparkSession, conf: Conf) -> StreamingQuery:
    """Start the pipeline."""
    customers = Customers(spark, conf)

    def work(batch: DataFrame, number: int) -> None:
        topics.write(results(batch, customers.now(), conf), conf)

    return topics.start(topics.stream(spark, conf, conf.orders), conf, work)


class Customers:
    """Table of customers, read again from its topic when it is too old."""

    def __init__(self, spark: SparkSession, conf: Conf) -> None:
        self._spark, self._conf = spark, conf
        self._table: DataFrame | None = None
        self._read_at = 0.0

    def now(self) -> DataFrame:
        """Return the cached table, which does not change during a batch."""
        age = time.monotonic() - self._read_at
        if self._table is None or age >= self._conf.customers_age_seconds:
            self._table = self._read()
        return self._table

    def _read(self) -> DataFrame:
        if self._table is not None:
            self._table.unpersist()
        self._read_at = time.monotonic()
        latest = topics.latest(self._spark, self._conf, self._conf.customers)
        customer = F.from_json(F.col("value").cast("string"), CUSTOMER)
        table = latest.select(
            F.col("key").cast("string").alias("customer"), customer.alias("details")
        )
        table.persist().count()  # Spark now knows the size and can choose the best join
        return table


def results(records: DataFrame, customers: DataFrame, conf: Conf) -> DataFrame:
    """Return a row for each record: the joined order, or the record with the reason."""
    order = F.from_json(F.col("value").cast("string"), ORDER)
    rows = records.withColumn("order", order).withColumn("customer", F.col("order.customer"))
    rows = rows.join(customers, "customer", "left")

    is_order = F.expr("order.id is not null and order._corrupt_record is null")
    has_customer = F.col("details").isNotNull()
    result = F.struct("order.id", "customer", "order.amount", "details.*")
    return rows.select(
        F.when(~is_order, conf.rejected)
        .when(~has_customer, conf.unmatched or conf.enriched)
        .otherwise(conf.enriched)
        .alias("topic"),
        topics.position().alias("key"),
        F.when(is_order, F.to_json(result, {"ignoreNullFields": "false"}).cast("binary"))
        .otherwise(F.col("value"))
        .alias("value"),
        F.when(~is_order, "invalid").when(~has_customer, "no customer").alias("reason"),
    )
