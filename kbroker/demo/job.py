"""Spark job: joins departures with their hour's weather, and maintains delay statistics.

Run as ``python -m kbroker.demo.job`` in its own process, so that ``kill -9`` also ends its JVM. The
job survives this as follows:

- It uses update mode with foreachBatch. A batch that is repeated after a crash starts from the same
  offsets and state, so it computes the same rows.
- Parquet files are written to ``batch_id=N``, which is overwritten when N is repeated. Spark's
  Kafka sink is at-least-once: each record's key identifies its group, and the last value of a key
  counts.
- There is no watermark, so all groups stay open and no record is late. A year of days, carriers and
  airports is a small state.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kbroker.spark import session

from .child import ParentConnection

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.streaming import StreamingQuery

DEPARTURE_SCHEMA = "carrier string, origin string, time_hour string, hour int, dep_delay int"
WEATHER_SCHEMA = "origin string, time_hour string, precip double"


def main() -> None:
    arguments = _arguments()
    parent = ParentConnection()
    try:
        spark = _session()
        parent.emit("session", spark=spark.version)
        parent.wait_for("start")
        _run(arguments, parent, spark)
    except Exception as error:  # noqa: BLE001 - report any error to the parent
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        parent.emit("failed", reason=str(error).splitlines()[0] if str(error) else repr(error))
        os._exit(1)
    spark.stop()


def _run(arguments: argparse.Namespace, parent: ParentConnection, spark: SparkSession) -> None:
    weather = _weather(arguments, spark)
    parent.emit("weather", rows=weather.count())

    source = spark.readStream.format("kafka").options(**_source(arguments, arguments.departures))
    stream = source.option("maxOffsetsPerTrigger", arguments.batch_rows).load()
    groups = _joined(stream, weather).groupBy(
        F.date_format("timestamp", "yyyy-MM-dd").alias("day"), "carrier", "origin"
    )
    query = (
        groups.agg(*(_figures(name).alias(name) for name in ("all", "rain", "dry", "no_weather")))
        .writeStream.outputMode("update")
        .option("checkpointLocation", str(arguments.directory / "checkpoint"))
        .foreachBatch(partial(_write_batch, arguments, parent))
        .start()
    )
    batches = _Batches(query, parent)
    while not parent.received("finish"):
        query.awaitTermination(0.2)  # raises if the query failed
        batches.report()
    drain = threading.Thread(target=query.processAllAvailable, daemon=True)
    drain.start()
    while drain.is_alive():
        drain.join(timeout=0.2)
        batches.report()
    query.stop()
    parent.emit("drained")

    _write_hours(arguments, spark, weather)
    parent.emit("finished")


def _weather(arguments: argparse.Namespace, spark: SparkSession) -> DataFrame:
    """Return the weather topic as a cached table, which micro-batches need not read again."""
    source = spark.read.format("kafka").options(**_source(arguments, arguments.weather))
    row = F.from_json(F.col("value").cast("string"), WEATHER_SCHEMA)
    table = source.load().select(row.alias("row")).select("row.*")
    rain = F.when(F.col("precip") > 0, "rain").otherwise("dry")
    return table.select("origin", "time_hour", rain.alias("weather")).cache()


def _joined(departures: DataFrame, weather: DataFrame) -> DataFrame:
    """Join departures with the weather at their airport and hour, if it is known."""
    row = F.from_json(F.col("value").cast("string"), DEPARTURE_SCHEMA)
    rows = departures.select("timestamp", row.alias("row")).select("timestamp", "row.*")
    return rows.join(F.broadcast(weather), ["origin", "time_hour"], "left").fillna(
        "no_weather", subset=["weather"]
    )


def _figures(weather: str) -> Column:
    """Return the delay statistics of the flights in one kind of weather as a struct."""
    chosen = F.lit(True) if weather == "all" else F.col("weather") == weather
    delay = F.when(chosen, F.col("dep_delay"))
    return F.struct(
        F.count(F.when(chosen, 1)).alias("flights"),
        F.count(delay).alias("departed"),
        F.count(F.when(delay >= 15, 1)).alias("delayed"),
        F.coalesce(F.sum(delay), F.lit(0)).alias("delay_sum"),
        F.max(delay).alias("delay_max"),
    )


def _write_batch(
    arguments: argparse.Namespace, parent: ParentConnection, updates: DataFrame, batch_id: int
) -> None:
    """Write the changed statistics of a micro-batch to Parquet and, with keys, to Kafka."""
    # Cache the result for both writes; otherwise the aggregation would run twice.
    updates.persist()
    directory = arguments.directory / "delays" / f"batch_id={batch_id}"
    updates.coalesce(1).write.mode("overwrite").parquet(str(directory))
    parent.emit("writing", batch=batch_id)
    figures = F.struct("all", "rain", "dry", "no_weather")
    records = updates.select(
        F.concat_ws("|", "day", "carrier", "origin").alias("key"),
        F.to_json(figures, {"ignoreNullFields": "false"}).alias("value"),
    )
    sink = records.write.format("kafka").option("kafka.bootstrap.servers", arguments.bootstrap)
    sink.option("topic", arguments.delays).save()
    updates.unpersist()


def _write_hours(arguments: argparse.Namespace, spark: SparkSession, weather: DataFrame) -> None:
    """Compute delays by hour of day and weather from the whole topic, for the chart."""
    source = spark.read.format("kafka").options(**_source(arguments, arguments.departures))
    hours = _joined(source.load(), weather).groupBy("hour", "weather")
    result = hours.agg(_figures("all").alias("all")).select("hour", "weather", "all.*")
    result.coalesce(1).write.mode("overwrite").parquet(str(arguments.directory / "delays-by-hour"))


class _Batches:
    """Reporter of each micro-batch's progress."""

    def __init__(self, query: StreamingQuery, parent: ParentConnection) -> None:
        self._query = query
        self._parent = parent
        self._reported = 0

    def report(self) -> None:
        progresses = self._query.recentProgress
        for progress in map(json.loads, (p.json for p in progresses[self._reported :])):
            if progress["numInputRows"]:
                self._parent.emit(
                    "batch",
                    batch=progress["batchId"],
                    rows=progress["numInputRows"],
                    records=_records(progress["sources"][0]["endOffset"]),
                    seconds=progress["durationMs"]["triggerExecution"] / 1000,
                    late=sum(s["numRowsDroppedByWatermark"] for s in progress["stateOperators"]),
                )
        self._reported = len(progresses)


def _records(offsets: dict[str, dict[str, int]] | str) -> int:
    """Return the number of records below the offsets; both topics start at offset 0."""
    topics = json.loads(offsets) if isinstance(offsets, str) else offsets
    return sum(end for partitions in topics.values() for end in partitions.values())


def _source(arguments: argparse.Namespace, topic: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": arguments.bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        # Spark queries the end offsets after every poll; the default poll returns only 500 records.
        "kafka.max.poll.records": "20000",
    }


def _session() -> SparkSession:
    scratch = Path(os.environ["SPARK_LOCAL_DIRS"])
    settings = {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={scratch}",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.streaming.numRecentProgressUpdates": "100000",
    }
    # The run is short: with the fast compiler, Spark warms up in half the time.
    return session("kbroker demo", quick=True, settings=settings)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--departures", required=True, help="topic")
    parser.add_argument("--weather", required=True, help="topic")
    parser.add_argument("--delays", required=True, help="topic")
    parser.add_argument("--directory", required=True, type=Path, help="checkpoint and Parquet")
    parser.add_argument("--batch-rows", type=int, default=40_000, help="rows per micro-batch")
    return parser.parse_args()


if __name__ == "__main__":
    main()
