"""Pieces of work that make appended bytes and new names survive a power cut.

The owner of a log (an event loop) collects them; whoever has time to block (a worker thread) runs
them. They touch nothing that the owner changes, apart from flags whose order is explained where
they are set.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Protocol

from .files import File, Files


class SyncItem(Protocol):
    """Something that is not durable yet."""

    __slots__ = ()

    def sync(self) -> None:
        """Do what is left to do, and block until it is durable; any thread may call it.

        Raises StorageError.
        """


class DirectorySync:
    """The names in one directory."""

    __slots__ = ("_files", "_path")

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path

    def sync(self) -> None:
        # A directory may have been deleted since; then its names matter to nobody.
        with suppress(FileNotFoundError):
            self._files.sync_dir(self._path)


class FileSync:
    """Bytes that were written to a file."""

    __slots__ = ("_files", "_path")

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path

    def sync(self) -> None:
        with suppress(FileNotFoundError):  # it may have been deleted since
            sync_file(self._files, self._path)


class FileWrite:
    """Bytes that belong at `position` of a file, and end it. `is_written`: they are there."""

    __slots__ = ("_data", "_files", "_path", "_position", "is_written")

    def __init__(self, files: Files, path: str, position: int, data: bytes) -> None:
        self._files = files
        self._path = path
        self._position = position
        self._data = data
        self.is_written = False

    def write(self) -> None:
        """Put the bytes there, not durably. Raises StorageError."""
        # A file that is too short was cut by a crash; it reads as damaged and is rebuilt.
        _write(self._files, self._path, self._position, self._data)
        self.is_written = True

    def sync(self) -> None:
        self.write()
        sync_file(self._files, self._path)


class AtomicWrite:
    """The whole content of a small file: it is there in a temporary file before it gets its name."""

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


class Removal:
    """A file that what was synced before it has replaced."""

    __slots__ = ("_files", "_path")

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path

    def sync(self) -> None:
        self._files.remove(self._path)


class Closing:
    """A file that is needed no more."""

    __slots__ = ("_file",)

    def __init__(self, file: File) -> None:
        self._file = file

    def sync(self) -> None:
        self._file.close()


def _write(files: Files, path: str, position: int, data: bytes) -> None:
    """Let `data` stand at `position` of a file, and end it."""
    file = files.open(path, create=True)
    try:
        if file.size > position:
            file.truncate(position)
        if data:
            file.append([data])
    finally:
        file.close()


def sync_file(files: Files, path: str) -> None:
    """Make the bytes of a file durable. Raises StorageError, or FileNotFoundError."""
    file = files.open(path)
    try:
        file.sync()
    finally:
        file.close()


class SegmentFiles(Protocol):
    """What a `SegmentRemoval` removes."""

    def remove(self) -> None: ...


class SegmentRemoval:
    """All files of a segment that what was synced before it has replaced."""

    __slots__ = ("_segment",)

    def __init__(self, segment: SegmentFiles) -> None:
        self._segment = segment

    def sync(self) -> None:
        self._segment.remove()


class InOrder:
    """Items of which each may begin only when the one before it is durable."""

    __slots__ = ("_items",)

    def __init__(self, items: Sequence[SyncItem]) -> None:
        self._items = items

    def sync(self) -> None:
        sync_in_order(self._items)


def write_ahead(items: Iterable[SyncItem]) -> None:
    """Write what is to stand in files, without making it durable. Raises StorageError."""
    for item in items:
        if isinstance(item, FileWrite) and not item.is_written:
            item.write()


def sync_in_order(items: Iterable[SyncItem]) -> None:
    """Make items durable one after the other, for items that build on each other."""
    for item in items:
        item.sync()


def sync_together(files: Files, items: Sequence[SyncItem]) -> None:
    """Make items durable that do not build on each other, several at a time where that is faster.

    Blocks; any thread may call it, one at a time per log.

    Raises StorageError. What is durable by then is unknown, and trying again would tell nothing:
    after a failed sync the system forgets which bytes are not on the disk.
    """
    files.at_once([item.sync for item in items])
