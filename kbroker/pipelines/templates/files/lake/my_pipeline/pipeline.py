"""Archive of orders in Parquet files by date and hour, each order exactly once.

orders                  {"id": "17", "customer": "ada", "amount": 9.5}
lake/orders/record_date=2026-03-01/record_hour=10/00000-<first offset>-<last offset>.parquet
                        columns id, customer, amount, and record: topic, partition, offset, key ...
lake/_poison/orders/    invalid records, with the reason
"""

from __future__ import annotations

from pathlib import Path

from kbroker.pipelines.lake import archiver
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from my_pipeline.conf import Conf

# Columns. With None, columns are inferred from the records, and new ones are added later.
ORDER = "id string, customer string, amount double"


def build(spark: SparkSession, conf: Conf) -> StreamingQuery:
    """Start the pipeline, with its checkpoint in the lake."""
    settings = archiver.Conf(
        lake=Path(conf.lake),
        topic=conf.orders,
        bootstrap=conf.bootstrap,
        format="json",
        schema=ORDER,
        once=conf.every_seconds == 0,
        every_seconds=conf.every_seconds,
        batch_rows=conf.max_offsets,
        source=conf.format,
        options={f"kafka.{name}": value for name, value in conf.kafka.items()},
    )
    return archiver.build(spark, settings)
