"""Totals for each hour and customer, by the time at which the orders were made.

    orders                           {"time": "2026-03-01T10:12:00Z", "customer": "ada", "amount": 9.5}
    totals  (compacted)  key "2026-03-01T10:00:00Z ada"
                                     {"start": "2026-03-01T10:00:00.000Z", "customer": "ada",
                                      "orders": 1, "amount": 9.5}

A total is written again whenever it has changed. Spark forgets a window when an order has come that is
`lateness` younger than the end of the window; orders that are for it after that go to `rejected`.
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
    orders = records.where("why is null").withWatermark("time", conf.lateness)
    # A batch has the totals that it changed, and its records, to see which of them took part.
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
    """The records, each with its order or with the reason why it is none."""
    order = F.from_json(F.col("value").cast("string"), ORDER).alias("order")
    columns = ("key", "value", "topic", "partition", "offset", "timestamp")
    rows = records.select(*columns, order).select(*columns, "order.*")
    is_order = F.expr("_corrupt_record is null and time is not null and customer is not null")
    is_ahead = F.col("time") > F.col("timestamp") + F.expr(f"interval {conf.ahead}")
    # One wrong clock would move the watermark, and make all other orders late.
    why = F.when(~is_order, "no order").when(is_ahead, "ahead of its time").alias("why")
    return rows.select("*", why).drop("_corrupt_record", "timestamp")


def totals(orders: DataFrame, conf: Conf) -> DataFrame:
    """One column `total`: start, customer, and what is counted."""
    groups = orders.groupBy(F.window("time", conf.window), "customer")
    counted = groups.agg(F.count("*").alias("orders"), F.sum("amount").alias("amount"))
    start = F.col("window.start").alias("start")
    return counted.select(F.struct(start, "customer", "orders", "amount").alias("total"))


def results(changed: DataFrame, conf: Conf) -> DataFrame:
    """The rows to write for totals."""
    return changed.select(
        F.lit(conf.totals).alias("topic"),
        total_key().alias("key"),
        F.to_json(F.struct("*")).cast("binary").alias("value"),
        F.lit(None).cast("string").alias("reason"),
    )


def rejected(records: DataFrame, changed: DataFrame, conf: Conf) -> DataFrame:
    """The rows to write for records that are in no total.

    Spark drops orders that are too late without a word. But all orders of a window and customer are
    dropped or none is, and a total that took orders in has changed: those without one were late.
    """
    no_orders = records.where("why is not null")
    orders = records.where("why is null").withColumn("start", F.window("time", conf.window).start)
    late = orders.join(changed, ["start", "customer"], "left_anti").withColumn("why", F.lit("late"))
    return no_orders.unionByName(late.select(no_orders.columns)).select(
        F.lit(conf.rejected).alias("topic"),
        topics.position().alias("key"),
        "value",
        F.col("why").alias("reason"),
    )


def total_key() -> Column:
    """What a total is for: the same in each of its versions."""
    start = F.date_format("start", "yyyy-MM-dd'T'HH:mm:ssXXX")
    return F.concat_ws(" ", start, "customer")
