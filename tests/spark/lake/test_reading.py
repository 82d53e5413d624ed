"""Lakes are read in offset order, even if files overlap or have different columns."""

from __future__ import annotations

import datetime
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kbroker.pipelines.lake import reading
from kbroker.pipelines.lake.layout import file_name

RECORD = pa.struct(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("key", pa.binary()),
        ("tombstone", pa.bool_()),
    ]
)


def write_file(
    lake: Path, hour: int, offsets: list[int], columns: dict[str, pa.Array], partition: int = 0
) -> None:
    """Write a file as the archiver would."""
    time = datetime.datetime(2026, 3, 1, hour, tzinfo=datetime.UTC)
    rows: list[dict[str, Any]] = [
        {"topic": "t", "partition": partition, "offset": offset, "timestamp": time, "key": b"k"}
        for offset in offsets
    ]
    directory = lake / "t" / "record_date=2026-03-01" / f"record_hour={hour:02}"
    directory.mkdir(parents=True, exist_ok=True)
    table = pa.table({**columns, "record": pa.array(rows, RECORD)})
    pq.write_table(table, directory / file_name(partition, offsets[0], offsets[-1]))


def offsets_of(batches: list[pa.RecordBatch]) -> list[int]:
    return [row["record"]["offset"] for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("batch_rows", [7, 8192])
def test_overlapping_files_are_read_in_offset_order(tmp_path: Path, batch_rows: int) -> None:
    dice = random.Random(1)
    hours: dict[int, list[int]] = {}
    for offset in range(1000):
        hours.setdefault(dice.choice([1, 2, 2, 2, 3]) + offset // 300, []).append(offset)
    for hour, offsets in hours.items():
        values = pa.array([str(offset).encode() for offset in offsets])
        write_file(tmp_path, hour, offsets, {"value": values})
    write_file(tmp_path, 1, [5, 6], {"value": pa.array([b"x", b"y"])}, partition=1)

    found = [file for file in reading.files(tmp_path, "t") if file.partition == 0]
    batches = list(reading.merged(found, reading.common_schema(found), batch_rows))

    assert offsets_of(batches) == list(range(1000))
    assert offsets_of(list(reading.records(tmp_path, "t", 0))) == list(range(1000))
    assert [value for batch in batches for value in reading.payload(batch)] == [
        str(offset).encode() for offset in range(1000)
    ]
    assert offsets_of(list(reading.records(tmp_path, "t", 1))) == [5, 6]
    assert list(reading.records(tmp_path, "t", 2)) == []


def test_files_with_different_schemas_are_read_with_common_schema(tmp_path: Path) -> None:
    write_file(tmp_path, 1, [0, 1], {"a": pa.array([1, None])})
    nested = pa.array([{"x": 1, "y": "e"}, None])
    listed = pa.array([[{"p": 1}], []])
    write_file(tmp_path, 2, [2, 3], {"a": pa.array([3, 4]), "n": nested, "l": listed})
    nested = pa.array([{"x": 5, "y": None, "z": 2.5}, None])
    listed = pa.array([None, [{"p": 1, "q": True}, {"p": 2, "q": None}]])
    write_file(tmp_path, 3, [4, 5], {"n": nested, "l": listed})

    batches = list(reading.records(tmp_path, "t", 0))

    assert {tuple(batch.schema.names) for batch in batches} == {("a", "n", "l", "record")}
    assert [json.loads(value or b"0") for one in batches for value in reading.payload(one)] == [
        {"a": 1},
        {},
        {"a": 3, "n": {"x": 1, "y": "e"}, "l": [{"p": 1}]},
        {"a": 4, "l": []},
        {"n": {"x": 5, "z": 2.5}},
        {"l": [{"p": 1, "q": True}, {"p": 2}]},
    ]


def test_only_requested_columns_are_read(tmp_path: Path) -> None:
    write_file(tmp_path, 1, [0], {"a": pa.array([1]), "b": pa.array([2])})
    assert [batch.to_pylist() for batch in reading.records(tmp_path, "t", 0, ["b"])] == [[{"b": 2}]]


def test_other_files_are_ignored(tmp_path: Path) -> None:
    write_file(tmp_path, 1, [0], {"a": pa.array([1])})
    directory = tmp_path / "t" / "record_date=2026-03-01" / "record_hour=01"
    (directory / "notes.parquet").write_text("not Parquet")
    assert [(file.partition, file.first, file.last) for file in reading.files(tmp_path, "t")] == [
        (0, 0, 0)
    ]


def test_payloads_use_original_field_names(tmp_path: Path) -> None:
    write_file(tmp_path, 1, [0], {"record_": pa.array([1]), "a": pa.array([2])})
    private = tmp_path / "_kbroker" / "t"
    private.mkdir(parents=True)
    fields = [
        {"name": "record_", "type": "long", "nullable": True, "metadata": {"field": "record"}},
        {"name": "a", "type": "long", "nullable": True, "metadata": {}},
    ]
    (private / "schema.json").write_text(json.dumps({"type": "struct", "fields": fields}))
    batches = list(reading.records(tmp_path, "t", 0))
    assert [json.loads(reading.payload(batch)[0] or b"") for batch in batches] == [
        {"record": 1, "a": 2}
    ]


def test_payloads_contain_maps_as_objects(tmp_path: Path) -> None:
    by_number = pa.map_(
        pa.int32(), pa.list_(pa.struct([("by_flag", pa.map_(pa.bool_(), pa.string()))]))
    )
    values = [[(7, [{"by_flag": [(True, "x")]}, {"by_flag": None}])], [], None]
    write_file(tmp_path, 1, [0, 1, 2], {"m": pa.array(values, by_number), "a": pa.array([1, 2, 3])})
    (batch,) = reading.records(tmp_path, "t", 0)
    assert [json.loads(value or b"") for value in reading.payload(batch)] == [
        {"m": {"7": [{"by_flag": {"true": "x"}}, {}]}, "a": 1},
        {"m": {}, "a": 2},
        {"a": 3},
    ]
