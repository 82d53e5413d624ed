"""The full text: every entry goes to the lake as it came, and is found there."""

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
    """Start to archive what is in the topic now.

    From a shell: ``kbroker lake archive LAKE logs --format raw --once``.
    """
    conf = Conf(lake=lake, topic=LOGS, bootstrap=bootstrap, format="raw", once=True, source=source)
    return build(spark, conf)


def search(lake: Path, text: bytes = b"") -> Iterator[bytes]:
    """The entries that contain a text; all of them without one."""
    for partition in sorted({file.partition for file in files(lake, LOGS)}):
        for batch in records(lake, LOGS, partition, ["value"]):
            yield from (raw for raw in batch["value"].to_pylist() if text in raw)
