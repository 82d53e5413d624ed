"""Lakes are listed and read completely while an archiver moves or merges files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from kbroker.pipelines.lake import listing, reading
from kbroker.pipelines.lake.commits import Commits, LakeError
from kbroker.pipelines.lake.layout import LakeFile, data_files
from kbroker.pipelines.lake.merging import Merges

from .test_commits import ALL, BATCHES, offsets, stage, write_all

FIRST_BATCH = ALL[:5]


def commit(lake: Path, *numbers: int) -> None:
    for number in numbers:
        commits = Commits(lake, "t")
        assert commits.begin(number, "c")
        stage(commits, *BATCHES[number])
        commits.commit(number, "c")


def merge(lake: Path) -> None:
    assert Merges(lake, "t").run()[0] > 0


def incomplete_once(change: Callable[[], None]) -> Callable[[Path, str], list[LakeFile]]:
    """Return a function whose first listing lacks a file, because of a change during it."""
    calls: list[int] = []

    def found(lake: Path, topic: str) -> list[LakeFile]:
        calls.append(1)
        if len(calls) > 1:
            return data_files(lake, topic)
        before = data_files(lake, topic)
        change()
        return before[:1]

    return found


@pytest.mark.parametrize("is_merge", [False, True])
def test_files_that_change_during_listing_are_listed_again(
    is_merge: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change is finished when the journals are read, so they name no unfinished work."""
    commit(tmp_path, 0)
    if is_merge:
        commit(tmp_path, 1, 2)
    change = merge if is_merge else lambda lake: commit(lake, 1, 2)
    monkeypatch.setattr(listing, "data_files", incomplete_once(lambda: change(tmp_path)))
    assert offsets(tmp_path) == ALL


def test_files_that_never_stay_the_same_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = iter(range(1_000_000))

    def found(lake: Path, topic: str) -> list[LakeFile]:
        return [LakeFile(0, next(numbers), 0, lake)]

    monkeypatch.setattr(listing, "data_files", found)
    monkeypatch.setattr(listing, "_RETRY_SECONDS", 0)
    with pytest.raises(LakeError, match="change while they are listed"):
        reading.files(tmp_path, "t")


def test_read_continues_after_merge_has_deleted_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_all(tmp_path, repeated=False)
    whole = reading.merged

    def merged_with_change(
        found: Sequence[LakeFile], schema: pa.Schema, *more: int
    ) -> Iterator[pa.RecordBatch]:
        for batch in whole(found, schema, *more):
            yield batch
            if not started:
                started.append(1)
                merges.append(Merges(tmp_path, "t").run())

    started: list[int] = []
    merges: list[tuple[int, int]] = []
    monkeypatch.setattr(reading, "merged", merged_with_change)
    assert offsets(tmp_path) == ALL
    assert merges == [(5, 2)]


def test_files_of_later_batches_are_not_read(tmp_path: Path) -> None:
    commit(tmp_path, 0)
    batches = reading.records(tmp_path, "t", 0)
    found = [row["record"]["offset"] for row in next(batches).to_pylist()]
    commit(tmp_path, 1, 2)
    merge(tmp_path)
    found += [row["record"]["offset"] for batch in batches for row in batch.to_pylist()]
    assert found == FIRST_BATCH
