"""Sessions of visitors: clicks with no gap between them, by the time at which they were made.

    clicks                            {"time": "2026-03-01T10:12:00Z", "visitor": "ada", "page": "/"}
    sessions  (compacted)  key "2026-03-01T10:12:00.000Z ada"
                                      {"visitor": "ada", "start": "2026-03-01T10:12:00.000Z",
                                       "end": "2026-03-01T10:20:00.000Z", "clicks": 3,
                                       "entry": "/", "exit": "/basket"}

A session is written once, when it is over. A click that arrived `lateness` after its time counts in no
session and goes to `rejected`: that is a rule about the click itself, so the same clicks are late however
Spark cuts the topic into batches. A click without a visitor is a heartbeat; it only moves time on.
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
    clicks = records.where("why is null").withWatermark("time", conf.patience)
    no_clicks = records.where("why is not null").select(F.struct("*").alias("record"))
    both = sessions(clicks, conf).unionByName(no_clicks, allowMissingColumns=True)

    def work(batch: DataFrame, number: int) -> None:
        batch.persist()
        over = batch.where("session is not null").select("session.*")
        aside = batch.where("record is not null").select("record.*")
        topics.write(results(over, conf).unionByName(rejected(aside, conf)), conf)
        batch.unpersist()

    return topics.start(both, conf, work)


def with_clicks(records: DataFrame, conf: Conf) -> DataFrame:
    """The records, each with its click or with the reason why it is in no session."""
    click = F.from_json(F.col("value").cast("string"), CLICK).alias("click")
    columns = ("key", "value", "topic", "partition", "offset", "timestamp")
    rows = records.select(*columns, click).select(*columns, "click.*")
    is_click = F.expr("_corrupt_record is null and time is not null")
    is_late = F.col("timestamp") > F.col("time") + F.expr(f"interval {conf.lateness}")
    # One wrong clock would move the watermark, and close all sessions that are open.
    is_ahead = F.col("time") > F.col("timestamp") + F.expr(f"interval {conf.ahead}")
    why = F.when(~is_click, "no click").when(is_late, "late").when(is_ahead, "ahead of its time")
    return rows.select("*", why.alias("why")).drop("_corrupt_record", "timestamp")


def sessions(clicks: DataFrame, conf: Conf) -> DataFrame:
    """One column `session`: whose it was, its first and last click, and what is counted."""
    in_order = F.struct("time", "partition", "offset", "page")
    groups = clicks.groupBy("visitor", F.session_window("time", conf.gap))
    # count(visitor) is 0 for heartbeats. A filter on the visitor itself would be moved below the
    # watermark, where heartbeats must pass.
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
    """The rows to write for sessions that are over."""
    return over.select(
        F.lit(conf.sessions).alias("topic"),
        F.concat_ws(" ", F.date_format("start", TIME), "visitor").alias("key"),
        F.to_json(F.struct("*")).cast("binary").alias("value"),
        F.lit(None).cast("string").alias("reason"),
    )


def rejected(records: DataFrame, conf: Conf) -> DataFrame:
    """The rows to write for records that are in no session."""
    return records.select(
        F.lit(conf.rejected).alias("topic"),
        topics.position().alias("key"),
        "value",
        F.col("why").alias("reason"),
    )
