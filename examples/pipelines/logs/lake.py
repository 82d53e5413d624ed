"""Archive of all original entries in a lake, and a full-text search."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from kbroker.pipelines.lake.archiver import Conf, build
from kbroker.pipelines.lake.reading import files, records

from . import LOGS


def archive(
    spark: SparkSession, bootstrap: str, lake: Path, *, source: str = "kafka"
) -> StreamingQuery:
    """Start archiving the available records.

    From a shell: ``kbroker lake archive LAKE logs --format raw --once``.
    """
    conf = Conf(lake=lake, topic=LOGS, bootstrap=bootstrap, format="raw", once=True, source=source)
    return build(spark, conf)


def search(lake: Path, text: bytes = b"") -> Iterator[bytes]:
    """Yield the entries that contain a text; without a text, all."""
    for partition in sorted({file.partition for file in files(lake, LOGS)}):
        for batch in records(lake, LOGS, partition, ["value"]):
            yield from (raw for raw in batch["value"].to_pylist() if text in raw)
