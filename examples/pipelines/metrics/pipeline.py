"""The Spark job: a query for each width of window, each writing to a compacted topic.

* Update mode: a window is written whenever it has changed, so its figures are there at once and the
  newest record of a key is the one that counts. The key says which host, metric and window it is.
* A batch that is repeated after a crash computes the same figures from the same state and writes the
  same records again: who reads the latest of each key sees nothing twice.
* The watermark frees the state of windows that are over. It is wide: Spark may be further in one
  partition than in another, and a row behind the watermark is dropped without an error.
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
    """Start the queries on what is in the topic now; each goes on where it stopped last time.

    Parameters: `directory` keeps the checkpoints, `source` is Spark's format, `batch_rows` the most
    records of a micro-batch. Without the trigger they would run for ever.
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
    """Readings with `time` as a timestamp."""
    reading = F.from_json(F.col("value").cast("string"), READING).alias("reading")
    rows = records.select(reading).select("reading.*")
    return rows.withColumn("time", F.timestamp_millis("time_ms"))


def windows(readings: DataFrame, width: str) -> DataFrame:
    """A record for each window of each metric of each host: min, max, avg, last and count."""
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
