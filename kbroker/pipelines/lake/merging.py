"""Merging of an hour's small files into larger ones.

    1  the rows of adjacent files are written to one new file, which is synced to disk
    2  merge.json lists the files that it replaces          from here on the merge is committed
    3  these files are deleted, then the new file is moved into place
    4  merge.json is deleted

If the process is killed before step 2, nothing has changed. After step 2, the next start completes
the merge. No reader ever sees a record twice. A reader between the two halves of step 3 misses the
records for a short time, except for readers that use `listing`. Other readers should read the lake
again if a file was missing.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pyarrow.parquet as pq

from . import reading
from .commits import (
    MERGE,
    LakeError,
    make_durable_directory,
    offsets_of,
    path_in_lake,
    sync,
    write_durably,
)
from .layout import PRIVATE, LakeFile, data_files, file_name

# Target size of a merged file, in bytes.
TARGET_BYTES = 128 * 1024 * 1024
_ROW_GROUP_ROWS = 100_000


class Merges:
    """Merger of one topic's files. The caller must hold the topic's lock."""

    def __init__(self, lake: Path, topic: str) -> None:
        """Complete a merge that an earlier process did not finish."""
        self._lake, self._topic = lake, topic
        self._directory = lake / PRIVATE / topic
        self._finish()
        shutil.rmtree(self._merging, ignore_errors=True)

    def run(self, files_min: int = 2, target_bytes: int = TARGET_BYTES) -> tuple[int, int]:
        """Merge adjacent files.

        Args:
            files_min: Minimum number of files to merge into one.
            target_bytes: Files of this size or more are not merged.

        Returns:
            The number of files before and after.

        Raises:
            LakeError: The merged file does not contain the rows of its sources; nothing was
                changed.
        """
        before = after = 0
        for group in mergeable(data_files(self._lake, self._topic), files_min, target_bytes):
            self._merge(group)
            before, after = before + len(group), after + 1
        return before, after

    @property
    def _merging(self) -> Path:
        return self._directory / "merging"

    def _merge(self, group: list[LakeFile]) -> None:
        name = file_name(group[0].partition, group[0].first, group[-1].last)
        new, place = self._merging / name, group[0].path.parent / name
        rows = self._write(group, new)
        if offsets_of(new) != (group[0].first, group[-1].last, rows):
            raise LakeError(
                f"merged file {new} does not contain the rows of its source files; nothing was changed"
            )
        for path in (new, new.parent):
            sync(path)
        replaced = [str(file.path.relative_to(self._lake)) for file in group]
        plan = {"from": str(new.relative_to(self._lake)), "replaces": replaced}
        plan |= {"to": str(place.relative_to(self._lake))}
        write_durably(self._directory / MERGE, json.dumps(plan))
        self._finish()

    def _write(self, group: list[LakeFile], new: Path) -> int:
        """Write the rows of all files into one, and return their expected number."""
        new.parent.mkdir(parents=True, exist_ok=True)
        schema = reading.common_schema(group)
        with pq.ParquetWriter(new, schema) as writer:
            for batch in reading.merged(group, schema, _ROW_GROUP_ROWS):
                writer.write_batch(batch)
        return sum(offsets_of(file.path)[2] for file in group)

    def _finish(self) -> None:
        """Carry out merge.json; each step is idempotent."""
        journal = self._directory / MERGE
        if not journal.exists():
            return
        plan = json.loads(journal.read_text(encoding="utf-8"))
        new, place, *replaced = (
            path_in_lake(self._lake, each, journal)
            for each in (plan["from"], plan["to"], *plan["replaces"])
        )
        make_durable_directory(place.parent)
        if not new.exists() and not place.exists():
            raise LakeError(f"merged file {place} was deleted before the merge was complete")
        for each in replaced:
            each.unlink(missing_ok=True)
        if new.exists():
            os.replace(new, place)
        sync(place.parent)
        journal.unlink()
        sync(journal.parent)


def mergeable(files: list[LakeFile], files_min: int, target_bytes: int) -> Iterator[list[LakeFile]]:
    """Yield groups of adjacent files of one hour and partition, up to the target size."""

    def place(file: LakeFile) -> tuple[str, int]:
        return str(file.path.parent), file.partition

    for _, found in groupby(sorted(files, key=lambda each: (*place(each), each.first)), place):
        group: list[LakeFile] = []
        size = 0
        for file in found:
            bytes_ = file.path.stat().st_size
            if size + bytes_ > target_bytes:
                if len(group) >= files_min:
                    yield group
                group, size = [], 0
            if bytes_ < target_bytes:
                group, size = [*group, file], size + bytes_
        if len(group) >= files_min:
            yield group
