"""Small files of an hour become one.

    1  the rows of neighbours are written to one new file, and that is forced to disk
    2  merge.json says which files it replaces                 from here on the merge is decided
    3  they are removed, then the new one is moved into place
    4  merge.json is removed

Killed before 2, nothing has happened; after it, the next start finishes. Nobody ever reads a record
twice; whoever reads between the two halves of 3 finds the records missing, for as long as some
removals take. So read a lake again when a file was gone, and merge hours that are over.
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
    LakeError,
    make_durable_directory,
    offsets_of,
    path_in_lake,
    sync,
    write_durably,
)
from .layout import PRIVATE, LakeFile, data_files, file_name

MERGE = "merge.json"
TARGET_BYTES = 128 * 1024 * 1024
_ROW_GROUP_ROWS = 100_000


class Merges:
    """The merges of one topic. Whoever has it holds the topic's lock."""

    def __init__(self, lake: Path, topic: str) -> None:
        """Finishes a merge that an earlier process left half done."""
        self._lake, self._topic = lake, topic
        self._directory = lake / PRIVATE / topic
        self._finish()
        shutil.rmtree(self._merging, ignore_errors=True)

    def run(self, files_min: int = 2, target_bytes: int = TARGET_BYTES) -> tuple[int, int]:
        """Merge neighbours of less than `target_bytes` where there are `files_min` of them or more.

        Returns how many files became how many.

        Raises:
            LakeError: what was written is not what was read; nothing has been changed.
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
            raise LakeError(f"{new} does not hold what it was made of; the files are as they were")
        for path in (new, new.parent):
            sync(path)
        replaced = [str(file.path.relative_to(self._lake)) for file in group]
        said = {"from": str(new.relative_to(self._lake)), "replaces": replaced}
        said |= {"to": str(place.relative_to(self._lake))}
        write_durably(self._directory / MERGE, json.dumps(said))
        self._finish()

    def _write(self, group: list[LakeFile], new: Path) -> int:
        """Write the rows of all into one file; returns how many they must be."""
        new.parent.mkdir(parents=True, exist_ok=True)
        schema = reading.common_schema(group)
        with pq.ParquetWriter(new, schema) as writer:
            for batch in reading.merged(group, schema, _ROW_GROUP_ROWS):
                writer.write_batch(batch)
        return sum(offsets_of(file.path)[2] for file in group)

    def _finish(self) -> None:
        """Do what merge.json says, each step of which may have been done before."""
        journal = self._directory / MERGE
        if not journal.exists():
            return
        said = json.loads(journal.read_text(encoding="utf-8"))
        new, place, *replaced = (
            path_in_lake(self._lake, each, journal)
            for each in (said["from"], said["to"], *said["replaces"])
        )
        make_durable_directory(place.parent)
        if not new.exists() and not place.exists():
            raise LakeError(f"{place} is gone before it was complete in the lake")
        for each in replaced:
            each.unlink(missing_ok=True)
        if new.exists():
            os.replace(new, place)
        sync(place.parent)
        journal.unlink()
        sync(journal.parent)


def mergeable(files: list[LakeFile], files_min: int, target_bytes: int) -> Iterator[list[LakeFile]]:
    """Neighbours of one hour and partition that together stay below the target, or just pass it."""

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
