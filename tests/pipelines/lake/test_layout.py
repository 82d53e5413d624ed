"""Tests of file names in a lake."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.pipelines.lake import layout


def test_file_names_contain_partition_and_offsets() -> None:
    name = layout.file_name(3, 17, 4_000_000_000)
    assert name == "00003-00000000000000000017-00000000004000000000.parquet"
    assert layout.parsed(Path(name)) == layout.LakeFile(3, 17, 4_000_000_000, Path(name))
    assert layout.parsed(Path(layout.file_name(123_456, 0, 0))) == layout.LakeFile(
        123_456, 0, 0, Path(layout.file_name(123_456, 0, 0))
    )


@pytest.mark.parametrize(
    "name", ["part-0001.parquet", "00003-17-18.parquet", f"x{layout.file_name(1, 2, 3)}"]
)
def test_other_file_names_are_ignored(name: str) -> None:
    assert layout.parsed(Path(name)) is None


def test_files_and_topics_are_found(tmp_path: Path) -> None:
    hour = tmp_path / "t" / "record_date=2026-03-01" / "record_hour=01"
    poison = tmp_path / layout.POISON / "bad"
    for directory in (hour, poison, tmp_path / layout.PRIVATE / "new"):
        directory.mkdir(parents=True)
    for path in (hour / layout.file_name(1, 5, 9), hour / layout.file_name(0, 7, 7)):
        path.touch()
    (poison / layout.file_name(0, 1, 2)).touch()

    assert [file.partition for file in layout.data_files(tmp_path, "t")] == [0, 1]
    assert [file.first for file in layout.poison_files(tmp_path, "bad")] == [1]
    assert layout.topics(tmp_path) == ["bad", "new", "t"]
