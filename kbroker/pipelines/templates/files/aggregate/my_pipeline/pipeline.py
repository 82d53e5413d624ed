"""Totals per hour and customer, by the event time of the orders.

    orders                           {"time": "2026-03-01T10:12:00Z", "customer": "ada", "amount": 9.5}
    totals  (compacted)  key "2026-03-01T10:00:00Z ada"
                                     {"start": "2026-03-01T10:00:00.000Z", "customer": "ada",
                                      "orders": 1, "amount": 9.5}

A total is written whenever it changes. Spark drops the state of a window after an order that is
`lateness` newer than the end of the window. Later orders for this window go to `rejected`.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from my_pipeline import topics
from my_pipeline.conf import Conf

ORDER = "time timestamp, customer string, amount double, _corrupt_record string"


def build(spark: SparkSession, conf: Conf) -> StreamingQuery:
    """Start the pipeline."""
    records = with_orders(topics.stream(spark, conf, conf.orders), conf)
    orders = records.where("reason is null").withWatermark("time", conf.lateness)
    # A batch contains the changed totals and its records, to find the records in no total.
    both = totals(orders, conf).unionByName(
        records.select(F.struct("*").alias("record")), allowMissingColumns=True
    )

    def work(batch: DataFrame, number: int) -> None:
        batch.persist()
        changed = batch.where("total is not null").select("total.*")
        seen = batch.where("record is not null").select("record.*")
        topics.write(results(changed, conf).unionByName(rejected(seen, changed, conf)), conf)
        batch.unpersist()

    return topics.start(both, conf, work, output_mode="update")


def with_orders(records: DataFrame, conf: Conf) -> DataFrame:
    """Return the records, each with its order or with the reason why it is invalid."""
    order = F.from_json(F.col("value").cast("string"), ORDER).alias("order")
    columns = ("key", "value", "topic", "partition", "offset", "timestamp")
    rows = records.select(*columns, order).select(*columns, "order.*")
    is_order = F.expr("_corrupt_record is null and time is not null and customer is not null")
    is_ahead = F.col("time") > F.col("timestamp") + F.expr(f"interval {conf.ahead}")
    # One wrong clock would advance the watermark and make all other orders late.
    reason = F.when(~is_order, "invalid").when(is_ahead, "in the future").alias("reason")
    return rows.select("*", reason).drop("_corrupt_record", "timestamp")


def totals(orders: DataFrame, conf: Conf) -> DataFrame:
    """Return one column `total` with start, customer, number of orders and amount."""
    groups = orders.groupBy(F.window("time", conf.window), "customer")
    counted = groups.agg(F.count("*").alias("orders"), F.sum("amount").alias("amount"))
    start = F.col("window.start").alias("start")
    return counted.select(F.struct(start, "customer", "orders", "amount").alias("total"))


def results(changed: DataFrame, conf: Conf) -> DataFrame:
    """Return the rows to write for totals."""
    return changed.select(
        F.lit(conf.totals).alias("topic"),
        total_key().alias("key"),
        F.to_json(F.struct("*")).cast("binary").alias("value"),
        F.lit(None).cast("string").alias("reason"),
    )


def rejected(records: DataFrame, changed: DataFrame, conf: Conf) -> DataFrame:
    """Return the rows to write for records that are in no total.

    Spark drops late orders silently. It drops either all orders of a window and customer in a batch
    or none. A total with new orders has changed, so orders without a changed total were late.
    """
    no_orders = records.where("reason is not null")
    orders = records.where("reason is null").withColumn(
        "start", F.window("time", conf.window).start
    )
    late = orders.join(changed, ["start", "customer"], "left_anti").withColumn(
        "reason", F.lit("late")
    )
    return no_orders.unionByName(late.select(no_orders.columns)).select(
        F.lit(conf.rejected).alias("topic"),
        topics.position().alias("key"),
        "value",
        F.col("reason").alias("reason"),
    )


def total_key() -> Column:
    """Return the key of a total, which is the same for all its versions."""
    start = F.date_format("start", "yyyy-MM-dd'T'HH:mm:ssXXX")
    return F.concat_ws(" ", start, "customer")
