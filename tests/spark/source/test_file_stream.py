"""A stream over files reads what the broker writes between the runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kbroker.spark.source.stream import HAS_READ_LIMITS
from kbroker.testing import LocalBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def fill(data: Path, first: int, count: int) -> None:
    """Run a broker on the directory and produce records. They are on disk when it ends."""
    with LocalBroker(data_dir=str(data)) as broker:
        if "numbers" not in broker.topics():
            broker.create_topic("numbers", 2)
        for number in range(first, first + count):
            broker.produce("numbers", b"%d" % number, partition=number % 2)


def stream(spark: SparkSession, tmp_path: Path, **more: str) -> list[list[int]]:
    """Read everything that is available, and return the values of each batch."""
    options = {"path": str(tmp_path / "data"), "startingOffsets": "earliest", **more}
    batches: list[list[int]] = []

    def take(frame: DataFrame, _: int) -> None:
        batches.append(sorted(int(row.value) for row in frame.select("value").collect()))

    reading = spark.readStream.format("kbroker").options(**options).load()
    query = (
        reading.writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return batches


def all_of(batches: list[list[int]]) -> list[int]:
    return sorted(number for batch in batches for number in batch)


def test_file_stream_resumes_with_new_records(spark: SparkSession, tmp_path: Path) -> None:
    limit = {"maxOffsetsPerTrigger": "20"} if HAS_READ_LIMITS else {}

    fill(tmp_path / "data", 0, 50)
    first = stream(spark, tmp_path, **limit)
    fill(tmp_path / "data", 50, 10)
    second = stream(spark, tmp_path, **limit)

    assert all_of(first) == list(range(50))
    assert len([batch for batch in first if batch]) == (3 if HAS_READ_LIMITS else 1)
    assert all_of(second) == list(range(50, 60))


def test_directory_without_topic_option_reads_all_topics(
    spark: SparkSession, tmp_path: Path
) -> None:
    fill(tmp_path / "data", 0, 3)
    frame = spark.read.format("kbroker").load(str(tmp_path / "data"))
    assert {row.topic for row in frame.collect()} == {"numbers"}


def test_damaged_file_fails_query_with_verify_command(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path / "data", 0, 4)
    path = tmp_path / "data/numbers-0/00000000000000000000.log"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    frame = spark.read.format("kbroker").option("subscribe", "numbers").load(str(tmp_path / "data"))
    with pytest.raises(Exception, match="is corrupt at byte") as failed:
        frame.collect()
    assert f"kbroker log verify {path.parent}" in str(failed.value)
