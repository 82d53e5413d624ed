"""Where everything in a lake lies, and what file names say.

    <lake>/<topic>/record_date=2026-03-01/record_hour=07/00002-<first offset>-<last offset>.parquet
    <lake>/_poison/<topic>/00002-<first offset>-<last offset>.parquet
    <lake>/_kbroker/<topic>/    what the archiver keeps for itself

Date and hour are those of the record's timestamp in UTC. Offsets have 20 digits, partitions five or
more. Readers of Parquet directories pass by what begins with an underscore.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PAYLOAD_OF_RAW = "value"
"""The one payload column of the format raw."""
RECORD = "record"
"""The column that tells where a row comes from: topic, partition, offset, timestamp, key, headers."""
DATE, HOUR = "record_date", "record_hour"
"""The directories' columns."""
PRIVATE, POISON = "_kbroker", "_poison"

_FILE = re.compile(r"(\d{5,10})-(\d{20})-(\d{20})\.parquet")


@dataclass(frozen=True, order=True)
class LakeFile:
    """One Parquet file: records of one partition of a topic, in the order of their offsets.

    Offsets between `first` and `last` that are not in it are in a file of another hour, or nowhere:
    compacted, control records, poison.
    """

    partition: int
    first: int
    last: int
    path: Path


def file_name(partition: int, first: int, last: int) -> str:
    """The name of the file that holds these offsets."""
    return f"{partition:05}-{first:020}-{last:020}.parquet"


def parsed(path: Path) -> LakeFile | None:
    """What the name of a file says; None when it is none of the archiver's."""
    if found := _FILE.fullmatch(path.name):
        return LakeFile(int(found[1]), int(found[2]), int(found[3]), path)
    return None


def data_files(lake: Path, topic: str) -> list[LakeFile]:
    """The files of a topic, by partition and first offset."""
    return sorted(_files_of(lake / topic, f"{DATE}=*/{HOUR}=*/*.parquet"))


def poison_files(lake: Path, topic: str) -> list[LakeFile]:
    """The files with those of its records that could not be read."""
    return sorted(_files_of(lake / POISON / topic, "*.parquet"))


def topics(lake: Path) -> list[str]:
    """The topics that have files or an archiver's state in a lake."""
    directories = [*lake.glob("*"), *(lake / PRIVATE).glob("*"), *(lake / POISON).glob("*")]
    named = {directory.name for directory in directories if directory.is_dir()}
    return sorted(named - {PRIVATE, POISON})


def _files_of(directory: Path, pattern: str) -> Iterator[LakeFile]:
    for path in directory.glob(pattern):
        if found := parsed(path):
            yield found
