"""The folders of partitions in one data folder: their names, and the partitions that they hold."""

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
    deleted_folder_name,
    file_name,
    folder_name,
    parse_future_folder_name,
    segments_from,
    stray_folder_name,
)

logger = logging.getLogger(__name__)


class Future(NamedTuple):
    """The folder of a copy that was found at start: of which partition it is, and its name."""

    key: Partition
    topic_id: UUID
    name: str


class PartitionFolders:
    """Finds and checks the folders of partitions. It does not know which logs are open.

    Args:
        files: The file system.
        data_dir: Path of the data folder.
    """

    def __init__(self, files: Files, data_dir: str) -> None:
        self._files = files
        self._data_dir = data_dir

    def path(self, key: Partition) -> str:
        """Return the path of a partition's folder."""
        return f"{self._data_dir}/{folder_name(*key)}"

    def is_folder(self, key: Partition) -> bool:
        """Return True if what has the name of a partition is a directory, False for a file."""
        return self._files.is_folder(self.path(key))

    def size(self, key: Partition) -> int:
        """Return the bytes of a partition's records. Raises StorageError."""
        folder = self.path(key)
        names = [name for name in self._files.listdir(folder) if name.endswith(LOG)]
        return sum(self._files.size(f"{folder}/{name}") for name in names)

    def futures(self) -> list[Future]:
        """Return the copies that lie in the data folder."""
        names = self._files.listdir(self._data_dir)
        found = [(parse_future_folder_name(name), name) for name in names]
        return [Future((it[0], it[1]), it[2], name) for it, name in found if it is not None]

    def free_deleted(self, key: Partition, topic_id: UUID) -> str:
        """Return the path for the folder of a deleted partition; removes what has it."""
        folder = f"{self._data_dir}/{deleted_folder_name(*key, topic_id)}"
        self._files.rmtree(folder)
        return folder

    def free_stray(self, key: Partition, topic_id: UUID) -> str:
        """Return a path that is free, for a folder that is set aside."""
        names = (stray_folder_name(*key, topic_id, number) for number in count())
        folders = (f"{self._data_dir}/{name}" for name in names)
        return next(folder for folder in folders if not self._files.exists(folder))

    def held(self, key: Partition) -> PartitionMetadata | None:
        """Return which partition a folder holds; None if the file is missing or damaged."""
        try:
            data = self._files.read_bytes(f"{self.path(key)}/{PARTITION_METADATA}")
        except FileNotFoundError:
            return None
        return PartitionMetadata.from_bytes(data)

    def check_held(self, key: Partition, topic_id: UUID, *, was_used: bool) -> None:
        """Check that a folder holds the partition that it is opened for.

        A folder that does not say what it holds gets a file that does, if the disk takes it.

        Args:
            key: The partition.
            topic_id: ID of its topic.
            was_used: Records of the partition were made durable before, so the folder should say
                what it holds.

        Raises:
            ForeignLogError: The folder holds another partition.
            StorageError: The folder cannot be read, or written although the disk takes bytes.
        """
        folder, held = self.path(key), self.held(key)
        if held is not None and not held.is_of(topic_id, key[1]):
            number = "" if held.partition is None else f", partition {held.partition}"
            raise ForeignLogError(
                f"{folder} holds topic id {encode_id(held.topic_id)}{number}, not topic id "
                f"{encode_id(topic_id)}, partition {key[1]}, as the metadata says",
                folder=folder,
                topic_id=held.topic_id,
                partition=held.partition,
            )
        if (held is None or held.partition is None) and self._files.is_folder(folder):
            if held is None and was_used:
                logger.warning(
                    "%s/%s is missing or damaged: the folder is taken for topic id %s, partition %d, "
                    "because of its name",
                    folder,
                    PARTITION_METADATA,
                    encode_id(topic_id),
                    key[1],
                )
            data = PartitionMetadata(topic_id, key[1]).to_bytes()
            with suppress(WriteRefusedError):  # on a full disk the folder stays as it is
                self._files.write_atomic(f"{folder}/{PARTITION_METADATA}", data)

    def sync(self, key: Partition, offset: int, failed: Callable[[str], None]) -> None:
        """Make durable what a folder holds from an offset on, and its names.

        A folder that cannot be read is left out: opening its log reports that.

        Args:
            key: The partition.
            offset: First offset that may not be durable.
            failed: Called with the reason if records were not synced.

        Raises:
            StorageError: A file was not synced.
        """
        folder = self.path(key)
        try:
            bases = segments_from(self._files.listdir(folder), offset)
        except StorageError:
            return
        with suppress(FileNotFoundError):  # it may have been deleted since
            for base in bases:
                try:
                    file = self._files.open(f"{folder}/{file_name(base, LOG)}")
                except StorageError:
                    return
                try:
                    file.sync()
                except StorageError as error:
                    # Another sync would not tell of what this one could not write.
                    failed(str(error))
                    raise
                finally:
                    file.close()
            self._files.sync_dir(folder)
