"""Parquet directories as Spark writes them, including repeated batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.demo import readback

# pyarrow is installed only in the demo's environment.
pytestmark = pytest.mark.spark


def write(directory: Path, *rows: dict[str, object]) -> None:
    from pyarrow import Table, parquet

    directory.mkdir(parents=True, exist_ok=True)
    parquet.write_table(Table.from_pylist(list(rows)), directory / "part-0.snappy.parquet")


def row(day: str, flights: int) -> dict[str, object]:
    return {"day": day, "carrier": "UA", "origin": "EWR", "all": {"flights": flights}}


def test_last_batch_of_group_is_used(tmp_path: Path) -> None:
    write(tmp_path / "batch_id=0", row("2013-01-01", 1), row("2013-01-02", 1))
    write(tmp_path / "batch_id=9", row("2013-01-01", 2))
    write(tmp_path / "batch_id=10", row("2013-01-01", 3))
    assert readback.parquet_groups(tmp_path) == {
        ("2013-01-01", "UA", "EWR"): {"all": {"flights": 3}},
        ("2013-01-02", "UA", "EWR"): {"all": {"flights": 1}},
    }


def test_other_files_of_spark_are_ignored(tmp_path: Path) -> None:
    write(tmp_path / "batch_id=0", row("2013-01-01", 1))
    (tmp_path / "batch_id=0" / "_SUCCESS").touch()
    (tmp_path / "batch_id=0" / ".part-0.snappy.parquet.crc").touch()
    assert len(readback.parquet_groups(tmp_path)) == 1


def test_results_by_hour_are_read(tmp_path: Path) -> None:
    write(tmp_path, {"hour": 5, "weather": "rain", "flights": 2, "delay_max": None})
    assert readback.parquet_hours(tmp_path) == {(5, "rain"): {"flights": 2, "delay_max": None}}
