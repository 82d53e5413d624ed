"""Reading and writing topics, with Spark's connector or the pure-Python source.

Records have the columns key, value, topic, partition, offset, timestamp and timestampType.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from my_pipeline.settings import Settings, setting


@dataclass(frozen=True, kw_only=True)
class TopicSettings(Settings):
    """Settings of a query from topic to topic."""

    checkpoint: str = setting("checkpoint", "directory for Spark's checkpoint")
    trigger: str = setting("1 second", "interval between batches; available-now: stop at the end")
    max_offsets: int = setting(100_000, "maximum number of records per batch; 0: no limit")


def stream(spark: SparkSession, conf: TopicSettings, topic: str) -> DataFrame:
    """Return a stream of all records of a topic, from its first record on."""
    reader = spark.readStream.format(conf.format).options(**_kafka(conf))
    if conf.max_offsets:
        reader = reader.option("maxOffsetsPerTrigger", conf.max_offsets)
    return reader.options(subscribe=topic, startingOffsets="earliest").load()


def latest(spark: SparkSession, conf: TopicSettings, topic: str) -> DataFrame:
    """Return a compacted topic as a table: each key with its current last value.

    A key whose last value is null is deleted. All records of a key are in the same partition.
    """
    records = spark.read.format(conf.format).options(**_kafka(conf), subscribe=topic).load()
    last = F.max(F.struct("offset", "value")).alias("last")
    table = records.groupBy("key").agg(last).select("key", "last.value")
    return table.where("key is not null and value is not null")


def write(rows: DataFrame, conf: TopicSettings) -> None:
    """Append rows (topic, key, value, reason) to topics; a reason becomes a header.

    After a failure, Spark repeats the batch and appends its rows again. Therefore the key
    identifies the result, topics with results are compacted, and readers use the last value of each
    key.
    """
    header = F.struct(F.lit("reason").alias("key"), F.col("reason").cast("binary").alias("value"))
    headers = F.when(F.col("reason").isNotNull(), F.array(header)).alias("headers")
    records = rows.select(
        "topic", F.col("key").cast("binary"), F.col("value").cast("binary"), headers
    )
    records.write.mode("append").format(conf.format).options(**_kafka(conf)).save()


def start(
    records: DataFrame,
    conf: TopicSettings,
    work: Callable[[DataFrame, int], None],
    output_mode: str = "append",
) -> StreamingQuery:
    """Start a query that passes each batch with its number to `work`.

    The query resumes at its checkpoint. An unfinished batch is passed again with the same records
    and the same number.
    """
    writer = records.writeStream.outputMode(output_mode).foreachBatch(work)
    if conf.trigger == "available-now":
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=conf.trigger)
    return writer.option("checkpointLocation", conf.checkpoint).queryName("my_pipeline").start()


def position() -> Column:
    """Return the position of a record as a string, which is unique."""
    return F.concat_ws("-", "topic", "partition", "offset")


def _kafka(conf: TopicSettings) -> dict[str, str]:
    options = {f"kafka.{name}": value for name, value in conf.kafka.items()}
    return options | {"kafka.bootstrap.servers": conf.bootstrap}
