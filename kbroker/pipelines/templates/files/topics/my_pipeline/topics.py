"""Reading and writing topics, with Spark's connector or with the source that needs no jar.

Records of a topic have the columns key, value, topic, partition, offset, timestamp and timestampType.
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
    """What a query from topic to topic has to know."""

    checkpoint: str = setting("checkpoint", "directory where Spark notes how far it has come")
    trigger: str = setting("1 second", "time between batches; or available-now, which ends")
    max_offsets: int = setting(100_000, "how many records a batch has at most; 0: all there are")


def stream(spark: SparkSession, conf: TopicSettings, topic: str) -> DataFrame:
    """All records of a topic from its first one on, and those that come."""
    reader = spark.readStream.format(conf.format).options(**_kafka(conf))
    if conf.max_offsets:
        reader = reader.option("maxOffsetsPerTrigger", conf.max_offsets)
    return reader.options(subscribe=topic, startingOffsets="earliest").load()


def latest(spark: SparkSession, conf: TopicSettings, topic: str) -> DataFrame:
    """A compacted topic as a table: each key with its last value, as of now.

    A key whose last value is null is deleted. All records of a key are in one partition.
    """
    records = spark.read.format(conf.format).options(**_kafka(conf), subscribe=topic).load()
    last = F.max(F.struct("offset", "value")).alias("last")
    table = records.groupBy("key").agg(last).select("key", "last.value")
    return table.where("key is not null and value is not null")


def write(rows: DataFrame, conf: TopicSettings) -> None:
    """Append rows (topic, key, value, reason) to topics; a reason becomes a header.

    After a failure Spark works a batch again, and its rows are appended again. So the key says which
    result a row is, topics of results are compacted, and the last value of a key is the one to read.
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
    """Start a query that gives each batch, and its number, to `work`.

    It goes on where the query that had its checkpoint stopped. A batch that did not come to its end
    is given again, with the same records and the same number.
    """
    writer = records.writeStream.outputMode(output_mode).foreachBatch(work)
    if conf.trigger == "available-now":
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=conf.trigger)
    return writer.option("checkpointLocation", conf.checkpoint).queryName("my_pipeline").start()


def position() -> Column:
    """Where a record lies, as text: no other record has the same."""
    return F.concat_ws("-", "topic", "partition", "offset")


def _kafka(conf: TopicSettings) -> dict[str, str]:
    options = {f"kafka.{name}": value for name, value in conf.kafka.items()}
    return options | {"kafka.bootstrap.servers": conf.bootstrap}
