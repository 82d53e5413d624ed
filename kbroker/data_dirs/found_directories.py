"""Read-only inspection of data directories, so that a rejected start leaves no trace."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from kbroker.cluster.local_store import clean_end_path
from kbroker.storage.checkpoints import MetaProperties, Partition
from kbroker.storage.errors import StorageError
from kbroker.storage.files import Files
from kbroker.storage.manager import check_owner, partitions_among
from kbroker.storage.naming import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARKS,
    LOCK,
    LOG,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    STRAY_DIRECTORY,
    directory_name,
    parse_file_name,
)

METADATA_JOURNAL = "cluster.journal"
JOURNAL_END = clean_end_path(METADATA_JOURNAL)
# File with the newest metadata revision in etcd that the node has seen.
SEEN_REVISION = "metadata.revision"
# Name of the journal during its migration to another store.
LEAVING_JOURNAL = METADATA_JOURNAL + ".leaving"
NODE_DIRECTORY = re.compile(r"node-(\d+)")
# Files other than `meta.properties` that a node leaves in a used directory.
NODE_FILES = frozenset({RECOVERY_POINTS, HIGH_WATERMARKS, CLEAN_SHUTDOWN})
# Files that a new directory may contain: leftovers of an interrupted start and of a file system.
IGNORED = frozenset(
    {
        LOCK,
        f"{META_PROPERTIES}.tmp",
        SEEN_REVISION,
        f"{SEEN_REVISION}.tmp",
        "lost+found",
    }
)


class FoundDirectory(NamedTuple):
    """A data directory that was used before."""

    data_dir: str
    meta: MetaProperties
    partitions: Sequence[Partition]

    def directories(self) -> list[Partition]:
        """Return the partitions; see `LogManager.directories`."""
        return [*self.partitions]


def found_directory(files: Files, data_dir: str, node_id: int) -> FoundDirectory | None:
    """Return the data directory of a node, or None if it is new.

    Raises:
        StorageError: The directory belongs to another node or is not a data directory.
    """
    check_is_ours(files, data_dir)
    path = f"{data_dir}/{META_PROPERTIES}"
    if not files.exists(path):
        return None
    meta = MetaProperties.from_bytes(files.read_bytes(path), path)
    check_owner(data_dir, meta, node_id)
    return FoundDirectory(data_dir, meta, list(partitions_among(files.listdir(data_dir))))


def stray_directories(files: Files, path: str) -> list[str]:
    """Return the names of the stray directories in a data directory."""
    return [
        name
        for name in files.listdir(path)
        if name.endswith(STRAY_DIRECTORY) and files.is_directory(f"{path}/{name}")
    ]


def directories_with_records(files: Files, path: str) -> list[str]:
    """Return the names of partitions and stray directories in a data directory."""
    directories = [directory_name(*key) for key in partitions_among(files.listdir(path))]
    return [
        *(name for name in directories if files.is_directory(f"{path}/{name}")),
        *stray_directories(files, path),
    ]


def check_is_ours(files: Files, path: str) -> None:
    """Raise StorageError for a directory with contents of neither kbroker nor Apache Kafka.

    A subdirectory with the name of a partition is not sufficient, because many names end in a number.
    """
    if not _is_new(files, path) and not _is_in_use(files, path):
        names = [each for each in files.listdir(path) if each not in IGNORED]
        raise StorageError(
            f"{path} is not a data directory: it contains {names[0]!r}, but no files of kbroker; set "
            "--data-dir to an empty or new directory, or to that of an earlier run"
        )


def _is_new(files: Files, path: str) -> bool:
    return all(
        name in IGNORED or (NODE_DIRECTORY.fullmatch(name) and _is_new(files, f"{path}/{name}"))
        for name in files.listdir(path)
    )


def _is_in_use(files: Files, path: str) -> bool:
    names = files.listdir(path)
    if META_PROPERTIES in names or METADATA_JOURNAL in names:
        return True
    if not NODE_FILES.isdisjoint(names):
        return True
    nodes = [name for name in names if NODE_DIRECTORY.fullmatch(name)]
    if any(files.exists(f"{path}/{name}/{META_PROPERTIES}") for name in nodes):
        return True
    return any(
        _holds_records(files, f"{path}/{directory_name(*key)}") for key in partitions_among(names)
    )


def _holds_records(files: Files, directory: str) -> bool:
    if files.exists(f"{directory}/{PARTITION_METADATA}"):
        return True
    if not files.is_directory(directory):
        return False
    return any(
        (found := parse_file_name(name)) and found[1] == LOG for name in files.listdir(directory)
    )
