"""The partition directories of one log directory: their names and identities."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import NamedTuple
from uuid import UUID

from .checkpoints import Partition, PartitionMetadata, encode_id
from .errors import ForeignLogError, StorageError, WriteRefusedError
from .files import Files
from .naming import (
    LOG,
    PARTITION_METADATA,
    deleted_directory_name,
    directory_name,
    file_name,
    parse_future_directory_name,
    segments_from,
    stray_directory_name,
)

logger = logging.getLogger(__name__)


class FutureDirectory(NamedTuple):
    """The directory of a future replica that was found at the start: its partition and name."""

    key: Partition
    topic_id: UUID
    name: str


class PartitionDirectories:
    """Finds and checks partition directories. It does not know which logs are open.

    Args:
        files: File system of the directory.
        data_dir: Path of the log directory.
    """

    def __init__(self, files: Files, data_dir: str) -> None:
        self._files = files
        self._data_dir = data_dir

    def path(self, key: Partition) -> str:
        """Return the path of a partition's directory."""
        return f"{self._data_dir}/{directory_name(*key)}"

    def is_directory(self, key: Partition) -> bool:
        """Return True if the path of a partition is a directory, False if it is a file."""
        return self._files.is_directory(self.path(key))

    def size(self, key: Partition) -> int:
        """Return the bytes of a partition's records. Raises StorageError."""
        directory = self.path(key)
        names = [name for name in self._files.listdir(directory) if name.endswith(LOG)]
        return sum(self._files.size(f"{directory}/{name}") for name in names)

    def futures(self) -> list[FutureDirectory]:
        """Return the future replicas in the log directory."""
        names = self._files.listdir(self._data_dir)
        found = [(parse_future_directory_name(name), name) for name in names]
        return [
            FutureDirectory((it[0], it[1]), it[2], name) for it, name in found if it is not None
        ]

    def prepare_deleted_path(self, key: Partition, topic_id: UUID) -> str:
        """Return the path for a deleted partition's directory, after removing any old directory."""
        directory = f"{self._data_dir}/{deleted_directory_name(*key, topic_id)}"
        self._files.rmtree(directory)
        return directory

    def unused_stray_path(self, key: Partition, topic_id: UUID) -> str:
        """Return an unused path for a stray directory."""
        names = (stray_directory_name(*key, topic_id, number) for number in count())
        directories = (f"{self._data_dir}/{name}" for name in names)
        return next(directory for directory in directories if not self._files.exists(directory))

    def read_identity(self, key: Partition) -> PartitionMetadata | None:
        """Return the identity that a directory holds, or None if the file is missing or damaged."""
        try:
            data = self._files.read_bytes(f"{self.path(key)}/{PARTITION_METADATA}")
        except FileNotFoundError:
            return None
        return PartitionMetadata.from_bytes(data)

    def check_identity(self, key: Partition, topic_id: UUID, *, was_used: bool) -> None:
        """Check that a directory holds the partition that is opened.

        If the identity file is missing or incomplete, it is written, unless the disk is full.

        Args:
            key: The partition.
            topic_id: ID of its topic.
            was_used: True if records of the partition were synced before, so that the identity file
                should exist.

        Raises:
            ForeignLogError: The directory holds another partition.
            StorageError: The directory cannot be read, or the identity file cannot be written for
                another reason than a full disk.
        """
        directory, held = self.path(key), self.read_identity(key)
        if held is not None and not held.belongs_to(topic_id, key[1]):
            number = "" if held.partition is None else f", partition {held.partition}"
            raise ForeignLogError(
                f"{directory}: holds topic ID {encode_id(held.topic_id)}{number}, but the metadata "
                f"has topic ID {encode_id(topic_id)}, partition {key[1]}",
                directory=directory,
                topic_id=held.topic_id,
                partition=held.partition,
            )
        if (held is None or held.partition is None) and self._files.is_directory(directory):
            if held is None and was_used:
                logger.warning(
                    "%s/%s is missing or damaged: using the directory for topic ID %s, partition %d, "
                    "based on its name",
                    directory,
                    PARTITION_METADATA,
                    encode_id(topic_id),
                    key[1],
                )
            data = PartitionMetadata(topic_id, key[1]).to_bytes()
            with suppress(WriteRefusedError):  # on a full disk the directory stays as it is
                self._files.write_atomic(f"{directory}/{PARTITION_METADATA}", data)

    def sync(self, key: Partition, offset: int, failed: Callable[[str], None]) -> None:
        """Sync the files of a directory from an offset on, and their names.

        An unreadable directory is skipped: opening its log reports the error.

        Args:
            key: The partition.
            offset: First offset that may not be durable.
            failed: Called with the reason if records were not synced.

        Raises:
            StorageError: A file was not synced.
        """
        directory = self.path(key)
        try:
            bases = segments_from(self._files.listdir(directory), offset)
        except StorageError:
            return
        with suppress(FileNotFoundError):  # deleted in the meantime
            for base in bases:
                try:
                    file = self._files.open(f"{directory}/{file_name(base, LOG)}")
                except StorageError:
                    return
                try:
                    file.sync()
                except StorageError as error:
                    # Another sync would not report the failed writes again.
                    failed(str(error))
                    raise
                finally:
                    file.close()
            self._files.sync_dir(directory)
