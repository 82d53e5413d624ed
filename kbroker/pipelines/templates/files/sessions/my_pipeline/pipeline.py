"""Sessions of visitors: clicks without a gap between them, by their event time.

    clicks                            {"time": "2026-03-01T10:12:00Z", "visitor": "ada", "page": "/"}
    sessions  (compacted)  key "2026-03-01T10:12:00.000Z ada"
                                      {"visitor": "ada", "start": "2026-03-01T10:12:00.000Z",
                                       "end": "2026-03-01T10:20:00.000Z", "clicks": 3,
                                       "entry": "/", "exit": "/basket"}

A session is written once, when it has ended. A click that arrived more than `lateness` after its
time goes to `rejected`. This depends only on the click, so the result does not depend on how Spark
splits the topic into batches. A click without a visitor is a heartbeat, which only advances time.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from my_pipeline import topics
from my_pipeline.conf import Conf

CLICK = "time timestamp, visitor string, page string, _corrupt_record string"
TIME = "yyyy-MM-dd'T'HH:mm:ss.SSSXXX"


def build(spark: SparkSession, conf: Conf) -> StreamingQuery:
    """Start the pipeline."""
    records = with_clicks(topics.stream(spark, conf, conf.clicks), conf)
    clicks = records.where("reason is null").withWatermark("time", conf.patience)
    no_clicks = records.where("reason is not null").select(F.struct("*").alias("record"))
    both = sessions(clicks, conf).unionByName(no_clicks, allowMissingColumns=True)

    def work(batch: DataFrame, number: int) -> None:
        batch.persist()
        over = batch.where("session is not null").select("session.*")
        aside = batch.where("record is not null").select("record.*")
        topics.write(results(over, conf).unionByName(rejected(aside, conf)), conf)
        batch.unpersist()

    return topics.start(both, conf, work)


def with_clicks(records: DataFrame, conf: Conf) -> DataFrame:
    """Return the records, each with its click or with the reason why it is in no session."""
    click = F.from_json(F.col("value").cast("string"), CLICK).alias("click")
    columns = ("key", "value", "topic", "partition", "offset", "timestamp")
    rows = records.select(*columns, click).select(*columns, "click.*")
    is_click = F.expr("_corrupt_record is null and time is not null")
    is_late = F.col("timestamp") > F.col("time") + F.expr(f"interval {conf.lateness}")
    # One wrong clock would advance the watermark and end all open sessions.
    is_ahead = F.col("time") > F.col("timestamp") + F.expr(f"interval {conf.ahead}")
    reason = F.when(~is_click, "invalid").when(is_late, "late").when(is_ahead, "in the future")
    return rows.select("*", reason.alias("reason")).drop("_corrupt_record", "timestamp")


def sessions(clicks: DataFrame, conf: Conf) -> DataFrame:
    """Return one column `session` with visitor, first and last click, and the number of clicks."""
    in_order = F.struct("time", "partition", "offset", "page")
    groups = clicks.groupBy("visitor", F.session_window("time", conf.gap))
    # count(visitor) is 0 for heartbeats. Spark would push a filter on the visitor itself below the
    # watermark, and heartbeats would not advance it.
    found = groups.agg(
        F.count("visitor").alias("clicks"),
        F.min(in_order).alias("first"),
        F.max(in_order).alias("last"),
    ).where("clicks > 0")
    session = F.struct(
        "visitor",
        F.col("first.time").alias("start"),
        F.col("last.time").alias("end"),
        "clicks",
        F.col("first.page").alias("entry"),
        F.col("last.page").alias("exit"),
    )
    return found.select(session.alias("session"))


def results(over: DataFrame, conf: Conf) -> DataFrame:
    """Return the rows to write for sessions that have ended."""
    return over.select(
        F.lit(conf.sessions).alias("topic"),
        F.concat_ws(" ", F.date_format("start", TIME), "visitor").alias("key"),
        F.to_json(F.struct("*")).cast("binary").alias("value"),
        F.lit(None).cast("string").alias("reason"),
    )


def rejected(records: DataFrame, conf: Conf) -> DataFrame:
    """Return the rows to write for records that are in no session."""
    return records.select(
        F.lit(conf.rejected).alias("topic"),
        topics.position().alias("key"),
        "value",
        F.col("reason").alias("reason"),
    )
