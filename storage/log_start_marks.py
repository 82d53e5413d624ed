"""Evidence that records were deleted on purpose, for a disk that is too full for a checkpoint."""

from __future__ import annotations

from .files import Files
from .naming import LOG_START, file_name


class LogStartMark:
    """An empty file whose name is a log start offset.

    A full disk refuses the checkpoint of log starts, and only the removal of segments frees space.
    The mark is there before they are removed: it takes no block of the disk. After a crash it tells
    segments that were deleted from segments that were lost. It goes with the next checkpoint.

    Args:
        files: The disk.
        directory: Path of the partition's directory.
        offset: The log start offset.
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
