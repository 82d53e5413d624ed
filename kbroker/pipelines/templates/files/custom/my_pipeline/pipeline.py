"""Transformation of records one by one: put your code into `results`.

source                                 any text
target  (compacted)  key "source-0-4"  the text in capitals
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from my_pipeline import topics
from my_pipeline.conf import Conf


def build(spark: SparkSession, conf: Conf) -> StreamingQuery:
    """Start the pipeline."""

    def work(batch: DataFrame, number: int) -> None:
        topics.write(results(batch, conf), conf)

    return topics.start(topics.stream(spark, conf, conf.source), conf, work)


def results(records: DataFrame, conf: Conf) -> DataFrame:
    """Return the rows to write; a repeated batch must produce the same keys."""
    return records.select(
        F.lit(conf.target).alias("topic"),
        topics.position().alias("key"),
        F.upper(F.col("value").cast("string")).alias("value"),
        F.lit(None).cast("string").alias("reason"),
    )
