"""File and directory names of a data directory, as Kafka gives them.

data/                                       one broker
    meta.properties  .lock  .kafka_cleanshutdown
    .reserve                                room for what wins room back on a full disk
    recovery-point-offset-checkpoint  log-start-offset-checkpoint
    replication-offset-checkpoint  cleaner-offset-checkpoint
    producer-id-checkpoint                  end of the producer ids that this node has reserved
    orders-0/                               partition 0 of topic "orders"
        partition.metadata                  the topic's id
        leader-epoch-checkpoint
        00000000000000000000.log            records from offset 0
        00000000000000000000.index  .timeindex  .txnindex
        00000000000000000042.log            records from offset 42
        00000000000000000042.snapshot       producer state before offset 42
        00000000000000000000.log.cleaned    what compaction is about to put in the place of segments
        00000000000000000000.replaces       which ones, while that is going on
        00000000000000000042.logstart       empty: segments before 42 were deleted on a full disk
    orders-0.4f1c...-delete/                a deleted partition, removed in the background
    orders-0.4f1c...-future/                a copy that will replace the log in another directory
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
    """`file_name(42, LOG)` is `00000000000000000042.log`."""
    return f"{offset:020d}{suffix}"


def parse_file_name(name: str) -> tuple[int, str] | None:
    """The offset and suffix of a numbered file; None for any other name."""
    match = _NUMBERED.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def segments_from(names: Iterable[str], offset: int) -> list[int]:
    """Where the segments begin that hold `offset` and what comes after it, rising."""
    parsed = filter(None, map(parse_file_name, names))
    bases = sorted(base for base, suffix in parsed if suffix == LOG)
    return bases[max(bisect_right(bases, offset) - 1, 0) :]


def directory_name(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def parse_directory_name(name: str) -> tuple[str, int] | None:
    """Topic and partition of a partition's directory; None for deleted ones and foreign directories."""
    match = _DIRECTORY.fullmatch(name)
    return (match[1], int(match[2])) if match else None


def deleted_directory_name(topic: str, partition: int, topic_id: UUID) -> str:
    """The name under which a deleted partition waits for removal.

    Kafka puts a random id in the middle; the topic's own id is as unique, and repeatable. Long
    topic names are cut, because a directory name has at most 255 bytes.
    """
    ending = f"-{partition}.{topic_id.hex}{DELETED_DIRECTORY}"
    return topic[: _DIRECTORY_NAME_MAX - len(ending)] + ending


def is_deleted_directory(name: str) -> bool:
    """Return True for a name that `deleted_directory_name` or Kafka gives, False for any other.

    Other names that end in `-delete` are not this program's: they are neither read nor removed.
    """
    return _DELETED.fullmatch(name) is not None


def stray_directory_name(topic: str, partition: int, topic_id: UUID, number: int) -> str:
    """Return the name under which a partition is kept that the metadata does not know (as Kafka).

    Args:
        topic: Topic name in the directory's present name.
        partition: Partition number in the directory's present name.
        topic_id: Topic id that the directory holds.
        number: Tells apart directories with the same ids; 0 is left out of the name.
    """
    ending = f"-{partition}.{topic_id.hex}{f'.{number}' if number else ''}{STRAY_DIRECTORY}"
    return topic[: _DIRECTORY_NAME_MAX - len(ending)] + ending


def future_directory_name(topic: str, partition: int, topic_id: UUID) -> str:
    """The name of a copy that will replace a partition; with the topic's id, as when deleted.

    Raises StorageError for a topic whose name is too long for that: it cannot be cut, because the
    copy may become the log.
    """
    name = f"{topic}-{partition}.{topic_id.hex}{FUTURE_DIRECTORY}"
    if len(name) > _DIRECTORY_NAME_MAX:
        raise StorageError(f"{topic}-{partition} cannot move: its name is too long for a copy")
    return name


def parse_future_directory_name(name: str) -> tuple[str, int, UUID] | None:
    """Return topic, partition and topic id of the directory of a copy; None for any other name."""
    match = _FUTURE.fullmatch(name)
    return (match[1], int(match[2]), UUID(match[3])) if match else None
