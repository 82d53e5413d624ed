"""Lakes stay exact if a commit or a merge is killed at any moment.

The process "dies" at the first file system call, then at the second, and so on. The next start
continues from what it finds.
"""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kbroker.pipelines.lake import commits as commits_module
from kbroker.pipelines.lake import layout, reading
from kbroker.pipelines.lake.checking import check
from kbroker.pipelines.lake.commits import JOURNAL, Commits, Counts, LakeError, planned_offsets
from kbroker.pipelines.lake.fields import PARTITION
from kbroker.pipelines.lake.merging import Merges

from .lakes import HOUR_MS, START_MS

CHANGES = [
    (os, "replace"),
    (os, "fsync"),
    (shutil, "rmtree"),
    (pathlib.Path, "unlink"),
    (pathlib.Path, "mkdir"),
    (pathlib.Path, "write_text"),
]
RECORD = pa.struct(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("tombstone", pa.bool_()),
    ]
)


@pytest.fixture(autouse=True)
def _without_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable fsync: the tests simulate only process death."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


class Killed(BaseException):
    """The simulated death of the process."""


class Death:
    """Makes every file system change fail from the nth on, as if the process were dead."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, moment: int) -> None:
        self._left = itertools.count(moment, -1)
        for holder, name in CHANGES:
            monkeypatch.setattr(holder, name, self._counted(getattr(holder, name)))

    def _counted(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **more: Any) -> Any:
            if next(self._left) <= 0:
                raise Killed
            return change(*args, **more)

        return counted


def stage(commits: Commits, hours: dict[int, list[int]], poison: list[int]) -> None:
    """Write the files that Spark would write."""
    for hour, offsets in hours.items():
        directory = (
            commits.data_directory / f"{PARTITION}=0/record_date=2026-03-01/record_hour={hour}"
        )
        _write(directory, offsets, hour, "a")
    if poison:
        _write(commits.poison_directory / f"{PARTITION}=0", poison, 0, "value")


def _write(directory: Path, offsets: list[int], hour: int, column: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    micros = (START_MS + hour * HOUR_MS) * 1000
    records = [
        {"topic": "t", "partition": 0, "offset": offset, "timestamp": micros} for offset in offsets
    ]
    values = pa.array([offset * 10 for offset in offsets])
    pq.write_table(
        pa.table({column: values, "record": pa.array(records, RECORD)}),
        directory / "part-0.parquet",
    )


BATCHES: list[tuple[dict[int, list[int]], list[int]]] = [
    ({0: [0, 1, 4], 1: [2, 3]}, [5]),
    ({0: [6], 1: [7, 9]}, []),
    ({1: [10], 2: [11]}, [12, 13]),
]

# Offsets of the readable records of all batches: 5, 3 and 2.
ALL = [0, 1, 2, 3, 4, 6, 7, 9, 10, 11]


def write_all(lake: Path, *, repeated: bool) -> None:
    """Repeat what Spark does after a start: the last uncommitted batch, then the others."""
    commits = Commits(lake, "t")
    first = max(commits.journal.batch, 0) if repeated else 0
    for number in range(first, len(BATCHES)):
        if commits.begin(number, "c"):
            stage(commits, *BATCHES[number])
            commits.commit(number, "c")


def offsets(lake: Path) -> list[int]:
    found = []
    for batch in reading.records(lake, "t", 0):
        found += [row["record"]["offset"] for row in batch.to_pylist()]
    return found


def deaths() -> Iterator[int]:
    return iter(range(1, 400))


def test_commit_survives_kill_at_every_file_system_call(tmp_path: Path) -> None:
    for moment in deaths():
        lake = tmp_path / str(moment)
        lake.mkdir()
        with pytest.MonkeyPatch.context() as monkeypatch:
            Death(monkeypatch, moment)
            try:
                write_all(lake, repeated=False)
                break
            except Killed:
                pass
        # Before the next start, a reader sees whole batches.
        assert offsets(lake) in [ALL[:count] for count in (0, 5, 8, 10)], moment
        write_all(lake, repeated=True)
        assert offsets(lake) == ALL, moment
        checked = check(lake, "t")
        assert (checked.problems, checked.counts) == ([], Counts(10, 3)), moment
    assert moment > 60


def test_merge_survives_kill_at_every_file_system_call(tmp_path: Path) -> None:
    full = tmp_path / "full"
    write_all(full, repeated=False)
    for moment in deaths():
        lake = tmp_path / str(moment)
        shutil.copytree(full, lake)
        with pytest.MonkeyPatch.context() as monkeypatch:
            Death(monkeypatch, moment)
            try:
                Merges(lake, "t").run()
                break
            except Killed:
                pass
        assert offsets(lake) == ALL, moment
        Merges(lake, "t").run()
        checked = check(lake, "t")
        assert (checked.problems, checked.counts) == ([], Counts(10, 3)), moment
        assert len(reading.files(lake, "t")) == 3
    assert moment > 10


def test_committed_batch_is_not_written_again(tmp_path: Path) -> None:
    commits = Commits(tmp_path, "t")
    assert commits.begin(0, "c")
    stage(commits, {0: [0, 1]}, [])
    commits.commit(0, "c")
    assert not commits.begin(0, "c")


def write_plan(checkpoint: Path, batch: int, end: int, planned_ms: int) -> None:
    """Write the end offset of a batch as Spark does."""
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (checkpoint / "metadata").write_text('{"id":"c"}')
    lines = ["v1", json.dumps({"batchTimestampMs": planned_ms}), json.dumps({"t": {"0": end}})]
    (checkpoint / "offsets" / str(batch)).write_text("\n".join(lines))


@pytest.mark.parametrize("end", [2, 9])
def test_batch_planned_again_with_other_offsets_is_rejected(end: int, tmp_path: Path) -> None:
    """Skipping the batch would lose the records up to the new end."""
    checkpoint = tmp_path / "checkpoint"
    write_plan(checkpoint, 0, 2, 1_000)
    commits = Commits(tmp_path, "t")
    offsets = planned_offsets(checkpoint, 0)
    assert commits.begin(0, "c", offsets)
    stage(commits, {0: [0, 1]}, [])
    commits.commit(0, "c", offsets)
    write_plan(checkpoint, 0, end, 2_000)
    again = Commits(tmp_path, "t")
    if end == 2:
        assert not again.begin(0, "c", planned_offsets(checkpoint, 0))
    else:
        with pytest.raises(LakeError, match="so it is older than the lake"):
            again.begin(0, "c", planned_offsets(checkpoint, 0))


def test_batch_in_journal_without_offsets_is_skipped(tmp_path: Path) -> None:
    """Earlier versions of kbroker wrote no offsets."""
    write_all(tmp_path, repeated=False)
    path = tmp_path / "_kbroker" / "t" / JOURNAL
    journal = json.loads(path.read_text())
    del journal["offsets"]
    path.write_text(json.dumps(journal))
    assert not Commits(tmp_path, "t").begin(2, "c", '{"t": {"0": 9}}')


def test_planned_offsets_are_synced_before_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(commits_module, "sync", synced.append)
    write_plan(tmp_path, 7, 2, 1_000)
    assert json.loads(planned_offsets(tmp_path, 7)) == {"t": {"0": 2}}
    offsets = tmp_path / "offsets"
    assert synced == [tmp_path / "metadata", offsets / "7", offsets, tmp_path]


def test_other_checkpoint_is_rejected(tmp_path: Path) -> None:
    write_all(tmp_path, repeated=False)
    with pytest.raises(LakeError, match="from another checkpoint"):
        Commits(tmp_path, "t").begin(3, "other")
    with pytest.raises(LakeError, match="which is at batch 1: restore the old checkpoint"):
        Commits(tmp_path, "t").begin(1, "c")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("remove", "the files have 8 records and 3 unreadable ones, but 10 and 3 were written"),
        ("tear", "cannot be read"),
        ("copy", "3 offsets occur more than once, the first is 0"),
        ("rename", "contains the offsets 0 to 4"),
        ("move", "has records of another hour"),
    ],
)
def test_check_finds_damaged_lake(tmp_path: Path, damage: str, message: str) -> None:
    write_all(tmp_path, repeated=False)
    hour0 = tmp_path / "t" / "record_date=2026-03-01" / "record_hour=00"
    file = hour0 / layout.file_name(0, 0, 4)
    if damage == "remove":
        (hour0.parent / "record_hour=01" / layout.file_name(0, 2, 3)).unlink()
    elif damage == "tear":
        os.truncate(file, file.stat().st_size // 2)
    elif damage == "copy":
        shutil.copy(file, hour0 / layout.file_name(0, 0, 5))
    elif damage == "rename":
        file.rename(hour0 / layout.file_name(0, 0, 5))
    else:
        (hour0.parent / "record_hour=07").mkdir()
        file.rename(hour0.parent / "record_hour=07" / file.name)
    assert any(message in problem for problem in check(tmp_path, "t").problems)


@pytest.mark.parametrize("journal", ["journal.json", "merge.json"])
@pytest.mark.parametrize("way", ["absolute", "upwards", "link"])
def test_journal_with_path_outside_lake_is_rejected(tmp_path: Path, journal: str, way: str) -> None:
    """The rejected journal moves and removes no file."""
    lake, outside = tmp_path / "lake", tmp_path / "outside"
    write_all(lake, repeated=False)
    outside.mkdir()
    (outside / "secret").write_text("kept")
    (lake / "link").symlink_to(outside)
    bad = {
        "absolute": str(outside / "secret"),
        "upwards": "../outside/secret",
        "link": "link/secret",
    }[way]
    good = str(reading.files(lake, "t")[0].path.relative_to(lake))
    for source, target in ((bad, "t/x"), (good, bad)):
        content: dict[str, Any] = {"from": source, "to": target, "replaces": [bad]}
        if journal == "journal.json":
            content = {"batch": 9, "checkpoint": "c", "moves": [[source, target]], "totals": {}}
        (lake / layout.PRIVATE / "t" / journal).write_text(json.dumps(content))
        before = sorted(lake.rglob("*"))
        with pytest.raises(LakeError, match="is not below"):
            (Commits if journal == "journal.json" else Merges)(lake, "t")
        assert sorted(lake.rglob("*")) == before
        assert (outside / "secret").read_text() == "kept"
