"""Driver of a Spark session, with verbs as NDJSON like ../clients/driver.py.

Rows are {topic, partition, offset, timestamp (ms), key, value, headers}. Bytes are encoded as
latin-1 strings.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from session import open_session

# Spark and its JVM print to stdout, so responses use a duplicate of it and prints go to stderr.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

STREAM_SECONDS = 120


class Driver:
    """The verbs. `options` are those of the Kafka source, without the bootstrap servers."""

    def __init__(
        self,
        environment: Path,
        bootstrap: str,
        jars: Path | None,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.bootstrap = bootstrap
        self.spark = open_session(environment, jars, more)

    def do_version(self) -> str:
        return str(self.spark.version)

    def do_read(self, options: dict[str, str]) -> Any:
        """Run a batch read and return its rows."""
        frame = self._source(self.spark.read, options).load()
        return [_row(row) for row in frame.collect()]

    def do_partitions(self, options: dict[str, str]) -> int:
        """Return the number of Spark partitions of a batch read."""
        return int(self._source(self.spark.read, options).load().rdd.getNumPartitions())

    def do_write(self, rows: list[dict[str, Any]], options: dict[str, str]) -> None:
        """Run a batch write of {topic, partition, key, value, headers}."""
        shape = (
            "topic string, partition int, key binary, value binary, "
            "headers array<struct<key:string,value:binary>>"
        )
        data = [
            (
                row["topic"],
                row.get("partition"),
                _encode(row.get("key")),
                _encode(row.get("value")),
                [(name, _encode(value)) for name, value in row["headers"]]
                if "headers" in row
                else None,
            )
            for row in rows
        ]
        frame = self.spark.createDataFrame(data, shape)
        self._source(frame.write, options).save()

    def do_stream(self, options: dict[str, str], checkpoint: str) -> Any:
        """Read all available records in micro-batches and return the rows of each batch."""
        batches: list[list[dict[str, Any]]] = []
        frame = self._source(self.spark.readStream, options).load()
        query = (
            frame.writeStream.foreachBatch(
                lambda batch, number: batches.append([_row(row) for row in batch.collect()])
            )
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        if not query.awaitTermination(STREAM_SECONDS):
            query.stop()
            raise TimeoutError(f"the query did not end within {STREAM_SECONDS} s")
        return batches

    def do_begin_copy(self, source: str, sink: str, checkpoint: str) -> None:
        """Start a query that copies one topic to another until `end_copy`."""
        options = {"subscribe": source, "startingOffsets": "earliest"}
        frame = self._source(self.spark.readStream, options).load()
        self.query = (
            frame.select("key", "value")
            .writeStream.format("kafka")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("topic", sink)
            .option("checkpointLocation", checkpoint)
            .trigger(processingTime="200 milliseconds")
            .start()
        )

    def do_copied(self) -> int:
        """Return the number of records copied so far, or raise the error of the query."""
        error = self.query.exception()
        if error is not None:
            raise error
        return sum(row["numInputRows"] for row in self.query.recentProgress)

    def do_end_copy(self) -> None:
        """Copy all available records and stop, or raise the error of the query."""
        self.query.processAllAvailable()
        self.query.stop()

    def do_delays(self, source: str, weather: str, sink: str, checkpoint: str, limit: int) -> Any:
        """Compute departure delays per day, carrier and weather with a streaming query.

        The query joins a stream with a table, aggregates, and writes updates to a topic.

        Returns:
            The number of micro-batches.
        """
        from pyspark.sql import functions as f

        raw = self._source(self.spark.read, {"subscribe": weather}).load()
        rain = (
            raw.select(
                f.from_json(
                    f.col("value").cast("string"), "origin string, hour string, rain boolean"
                ).alias("w")
            )
            .select("w.*")
            .cache()
        )
        stream = self._source(
            self.spark.readStream,
            {
                "subscribe": source,
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": str(limit),
            },
        ).load()
        shape = "carrier string, origin string, hour string, delay int"
        flights = stream.select(
            f.from_json(f.col("value").cast("string"), shape).alias("d")
        ).select("d.*")
        results = (
            flights.join(rain, ["origin", "hour"], "left")
            .groupBy(f.substring("hour", 1, 10).alias("day"), "carrier", "rain")
            .agg(f.count("*").alias("flights"), f.sum("delay").alias("delay"))
            .select(
                f.concat_ws(
                    "|", "day", "carrier", f.coalesce(f.col("rain").cast("string"), f.lit("?"))
                )
                .cast("binary")
                .alias("key"),
                f.to_json(f.struct("flights", "delay")).cast("binary").alias("value"),
            )
        )
        query = (
            results.writeStream.format("kafka")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("topic", sink)
            .option("checkpointLocation", checkpoint)
            .outputMode("update")
            .trigger(availableNow=True)
            .start()
        )
        if not query.awaitTermination(STREAM_SECONDS):
            raise TimeoutError(f"the query did not end within {STREAM_SECONDS} s")
        return len(query.recentProgress)

    def serve(self) -> None:
        """Execute requests until stdin ends."""
        for line in sys.stdin:
            request = json.loads(line)
            try:
                verb = getattr(self, "do_" + request["verb"])
                answer = {"result": verb(**request["arguments"])}
            except Exception as error:  # noqa: BLE001 (any exception is a result)
                answer = {
                    "error": {
                        "code": None,
                        "type": type(error).__name__,
                        "message": str(error),
                        "trace": traceback.format_exc(),
                    }
                }
            print(json.dumps(answer), file=ANSWERS, flush=True)

    def _source(self, builder: Any, options: dict[str, str]) -> Any:
        wired = {"kafka.bootstrap.servers": self.bootstrap, **options}
        return builder.format("kafka").options(**wired)


def _row(row: Any) -> dict[str, Any]:
    found = row.asDict()
    return {
        "topic": found["topic"],
        "partition": found["partition"],
        "offset": found["offset"],
        "timestamp": int(found["timestamp"].timestamp() * 1000),
        "key": _decode(found["key"]),
        "value": _decode(found["value"]),
        "headers": [[name, _decode(value)] for name, value in found.get("headers") or []],
    }


def _encode(text: str | None) -> bytes | None:
    return None if text is None else text.encode("latin-1")


def _decode(raw: bytearray | None) -> str | None:
    return None if raw is None else bytes(raw).decode("latin-1")


if __name__ == "__main__":
    directory, address, *more = sys.argv[1:]
    Driver(Path(directory), address, Path(more[0]) if more else None).serve()
