"""DuckDB, pyarrow and Spark read a lake with added fields, before and after a merge."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow.dataset
import pytest

from kbroker.pipelines.lake import reading
from kbroker.pipelines.lake.archiver import Archiver
from kbroker.pipelines.lake.checking import check
from kbroker.pipelines.lake.commits import Counts, LakeError
from kbroker.pipelines.lake.locking import topic_lock
from kbroker.pipelines.lake.merging import Merges
from kbroker.testing import LocalBroker

from .lakes import HOUR_MS, START_MS, archive, conf_of, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERY = 'select sum(a), sum(b), count(*), max("record"."offset"), count(distinct record_hour) from '


def by_duckdb(lake: Path) -> Any:
    files = f"read_parquet('{lake}/t/**/*.parquet', union_by_name=true, hive_partitioning=true)"
    return duckdb.sql(QUERY + files).fetchall()[0]


def by_spark(spark: SparkSession, lake: Path) -> Any:
    spark.read.option("mergeSchema", "true").parquet(f"{lake}/t").createOrReplaceTempView("lake")
    return tuple(spark.sql(QUERY.replace('"', "`") + "lake").first() or ())


def by_pyarrow(lake: Path) -> Any:
    dataset = pyarrow.dataset.dataset(
        lake / "t",
        partitioning="hive",
        schema=reading.common_schema(reading.files(lake, "t")).append(
            pyarrow.field("record_hour", pyarrow.int32())
        ),
    )
    rows = dataset.to_table().to_pylist()
    return (
        sum(row["a"] for row in rows),
        sum(row["b"] or 0 for row in rows),
        len(rows),
        max(row["record"]["offset"] for row in rows),
        len({row["record_hour"] for row in rows}),
    )


def test_readers_agree_before_and_after_merge(
    spark: SparkSession, broker: LocalBroker, tmp_path: Path
) -> None:
    broker.create_topic("t")
    produce(broker, "t", [{"a": number} for number in range(6)])
    produce(broker, "t", [{"a": 6, "b": 0.5}, {"a": 7, "b": 1, "c": {"d": []}}])
    produce(broker, "t", [{"a": 8}], timestamp=START_MS + HOUR_MS)
    archive(spark, conf_of(broker, tmp_path, "t", batch_rows=3))
    expected = (36, 1.5, 9, 8, 2)
    assert len(reading.files(tmp_path, "t")) == 4

    assert by_pyarrow(tmp_path) == expected
    assert by_duckdb(tmp_path) == expected
    assert by_spark(spark, tmp_path) == expected
    with topic_lock(tmp_path, "t"):
        assert Merges(tmp_path, "t").run() == (3, 1)
    assert by_pyarrow(tmp_path) == expected
    assert by_duckdb(tmp_path) == expected
    assert by_spark(spark, tmp_path) == expected
    checked = check(tmp_path, "t")
    assert (checked.problems, checked.counts, checked.files) == ([], Counts(9), 2)


def test_archiver_rejects_locked_topic_and_other_format(
    broker: LocalBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("t")
    monkeypatch.setattr("kbroker.pipelines.lake.locking._SECONDS", 0)
    with topic_lock(tmp_path, "t"), pytest.raises(LakeError, match="another process writes t"):
        Archiver(conf_of(broker, tmp_path, "t"))
    Archiver(conf_of(broker, tmp_path, "t")).close()
    with pytest.raises(LakeError, match="continue with --format json"):
        Archiver(conf_of(broker, tmp_path, "t", format="raw"))
    with pytest.raises(LakeError, match="topic other does not exist"):
        Archiver(conf_of(broker, tmp_path, "other"))
    with pytest.raises(LakeError, match="a lake must be on a local file system"):
        Archiver(conf_of(broker, Path("s3://bucket"), "t"))
