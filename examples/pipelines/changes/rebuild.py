"""Spark jobs that rebuild tables from their changes, as a batch or continuously.

Both jobs read only committed records and use the last change of each key. The changes of a key are
in one partition, in the order of the database's commits.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import topics
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from . import TABLES, Table


def _source(bootstrap: str, names: str) -> dict[str, str]:
    return topics.source(bootstrap, names) | {"kafka.isolation.level": "read_committed"}


def last_changes(records: DataFrame, table: Table) -> DataFrame:
    """Return the last change of each key: `changed`, the key, and `row`, null for a deleted row."""
    columns = ", ".join(
        f"{name} {'STRING' if kind == 'TEXT' else kind}" for name, kind in table.columns.items()
    )
    change = F.from_json(F.col("value").cast("string"), f"after struct<{columns}>")
    last = records.groupBy("key").agg(F.max_by("value", "offset").alias("value"))
    return last.select(F.col("key").cast("string").alias("changed"), change["after"].alias("row"))


def table_now(
    spark: SparkSession, bootstrap: str, table: Table, *, source: str = "kafka"
) -> DataFrame:
    """Return the current table, computed from its whole topic."""
    records = spark.read.format(source).options(**_source(bootstrap, table.topic)).load()
    return last_changes(records, table).where("row is not null").select("row.*")


def start(
    spark: SparkSession, bootstrap: str, directory: Path, *, source: str = "kafka", batch_rows: int
) -> StreamingQuery:
    """Start the job that keeps the tables in `directory` up to date; it resumes at its checkpoint.

    Args:
        spark: Session.
        bootstrap: Address of the broker.
        directory: Directory for tables and checkpoint.
        source: Spark's format of the source.
        batch_rows: Maximum number of records per micro-batch.

    Returns:
        The running query, which stops at the end of the topics.
    """
    names = ",".join(table.topic for table in TABLES)
    options = _source(bootstrap, names) | {"maxOffsetsPerTrigger": str(batch_rows)}
    return (
        spark.readStream.format(source)
        .options(**options)
        .load()
        .writeStream.foreachBatch(partial(apply, directory))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .queryName("rebuild")
        .trigger(availableNow=True)
        .start()
    )


def apply(directory: Path, batch: DataFrame, batch_id: int) -> None:
    """Write the next version of each table: the version before with the changes of a batch.

    A version has the number of its batch. A repeated batch starts from the version before it again,
    and overwrites its own version.
    """
    batch.persist()
    for table in TABLES:
        changes = last_changes(batch.where(F.col("topic") == table.topic), table)
        rows = changes.where("row is not null").select("row.*")
        before = [number for number in versions(directory, table) if number < batch_id]
        if before:
            old = batch.sparkSession.read.parquet(str(_version(directory, table, before[-1])))
            is_changed = old[table.key] == changes["changed"]
            rows = old.join(changes, is_changed, "left_anti").unionByName(rows)
        rows.coalesce(1).write.mode("overwrite").parquet(str(_version(directory, table, batch_id)))
        for number in before[:-1]:
            shutil.rmtree(_version(directory, table, number))
    batch.unpersist()


def versions(directory: Path, table: Table) -> list[int]:
    """Return the numbers of the complete versions of a table, in order."""
    complete = (directory / table.name).glob("version=*/_SUCCESS")
    return sorted(int(path.parent.name.partition("=")[2]) for path in complete)


def _version(directory: Path, table: Table, number: int) -> Path:
    return directory / table.name / f"version={number}"


def kept_table(spark: SparkSession, directory: Path, table: Table) -> DataFrame:
    """Return the newest complete version of a table."""
    return spark.read.parquet(str(_version(directory, table, versions(directory, table)[-1])))


def rows_by_key(frame: DataFrame, table: Table) -> dict[str, tuple[Any, ...]]:
    """Return the rows of a table, for the comparison."""
    return {row[table.key]: tuple(row) for row in frame.select(*table.columns).collect()}
