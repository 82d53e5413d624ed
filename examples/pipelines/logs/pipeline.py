"""Spark job that parses entries of both forms, and writes invalid ones to a separate topic.

- An invalid entry is written unchanged, with the reason in a header. Its key is its source
  position, so a batch that is repeated after a crash writes the same keys.
- Errors are counted per service and minute in update mode: a minute is written under its key
  whenever it changes, and the latest record of a key counts.
"""

from __future__ import annotations

from pathlib import Path

import topics
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from . import BAD, ERROR_LEVELS, ERRORS, LEVELS, LOGS

FREE_TEXT = r"(?s)^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) +([A-Z]+) +\[[^\]]*\] ([^\n]*)\n?(.*)$"
JSON = "time string, level string, message string, detail string, not_json string"
# Maximum time difference between the services.
WATERMARK = "1 hour"


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
    options = topics.source(bootstrap, LOGS) | {"maxOffsetsPerTrigger": str(batch_rows)}
    entries = parsed(spark.readStream.format(source).options(**options).load())
    return [
        rows.writeStream.outputMode(mode)
        .format("kafka")
        .options(**{"kafka.bootstrap.servers": bootstrap, "topic": topic})
        .option("checkpointLocation", str(directory / topic))
        .queryName(topic)
        .trigger(availableNow=True)
        .start()
        for topic, mode, rows in (
            (BAD, "append", bad(entries)),
            (ERRORS, "update", errors(entries)),
        )
    ]


def parsed(records: DataFrame) -> DataFrame:
    """Return the fields of entries, and a `reason` for invalid ones."""
    text = F.col("value").cast("string")
    rows = records.withColumns(
        {
            "service": F.col("key").cast("string"),
            "text": text,
            "is_json": text.startswith("{"),
            "json": F.from_json(text, JSON, {"columnNameOfCorruptRecord": "not_json"}),
        }
    )
    free_text = {
        name: F.regexp_extract("text", FREE_TEXT, number)
        for number, name in enumerate(("time", "level", "message", "detail"), start=1)
    }
    fields = {
        name: F.when(F.col("is_json"), F.col(f"json.{name}")).otherwise(part)
        for name, part in free_text.items()
    }
    with_comma = F.try_to_timestamp(fields["time"], F.lit("yyyy-MM-dd HH:mm:ss,SSS"))
    time = F.when(F.col("is_json"), F.try_to_timestamp(fields["time"])).otherwise(with_comma)
    return rows.withColumns(fields | {"time": time}).withColumn("reason", _reason())


def _reason() -> Column:
    """Return why an entry is invalid; null for a valid one."""
    return (
        F.when(~F.is_valid_utf8("text"), "not UTF-8")
        .when(F.col("is_json") & F.col("json.not_json").isNotNull(), "no JSON object")
        .when(F.col("time").isNull(), "no time")
        .when(F.col("level").isNull() | ~F.col("level").isin(*LEVELS), "unknown level")
    )


def bad(entries: DataFrame) -> DataFrame:
    """Return a record for each invalid entry, unchanged."""
    headers = F.array(
        F.struct(F.lit("reason").alias("key"), F.col("reason").cast("binary").alias("value")),
        F.struct(F.lit("service").alias("key"), F.col("key").alias("value")),
    )
    place = F.concat_ws("-", "topic", "partition", "offset")
    return entries.where("reason is not null").select(
        place.alias("key"), "value", headers.alias("headers")
    )


def errors(entries: DataFrame) -> DataFrame:
    """Return a record for each minute of each service: entries, errors, and their share."""
    is_error = F.when(F.col("level").isin(*ERROR_LEVELS), 1)
    minutes = (
        entries.where("reason is null")
        .withWatermark("time", WATERMARK)
        .groupBy("service", F.window("time", "1 minute"))
        .agg(F.count(F.lit(1)).alias("entries"), F.count(is_error).alias("errors"))
    )
    minute = F.date_format("window.start", "yyyy-MM-dd'T'HH:mm'Z'")
    value = F.struct("entries", "errors", (F.col("errors") / F.col("entries")).alias("rate"))
    return minutes.select(
        F.concat_ws("|", "service", minute).alias("key"), F.to_json(value).alias("value")
    )
