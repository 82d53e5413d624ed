"""Room that is kept back on a disk, so that it can be won back when there is none.

What is written then is what takes things away: the checkpoint that names a later log start, and the
metadata that says that a topic is gone. Clients get nothing of the reserve.
"""

from __future__ import annotations

from .errors import WriteRefusedError
from .files import Files

RESERVE_BYTES_MAX = 4 * 1024 * 1024
SHARE_OF_DISK = 32
"""On a small disk the reserve is this part of it."""


class Reserve:
    """A file that is there for the bytes that it takes up.

    It is made only while as much again is free, so that a disk that was full is not full again at
    once.
    """

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path

    def make(self) -> None:
        """Keep room back, if that is not done already.

        Raises StorageError: there is not enough of it, or the system refuses.
        """
        directory = self._path.rpartition("/")[0]
        total, free = self._files.usage(directory)
        size = min(RESERVE_BYTES_MAX, total // SHARE_OF_DISK)
        is_held = self._files.exists(self._path)
        if free < (size if is_held else 2 * size):
            raise WriteRefusedError(
                f"the disk of {directory} is full: {free} bytes of {total} are free"
            )
        if not is_held:
            self._files.allocate(self._path, size)

    def release(self) -> bool:
        """Give the room free; returns whether there was any. Raises StorageError."""
        is_held = self._files.exists(self._path)
        self._files.remove(self._path)
        return is_held
