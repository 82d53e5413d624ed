"""File and directory names in a log directory, as in Kafka.

data/                                       log directory of one broker
    meta.properties  .lock  .kafka_cleanshutdown
    .reserve                                reserved space, released when the disk is full
    recovery-point-offset-checkpoint  log-start-offset-checkpoint
    replication-offset-checkpoint  cleaner-offset-checkpoint
    producer-id-checkpoint                  end of the producer IDs that this node has reserved
    orders-0/                               partition 0 of topic "orders"
        partition.metadata                  topic ID
        leader-epoch-checkpoint
        00000000000000000000.log            records from offset 0
        00000000000000000000.index  .timeindex  .txnindex
        00000000000000000042.log            records from offset 42
        00000000000000000042.snapshot       producer state before offset 42
        00000000000000000000.log.cleaned    compacted segment that is not swapped in yet
        00000000000000000000.replaces       segments that the compacted segment replaces
        00000000000000000042.logstart       empty: segments before 42 were deleted on a full disk
    orders-0.4f1c...-delete/                deleted partition, removed in the background
    orders-0.4f1c...-future/                future replica of a log in another directory
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from uuid import UUID

from .errors import StorageError

LOG = ".log"
OFFSET_INDEX = ".index"
TIME_INDEX = ".timeindex"
TXN_INDEX = ".txnindex"
SNAPSHOT = ".snapshot"
CORRUPT = ".corrupt"
REPLACES = ".replaces"
LOG_START = ".logstart"
CLEANED = ".cleaned"
SWAP = ".swap"
DELETED_DIRECTORY = "-delete"
STRAY_DIRECTORY = "-stray"
FUTURE_DIRECTORY = "-future"

META_PROPERTIES = "meta.properties"
LOCK = ".lock"
RESERVE = ".reserve"
PROBE = ".probe"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
PRODUCER_IDS = "producer-id-checkpoint"
PARTITION_METADATA = "partition.metadata"
LEADER_EPOCHS = "leader-epoch-checkpoint"

_DIRECTORY_NAME_MAX = 255
_NUMBERED = re.compile(r"(\d{20})(\.(?:log|index|timeindex|txnindex|snapshot|replaces|logstart))")
_DIRECTORY = re.compile(r"(.+)-(\d+)")
_FUTURE = re.compile(rf"(.+)-(\d+)\.([0-9a-f]{{32}}){FUTURE_DIRECTORY}")
_DELETED = re.compile(rf".+-\d+\.[0-9a-f]{{32}}{DELETED_DIRECTORY}")


def file_name(offset: int, suffix: str) -> str:
    """Return a file name: `file_name(42, LOG)` is `00000000000000000042.log`."""
    return f"{offset:020d}{suffix}"


def parse_file_name(name: str) -> tuple[int, str] | None:
    """Return the offset and suffix of a numbered file, or None for any other name."""
    match = _NUMBERED.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def segments_from(names: Iterable[str], offset: int) -> list[int]:
    """Return the sorted base offsets of the segments that hold `offset` and later records."""
    parsed = filter(None, map(parse_file_name, names))
    bases = sorted(base for base, suffix in parsed if suffix == LOG)
    return bases[max(bisect_right(bases, offset) - 1, 0) :]


def directory_name(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def parse_directory_name(name: str) -> tuple[str, int] | None:
    """Return topic and partition of a partition directory, or None for any other directory."""
    match = _DIRECTORY.fullmatch(name)
    return (match[1], int(match[2])) if match else None


def deleted_directory_name(topic: str, partition: int, topic_id: UUID) -> str:
    """Return the directory name of a deleted partition until its files are removed.

    Kafka adds a random UUID; the topic ID is as unique, and reproducible. Long topic names are
    truncated, because a directory name has at most 255 bytes.
    """
    ending = f"-{partition}.{topic_id.hex}{DELETED_DIRECTORY}"
    return topic[: _DIRECTORY_NAME_MAX - len(ending)] + ending


def is_deleted_directory(name: str) -> bool:
    """Return True for a name from `deleted_directory_name` or from Kafka.

    Other names that end in `-delete` are ignored: this program did not create them.
    """
    return _DELETED.fullmatch(name) is not None


def stray_directory_name(topic: str, partition: int, topic_id: UUID, number: int) -> str:
    """Return the directory name of a stray partition, which is not in the metadata (as in Kafka).

    Args:
        topic: Topic name in the current directory name.
        partition: Partition number in the current directory name.
        topic_id: Topic ID that the directory holds.
        number: Distinguishes directories with the same IDs; 0 is omitted from the name.
    """
    ending = f"-{partition}.{topic_id.hex}{f'.{number}' if number else ''}{STRAY_DIRECTORY}"
    return topic[: _DIRECTORY_NAME_MAX - len(ending)] + ending


def future_directory_name(topic: str, partition: int, topic_id: UUID) -> str:
    """Return the directory name of a future replica, with the topic ID as for a deleted one.

    Raises StorageError if the name is too long. It is not truncated, because the topic name is
    parsed from it.
    """
    name = f"{topic}-{partition}.{topic_id.hex}{FUTURE_DIRECTORY}"
    if len(name) > _DIRECTORY_NAME_MAX:
        raise StorageError(
            f"{topic}-{partition}: cannot move, the topic name is too long for a future replica"
        )
    return name


def parse_future_directory_name(name: str) -> tuple[str, int, UUID] | None:
    """Return topic, partition and topic ID of a future replica, or None for any other name."""
    match = _FUTURE.fullmatch(name)
    return (match[1], int(match[2]), UUID(match[3])) if match else None
