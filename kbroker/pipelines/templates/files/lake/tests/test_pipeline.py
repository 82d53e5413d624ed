"""Tests of the archive: each order becomes one row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kbroker.testing import LocalBroker
from pyspark.sql import Row, SparkSession

from my_pipeline.conf import Conf

Run = Callable[[], None]

pytestmark = pytest.mark.kbroker(topics={"orders": 2})


def order(number: int, amount: float | str = 9.5) -> dict[str, Any]:
    return {"id": str(number), "customer": "ada", "amount": amount}


def rows(spark: SparkSession, *directory: str) -> list[Row]:
    """Return the rows as read by any Parquet reader, in topic order."""
    files = spark.read.option("recursiveFileLookup", True).parquet(str(Path(*directory)))
    return files.orderBy("record.partition", "record.offset").collect()


def test_orders_are_archived_as_rows(
    spark: SparkSession, kbroker: LocalBroker, run: Run, conf: Conf
) -> None:
    kbroker.produce("orders", order(1), key="a", partition=0)
    kbroker.produce("orders", order(2), partition=1)
    kbroker.produce("orders", order(3, amount="much"), partition=1)
    run()
    found = rows(spark, conf.lake, "orders")
    assert [(row["id"], row["customer"], row["amount"]) for row in found] == [
        ("1", "ada", 9.5),
        ("2", "ada", 9.5),
    ]
    assert (found[0]["record"]["key"], found[0]["record"]["offset"]) == (b"a", 0)
    (poison,) = rows(spark, conf.lake, "_poison", "orders")
    assert (poison["record"]["partition"], poison["record"]["offset"]) == (1, 1)


def test_repeated_batch_writes_no_duplicates(
    spark: SparkSession, kbroker: LocalBroker, run: Run, crash_after_writing: Run, conf: Conf
) -> None:
    kbroker.produce("orders", order(1), partition=0)
    crash_after_writing()
    kbroker.produce("orders", order(2), partition=0)
    run()
    assert [row["id"] for row in rows(spark, conf.lake, "orders")] == ["1", "2"]
