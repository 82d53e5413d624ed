"""The Spark job: clicks become sessions; clicks that came too late go to a topic of their own.

* What is late is said by a rule about the click itself: it arrived (the record's timestamp) more than
  15 minutes after it happened. So the same clicks are late however Spark cuts the stream into
  batches. The watermark decides only when a session is closed; it is so wide that it drops nothing.
* A session is written once, when it is closed (append mode: Spark has no other for sessions). Its key
  is the visitor and its start, so a batch that is repeated after a crash writes the same keys again.
* When nobody clicks, the watermark stands still and the last sessions stay open: heartbeats move it.
"""

from __future__ import annotations

from pathlib import Path

import topics
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from . import CLICKS, GAP_MINUTES, LATE, LATE_MINUTES, SESSIONS

CLICK = "number bigint, visitor string, page string, time_ms bigint"
WATERMARK = "2 hours"
"""More than `LATE_MINUTES`: Spark may be further in one partition than in another."""


def start(
    spark: SparkSession, bootstrap: str, directory: Path, *, source: str = "kafka", batch_rows: int
) -> list[StreamingQuery]:
    """Start both queries on what is in the topic now; each goes on where it stopped last time.

    Parameters: `directory` keeps the checkpoints, `source` is Spark's format, `batch_rows` the most
    records of a micro-batch. Without the trigger they would run for ever.
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
    """Clicks with `time`, when each happened, and `is_late`."""
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
    """A record for each session."""
    window = F.session_window("time", f"{GAP_MINUTES} minutes")
    in_time = F.struct("time_ms", "number", "page")
    # count(visitor) is 0 for heartbeats. A filter on the visitor itself would be moved below the
    # watermark, where heartbeats must pass.
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
    """A record for each click that is in no session."""
    value = F.to_json(F.struct("number", "visitor", "page", "time_ms"))
    return clicks.where("is_late").select(
        F.col("number").cast("string").alias("key"), value.alias("value")
    )
