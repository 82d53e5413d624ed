"""Consistency check of a lake: no record missing, duplicated or corrupt.

The check uses only the files. It cannot detect that a topic had more records; `kbroker audit` can.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .commits import JOURNAL, Commits, Counts, Journal, LakeError, offsets_of
from .layout import DATE, HOUR, PRIVATE, RECORD, LakeFile, data_files, poison_files
from .locking import topic_lock
from .merging import Merges


@dataclass
class Checked:
    """Result of the check of a topic."""

    topic: str
    files: int = 0
    counts: Counts = field(default_factory=Counts)
    problems: list[str] = field(default_factory=list)


def check(lake: Path, topic: str) -> Checked:
    """Read all files of a topic and compare them with each other and with the archiver's counts.

    First, unfinished moves of a killed archiver are completed, as its next start would do.

    Args:
        lake: Directory of the lake.
        topic: Name of the topic.

    Returns:
        The counts and the problems found.

    Raises:
        LakeError: An archiver is running.
    """
    checked = Checked(topic)
    with topic_lock(lake, topic):
        try:
            Commits(lake, topic)
            Merges(lake, topic)
        except LakeError as error:
            checked.problems.append(str(error))
        _check_files(lake, checked)
    return checked


def _check_files(lake: Path, checked: Checked) -> None:
    data, poison = data_files(lake, checked.topic), poison_files(lake, checked.topic)
    checked.files = len(data) + len(poison)
    expected = Journal.read(lake / PRIVATE / checked.topic / JOURNAL).totals

    def partition(file: LakeFile) -> int:
        return file.partition

    found: dict[int, Counts] = {}
    for number, files in groupby(sorted([*data, *poison], key=partition), partition):
        offsets: list[pa.Array] = []
        for file in files:
            ours = list(_offsets(file, checked.problems))
            offsets += ours
            rows = sum(map(len, ours))
            counts = Counts(poison=rows) if file in poison else Counts(records=rows)
            found[number] = found.get(number, Counts()) + counts
        checked.problems += _duplicates(number, offsets)
    for number in sorted(found.keys() | expected.keys()):
        has, had = found.get(number, Counts()), expected.get(number, Counts())
        if has != had:
            checked.problems.append(
                f"partition {number}: the files have {has.records} records and {has.poison} "
                f"unreadable ones, but {had.records} and {had.poison} were written"
            )
        checked.counts += has


def _offsets(file: LakeFile, problems: list[str]) -> Iterator[pa.Array]:
    """Yield the offsets of a file, and append its problems."""
    try:
        first, last, _ = offsets_of(file.path)
        table = pq.ParquetFile(file.path).read(columns=[RECORD])
    except (OSError, pa.ArrowException, LakeError) as error:
        problems.append(f"{file.path} cannot be read: {error}")
        return
    record = table.column(RECORD).combine_chunks()
    offsets = pc.struct_field(record, "offset")
    if (first, last) != (file.first, file.last):
        problems.append(f"{file.path} contains the offsets {first} to {last}")
    if pc.any(pc.not_equal(pc.struct_field(record, "partition"), file.partition)).as_py():
        problems.append(f"{file.path} has records of another partition")
    if not pc.all(pc.greater(offsets[1:], offsets[:-1])).as_py() and len(offsets) > 1:
        problems.append(f"{file.path} is not sorted by offset")
    if file.path.parent.name.startswith(HOUR) and not _is_of_its_hour(file.path, record):
        problems.append(f"{file.path} has records of another hour")
    yield offsets


def _is_of_its_hour(path: Path, record: pa.Array) -> bool:
    hours = pc.strftime(pc.struct_field(record, "timestamp"), f"{DATE}=%Y-%m-%d/{HOUR}=%H").unique()
    return bool(hours.to_pylist() == ["/".join(path.parts[-3:-1])])


def _duplicates(partition: int, offsets: list[pa.Array]) -> Iterator[str]:
    """Yield a problem if offsets occur more than once in the files of a partition."""
    if not offsets:
        return
    counted = pc.value_counts(pa.chunked_array(offsets))
    doubled = counted.filter(pc.greater(counted.field("counts"), 1)).field("values")
    if len(doubled):
        yield (
            f"partition {partition}: {len(doubled)} offsets occur more than once, the first is "
            f"{pc.min(doubled).as_py()}"
        )
