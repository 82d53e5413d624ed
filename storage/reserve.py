"""Reserved disk space, which is released to free more space on a full disk.

The space is used for writes that delete data: the checkpoint of a higher log start offset, and
the metadata of a deleted topic. Client data never uses the reserved space.
"""

from __future__ import annotations

from .errors import WriteRefusedError
from .files import Files

# Maximum size of the reserve in bytes.
RESERVE_BYTES_MAX = 4 * 1024 * 1024
# On a small disk the reserve is 1/32 of it.
SHARE_OF_DISK = 32


class Reserve:
    """A file that only occupies space.

    The file is created only if twice its size is free, so that the disk is not full again at once.
    """

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path

    def create(self) -> None:
        """Create the file if it does not exist.

        Raises StorageError if there is not enough space or the write fails.
        """
        directory = self._path.rpartition("/")[0]
        total, free = self._files.usage(directory)
        size = min(RESERVE_BYTES_MAX, total // SHARE_OF_DISK)
        exists = self._files.exists(self._path)
        if free < (size if exists else 2 * size):
            raise WriteRefusedError(
                f"the disk of {directory} is full: {free} bytes of {total} are free"
            )
        if not exists:
            self._files.allocate(self._path, size)

    def release(self) -> bool:
        """Remove the file; return True if it existed. Raises StorageError."""
        exists = self._files.exists(self._path)
        self._files.remove(self._path)
        return exists
