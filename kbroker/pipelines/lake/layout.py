"""Paths and file names in a lake.

    <lake>/<topic>/record_date=2026-03-01/record_hour=07/00002-<first offset>-<last offset>.parquet
    <lake>/_poison/<topic>/00002-<first offset>-<last offset>.parquet
    <lake>/_kbroker/<topic>/    state of the archiver

Date and hour are those of the record's timestamp in UTC. Offsets have 20 digits, partitions at
least five. Readers of Parquet directories skip names that start with an underscore.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Name of the only payload column of the format raw.
PAYLOAD_OF_RAW = "value"
# Name of the column with the origin of a row: topic, partition, offset, timestamp, key, headers.
RECORD = "record"
# Names of the directories' partition columns.
DATE, HOUR = "record_date", "record_hour"
PRIVATE, POISON = "_kbroker", "_poison"

_FILE = re.compile(r"(\d{5,10})-(\d{20})-(\d{20})\.parquet")


@dataclass(frozen=True, order=True)
class LakeFile:
    """Parquet file with records of one partition, in offset order.

    Offsets between `first` and `last` may be missing. They are in a file of another hour, were
    compacted away, belong to control records, or could not be read.
    """

    partition: int
    first: int
    last: int
    path: Path


def file_name(partition: int, first: int, last: int) -> str:
    """Return the name of the file with these offsets."""
    return f"{partition:05}-{first:020}-{last:020}.parquet"


def parsed(path: Path) -> LakeFile | None:
    """Parse a file name; return None if it is not a file of the archiver."""
    if found := _FILE.fullmatch(path.name):
        return LakeFile(int(found[1]), int(found[2]), int(found[3]), path)
    return None


def data_files(lake: Path, topic: str) -> list[LakeFile]:
    """Return the files of a topic, sorted by partition and first offset."""
    return sorted(_files_of(lake / topic, f"{DATE}=*/{HOUR}=*/*.parquet"))


def poison_files(lake: Path, topic: str) -> list[LakeFile]:
    """Return the files with a topic's unreadable records."""
    return sorted(_files_of(lake / POISON / topic, "*.parquet"))


def topics(lake: Path) -> list[str]:
    """Return the topics with files or archiver state in a lake."""
    directories = [*lake.glob("*"), *(lake / PRIVATE).glob("*"), *(lake / POISON).glob("*")]
    named = {directory.name for directory in directories if directory.is_dir()}
    return sorted(named - {PRIVATE, POISON})


def _files_of(directory: Path, pattern: str) -> Iterator[LakeFile]:
    for path in directory.glob(pattern):
        if found := parsed(path):
            yield found
