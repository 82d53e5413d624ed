"""Work items that make appended bytes and new file names survive a power failure.

The owner of a log (an event loop) collects them; a worker thread runs them, because they block.
They share no state with the owner, except flags. A comment explains their order wherever they are
set.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Protocol

from .files import File, Files


class SyncItem(Protocol):
    """Work that makes data durable."""

    __slots__ = ()

    def sync(self) -> None:
        """Do the work and block until it is durable; thread-safe.

        Raises StorageError.
        """


class DirectorySync:
    """Sync of the names in one directory."""

    __slots__ = ("_files", "_path")

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path

    def sync(self) -> None:
        # If the directory was deleted in the meantime, its names do not matter.
        with suppress(FileNotFoundError):
            self._files.sync_dir(self._path)


class FileSync:
    """Sync of the bytes of a file."""

    __slots__ = ("_files", "_path")

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path

    def sync(self) -> None:
        with suppress(FileNotFoundError):  # deleted in the meantime
            sync_file(self._files, self._path)


class FileWrite:
    """A write of the last bytes of a file, from `position` on. `is_written` is set by `write`."""

    __slots__ = ("_data", "_files", "_path", "_position", "is_written")

    def __init__(self, files: Files, path: str, position: int, data: bytes) -> None:
        self._files = files
        self._path = path
        self._position = position
        self._data = data
        self.is_written = False

    def write(self) -> None:
        """Write the bytes without a sync. Raises StorageError."""
        # If the file is shorter than `position`, a crash truncated it; it is rebuilt when it is
        # read.
        _write(self._files, self._path, self._position, self._data)
        self.is_written = True

    def sync(self) -> None:
        self.write()
        sync_file(self._files, self._path)


class AtomicWrite:
    """An atomic write of a small file: to a temporary file, which is then renamed."""

    __slots__ = ("_data", "_files", "_path")

    def __init__(self, files: Files, path: str, data: bytes) -> None:
        self._files = files
        self._path = path
        self._data = data

    def sync(self) -> None:
        temporary = self._path + ".tmp"
        _write(self._files, temporary, 0, self._data)
        sync_file(self._files, temporary)
        self._files.rename(temporary, self._path)
        self._files.sync_dir(self._path.rpartition("/")[0])


class FileRemoval:
    """Removal of a file that earlier items have replaced."""

    __slots__ = ("_files", "_path")

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path

    def sync(self) -> None:
        self._files.remove(self._path)


class FileClosing:
    """Closing of a file."""

    __slots__ = ("_file",)

    def __init__(self, file: File) -> None:
        self._file = file

    def sync(self) -> None:
        self._file.close()


def _write(files: Files, path: str, position: int, data: bytes) -> None:
    """Write `data` at `position` of a file, and truncate the file after it."""
    file = files.open(path, create=True)
    try:
        if file.size > position:
            file.truncate(position)
        if data:
            file.append([data])
    finally:
        file.close()


def sync_file(files: Files, path: str) -> None:
    """Make the bytes of a file durable. Raises StorageError or FileNotFoundError."""
    file = files.open(path)
    try:
        file.sync()
    finally:
        file.close()


class SegmentFiles(Protocol):
    """Files that a `SegmentRemoval` removes."""

    def remove(self) -> None: ...


class SegmentRemoval:
    """Removal of all files of a segment that earlier items have replaced."""

    __slots__ = ("_segment",)

    def __init__(self, segment: SegmentFiles) -> None:
        self._segment = segment

    def sync(self) -> None:
        self._segment.remove()


class OrderedItems:
    """Items that run in order; each one starts only after the previous one is durable."""

    __slots__ = ("_items",)

    def __init__(self, items: Sequence[SyncItem]) -> None:
        self._items = items

    def sync(self) -> None:
        sync_in_order(self._items)


def write_ahead(items: Iterable[SyncItem]) -> None:
    """Write file contents without syncing them. Raises StorageError."""
    for item in items:
        if isinstance(item, FileWrite) and not item.is_written:
            item.write()


def sync_in_order(items: Iterable[SyncItem]) -> None:
    """Run items in order, for items that depend on each other."""
    for item in items:
        item.sync()


def sync_together(files: Files, items: Sequence[SyncItem]) -> None:
    """Run independent items, several concurrently if that is faster.

    Blocks. Any thread may call it, but only one at a time per log.

    Raises StorageError. It is then unknown which data is durable. A retry is useless: after a
    failed sync the kernel marks the pages as clean.
    """
    files.at_once([item.sync for item in items])
