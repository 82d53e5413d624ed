"""Streaming job that turns orders into invoices; invalid orders go to a third topic.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0 invoices.py \\
        localhost:9092 /var/lib/invoices

An order is JSON: {"id": "17", "customer": "ada", "net": 100.0}. An order that is repeated within an
hour produces one invoice. After a failure, Spark's sink may write the invoices of a batch again, so
readers use the last record of each key.
"""

from __future__ import annotations

import sys

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

ORDERS, INVOICES, REJECTED = "orders", "invoices", "orders.rejected"
ORDER = "id string, customer string, net double"
VAT = 0.19
DUPLICATES_WITHIN = "1 hour"


def start(spark: SparkSession, bootstrap: str, checkpoint: str) -> StreamingQuery:
    """Start the job, which resumes at its checkpoint."""
    kafka = {"kafka.bootstrap.servers": bootstrap}
    records = (
        spark.readStream.format("kafka")
        .options(**kafka, subscribe=ORDERS, startingOffsets="earliest")
        .load()
    )
    return (
        results(records)
        .writeStream.format("kafka")
        .options(**kafka, checkpointLocation=checkpoint)
        .start()
    )


def results(records: DataFrame) -> DataFrame:
    """Return a record for each order: its invoice, or the unchanged order if it is invalid."""
    order = F.from_json(F.col("value").cast("string"), ORDER).alias("order")
    rows = records.select("*", order).withColumn("is_valid", _is_valid())
    rows = rows.withWatermark("timestamp", DUPLICATES_WITHIN)
    rows = rows.withColumn("what", _identity()).dropDuplicatesWithinWatermark(["what"])
    gross = F.round(F.col("order.net") * (1 + VAT), 2).alias("gross")
    invoice = F.to_json(F.struct("order.id", "order.customer", gross))
    return rows.select(
        F.when(F.col("is_valid"), INVOICES).otherwise(REJECTED).alias("topic"),
        F.when(F.col("is_valid"), F.col("order.id").cast("binary"))
        .otherwise(F.col("key"))
        .alias("key"),
        F.when(F.col("is_valid"), invoice.cast("binary")).otherwise(F.col("value")).alias("value"),
    )


def _is_valid() -> Column:
    order = F.col("order")
    complete = order["id"].isNotNull() & order["customer"].isNotNull()
    return F.coalesce(complete & (order["net"] >= 0), F.lit(False))


def _identity() -> Column:
    """Return an identity that is the same for repeated orders, and unique for invalid ones."""
    place = F.concat_ws("/", "topic", "partition", "offset")
    return F.when(F.col("is_valid"), F.concat(F.lit("order/"), "order.id")).otherwise(place)


def main() -> None:
    bootstrap, checkpoint = sys.argv[1:]
    spark = SparkSession.builder.appName("invoices").getOrCreate()
    start(spark, bootstrap, checkpoint).awaitTermination()


if __name__ == "__main__":
    main()
