"""Spark job with a query per window width, each writing to a compacted topic.

- Update mode: a window is written whenever it changes, so its values are available at once, and the
  newest record of a key counts. The key contains host, metric and window.
- A batch that is repeated after a crash computes the same values from the same state and writes the
  same records again. Readers of the latest record per key see no duplicates.
- The watermark frees the state of past windows. It is wide, because Spark may read partitions at
  different speeds, and drops rows older than the watermark silently.
"""

from __future__ import annotations

from pathlib import Path

import topics
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from . import METRICS, WIDTHS

READING = "host string, name string, time_ms bigint, value bigint"
WATERMARK = "1 hour"


def start(
    spark: SparkSession, bootstrap: str, directory: Path, *, source: str = "kafka", batch_rows: int
) -> list[StreamingQuery]:
    """Start the queries on the available records; they resume at their checkpoints.

    Args:
        spark: Session.
        bootstrap: Address of the broker.
        directory: Directory for the checkpoints.
        source: Spark's format of the source.
        batch_rows: Maximum number of records per micro-batch.

    Returns:
        The running queries, which stop at the end of the topic.
    """
    options = topics.source(bootstrap, METRICS) | {"maxOffsetsPerTrigger": str(batch_rows)}
    readings = parsed(spark.readStream.format(source).options(**options).load())
    return [
        windows(readings, width)
        .writeStream.outputMode("update")
        .format("kafka")
        .options(**{"kafka.bootstrap.servers": bootstrap, "topic": topic})
        .option("checkpointLocation", str(directory / topic))
        .queryName(topic)
        .trigger(availableNow=True)
        .start()
        for topic, width in WIDTHS.items()
    ]


def parsed(records: DataFrame) -> DataFrame:
    """Return readings with `time` as a timestamp."""
    reading = F.from_json(F.col("value").cast("string"), READING).alias("reading")
    rows = records.select(reading).select("reading.*")
    return rows.withColumn("time", F.timestamp_millis("time_ms"))


def windows(readings: DataFrame, width: str) -> DataFrame:
    """Return a record for each window of each metric and host: min, max, avg, last and count."""
    groups = (
        readings.withWatermark("time", WATERMARK)
        .groupBy("host", "name", F.window("time", width))
        .agg(
            F.min("value").alias("min"),
            F.max("value").alias("max"),
            F.avg("value").alias("avg"),
            F.max_by("value", "time_ms").alias("last"),
            F.count("value").alias("count"),
        )
    )
    start_ms = F.unix_millis("window.start")
    value = F.struct("min", "max", "avg", "last", "count")
    key = F.concat_ws("|", "host", "name", start_ms)
    return groups.select(key.alias("key"), F.to_json(value).alias("value"))
