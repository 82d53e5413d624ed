"""Spark job that turns clicks into sessions, and writes late clicks to a separate topic.

- A click is late if it arrived (its record's timestamp) more than 15 minutes after it happened.
  This depends only on the click, so the result does not depend on how Spark splits the stream into
  batches. The watermark only determines when a session ends; it is so wide that it drops nothing.
- A session is written once, when it has ended (append mode, the only mode supported by Spark for
  sessions). Its key is the visitor and its start, so a repeated batch writes the same keys.
- Without clicks the watermark does not advance, and the last sessions stay open. Heartbeats advance
  it.
"""

from __future__ import annotations

from pathlib import Path

import topics
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from . import CLICKS, GAP_MINUTES, LATE, LATE_MINUTES, SESSIONS

CLICK = "number bigint, visitor string, page string, time_ms bigint"
# More than `LATE_MINUTES`, because Spark may read partitions at different speeds.
WATERMARK = "2 hours"


def start(
    spark: SparkSession, bootstrap: str, directory: Path, *, source: str = "kafka", batch_rows: int
) -> list[StreamingQuery]:
    """Start both queries on the available records; they resume at their checkpoints.

    Args:
        spark: Session.
        bootstrap: Address of the broker.
        directory: Directory for the checkpoints.
        source: Spark's format of the source.
        batch_rows: Maximum number of records per micro-batch.

    Returns:
        The running queries, which stop at the end of the topic.
    """
    options = topics.source(bootstrap, CLICKS) | {"maxOffsetsPerTrigger": str(batch_rows)}
    clicks = parsed(spark.readStream.format(source).options(**options).load())
    return [
        rows.writeStream.format("kafka")
        .options(**{"kafka.bootstrap.servers": bootstrap, "topic": topic})
        .option("checkpointLocation", str(directory / topic))
        .queryName(topic)
        .trigger(availableNow=True)
        .start()
        for topic, rows in ((SESSIONS, sessions(clicks)), (LATE, late(clicks)))
    ]


def parsed(records: DataFrame) -> DataFrame:
    """Return clicks with `time`, the time of the click, and `is_late`."""
    click = F.from_json(F.col("value").cast("string"), CLICK)
    rows = records.select("timestamp", click.alias("click")).select("timestamp", "click.*")
    delay_ms = F.unix_millis("timestamp") - F.col("time_ms")
    return rows.withColumns(
        {
            "time": F.timestamp_millis("time_ms"),
            "is_late": delay_ms > LATE_MINUTES * 60_000,
        }
    )


def sessions(clicks: DataFrame) -> DataFrame:
    """Return a record for each session."""
    window = F.session_window("time", f"{GAP_MINUTES} minutes")
    in_time = F.struct("time_ms", "number", "page")
    # count(visitor) is 0 for heartbeats. Spark would push a filter on the visitor itself below the
    # watermark, and heartbeats would not advance it.
    groups = (
        clicks.where("not is_late")
        .withWatermark("time", WATERMARK)
        .groupBy("visitor", window)
        .agg(
            F.count("visitor").alias("clicks"),
            F.min(in_time).alias("first"),
            F.max(in_time).alias("last"),
        )
        .where("clicks > 0")
    )
    value = F.struct(
        "visitor",
        F.col("first.time_ms").alias("start_ms"),
        F.col("last.time_ms").alias("end_ms"),
        "clicks",
        F.col("first.page").alias("entry"),
        F.col("last.page").alias("exit"),
    )
    key = F.concat_ws("|", "visitor", "first.time_ms")
    return groups.select(key.alias("key"), F.to_json(value).alias("value"))


def late(clicks: DataFrame) -> DataFrame:
    """Return a record for each late click."""
    value = F.to_json(F.struct("number", "visitor", "page", "time_ms"))
    return clicks.where("is_late").select(
        F.col("number").cast("string").alias("key"), value.alias("value")
    )
