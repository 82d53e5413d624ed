"""Marks for deliberately deleted records, if the disk is too full for a checkpoint."""

from __future__ import annotations

from .files import Files
from .naming import LOG_START, file_name


class LogStartMark:
    """An empty file whose name is a log start offset.

    On a full disk the checkpoint of log starts cannot be written, and only deleting segments frees
    space. The mark is created first, because an empty file takes no disk block. After a crash, the
    mark distinguishes deleted segments from lost segments. The next checkpoint removes the mark.

    Args:
        files: File system of the directory.
        directory: Path of the partition directory.
        offset: Log start offset.
    """

    __slots__ = ("_directory", "_files", "offset")

    def __init__(self, files: Files, directory: str, offset: int) -> None:
        self._files = files
        self._directory = directory
        self.offset = offset

    @property
    def path(self) -> str:
        """Path of the file."""
        return f"{self._directory}/{file_name(self.offset, LOG_START)}"

    def create(self) -> None:
        """Create the file, durably. Raises StorageError."""
        self._files.open(self.path, create=True).close()
        self._files.sync_dir(self._directory)

    def remove(self) -> None:
        """Remove the file. Raises StorageError."""
        self._files.remove(self.path)
