"""Storage of a broker under test: in memory, on a disk that can fail, or in real directories.

Each store can be copied while the broker runs. A copy in memory shares the bytes. A copy of real
directories links the files of closed segments. The cost of both does not depend on the amount of
data. A disk that can fail is copied completely.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from kbroker.broker import MEMORY_DIRECTORY
from kbroker.runtime.threads import at_once
from kbroker.storage.directories import LogDirectories
from kbroker.storage.files import Files, MemFiles, OsFiles
from kbroker.storage.marks import close_active_segment, complete_copy
from kbroker.storage.naming import (
    CLEANED,
    DELETED_DIRECTORY,
    FUTURE_DIRECTORY,
    LOCK,
    LOG,
    OFFSET_INDEX,
    TIME_INDEX,
)

from .disk import DIRECTORY, Disk

# Bytes of a file that are read and written at a time in a copy.
COPIED_BYTES = 16 * 1024 * 1024
# Suffixes of the files of closed segments that several brokers may share.
UNCHANGING = (LOG,)
# Suffixes of the files that a read-only copy may share. Compaction overwrites the indexes of the
# segments that it replaces. The broker rebuilds an index that does not match its segment.
READ_ONLY = (*UNCHANGING, OFFSET_INDEX, TIME_INDEX)
# Suffixes of files that a broker has not finished writing or deleting; copies leave them out.
UNFINISHED = (".tmp", CLEANED, DELETED_DIRECTORY, FUTURE_DIRECTORY)


class Store(Protocol):
    """The data directories of one broker, and the files in them."""

    @property
    def files(self) -> Files:
        """File system of the directories."""

    @property
    def directories(self) -> Sequence[str]: ...

    @property
    def data_dirs(self) -> Sequence[str] | None:
        """Argument of `open_broker`; None to keep the data in memory."""

    def copy(self, logs: LogDirectories) -> Store:
        """Return a copy of the current data, in the state after a clean stop.

        No checkpoint may be written during the copy.

        Args:
            logs: Open logs of the running broker.
        """

    def new_empty(self) -> Store:
        """Return a new, empty store of the same type, for another broker."""

    def replace_data(self, other: Store) -> None:
        """Replace the data by a copy of the data of another store.

        Raises:
            ValueError: The other store has another number of directories.
        """

    def release(self) -> None:
        """Release the data: the broker will not start again."""


class MemoryStore:
    """Data in memory.

    Args:
        limit: Maximum bytes of data.
    """

    directories = (MEMORY_DIRECTORY,)
    data_dirs = None

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.files = MemFiles(limit=limit)

    def copy(self, logs: LogDirectories) -> MemoryStore:
        other = MemoryStore(self._limit)
        other.files = self.files.fork()
        _complete_copy(other.files, other, logs)
        return other

    def new_empty(self) -> MemoryStore:
        return MemoryStore(self._limit)

    def replace_data(self, other: Store) -> None:
        check_directories(other, self)
        if isinstance(other, MemoryStore):
            self.files = other.files.fork()
            self.files.limit = self._limit
        else:
            self.files = MemFiles(limit=self._limit)
            copy_directories(other, self)

    def release(self) -> None:
        pass


class BreakableStore:
    """Data on a disk that can fail. The cost of a copy is proportional to the amount of data."""

    directories = (f"/{DIRECTORY}",)
    data_dirs = directories

    def __init__(self) -> None:
        self.disk = Disk()

    @property
    def files(self) -> Files:
        return self.disk

    def copy(self, logs: LogDirectories) -> BreakableStore:
        other = BreakableStore()
        other.disk = self.disk.fork()
        _complete_copy(other.disk, other, logs)
        return other

    def new_empty(self) -> BreakableStore:
        return BreakableStore()

    def replace_data(self, other: Store) -> None:
        check_directories(other, self)
        if isinstance(other, BreakableStore):
            self.disk = other.disk.fork()
        else:
            self.disk = Disk()
            copy_directories(other, self)
            self.disk = self.disk.fork()  # makes the initial data durable

    def release(self) -> None:
        pass


def has_crashed(store: Store) -> bool:
    """Return True if the power of the disk is cut."""
    return isinstance(store, BreakableStore) and store.disk.after_cut is not None


class DirectoryStore:
    """Data in directories of the operating system.

    Args:
        directories: Paths of the directories.
        is_temporary: Delete the directories with this object, and let other stores link their
            files.
    """

    def __init__(self, directories: Sequence[str], *, is_temporary: bool = False) -> None:
        self.files: Files = OsFiles(at_once=at_once)
        self.directories = tuple(Path(directory).absolute().as_posix() for directory in directories)
        self._is_temporary = is_temporary
        self._remove = weakref.finalize(self, _remove_all, self.directories if is_temporary else ())

    @property
    def data_dirs(self) -> Sequence[str]:
        return self.directories

    def copy(self, logs: LogDirectories) -> DirectoryStore:
        for log in logs:
            close_active_segment(log)
        other = self.new_empty()
        for directory, theirs in zip(self.directories, other.directories, strict=True):
            _link_directory(directory, theirs, READ_ONLY)
        _complete_copy(_UnsyncedFiles(), other, logs)
        return other

    def new_empty(self) -> DirectoryStore:
        # Use the same parent directories, because links work only within one file system.
        siblings = [_new_sibling(Path(directory)) for directory in self.directories]
        return DirectoryStore(siblings, is_temporary=True)

    def replace_data(self, other: Store) -> None:
        check_directories(other, self)
        for directory in self.directories:
            _empty_directory(directory)
        if isinstance(other, DirectoryStore) and other._is_temporary:
            for theirs, directory in zip(other.directories, self.directories, strict=True):
                _link_directory(theirs, directory, UNCHANGING)
        else:
            copy_directories(other, self)

    def release(self) -> None:
        self._remove()


def new_store(data_dir: str | Sequence[str] | None, *, disk: bool, bytes_max: int) -> Store:
    """Return an empty store.

    Args:
        data_dir: Data directories; None for a store in memory.
        disk: Use a disk in memory that can fail.
        bytes_max: Maximum bytes of a store in memory that cannot fail.

    Raises:
        ValueError: Both a data directory and a disk are given.
    """
    if disk and data_dir:
        raise ValueError(
            "disk=True keeps data in memory, data_dir in a directory; remove one of them"
        )
    if disk:
        return BreakableStore()
    if data_dir:
        return DirectoryStore([data_dir] if isinstance(data_dir, str) else data_dir)
    return MemoryStore(bytes_max)


class _UnsyncedFiles(OsFiles):
    """Files without syncs, for a copy that only this process uses."""

    def write_atomic(self, path: str, data: bytes) -> None:
        Path(path).write_bytes(data)


def _complete_copy(files: Files, copy: Store, logs: LogDirectories) -> None:
    for manager, directory in zip(logs.managers, copy.directories, strict=True):
        complete_copy(files, directory, manager)


def copy_directories(source: Store, target: Store) -> None:
    """Copy all files of a store.

    Raises:
        ValueError: The stores have different numbers of directories.
    """
    check_directories(source, target)
    for directory, to in zip(source.directories, target.directories, strict=True):
        _copy_tree(source.files, directory, target.files, to)


def check_directories(source: Store, target: Store) -> None:
    """Check that two stores have the same number of directories.

    Raises:
        ValueError: The numbers differ.
    """
    if len(source.directories) != len(target.directories):
        raise ValueError(
            f"the data has {len(source.directories)} directories, but this broker has "
            f"{len(target.directories)}; pass as many with data_dir=[...]"
        )


def _copy_tree(source: Files, directory: str, target: Files, to: str) -> None:
    target.mkdir(to)
    for name in source.listdir(directory):
        if source.is_directory(f"{directory}/{name}"):
            _copy_tree(source, f"{directory}/{name}", target, f"{to}/{name}")
        elif name != LOCK:
            _copy_file(source, f"{directory}/{name}", target, f"{to}/{name}")


def _copy_file(source: Files, path: str, target: Files, to: str) -> None:
    reader, writer = source.open(path), target.open(to, create=True)
    for position in range(0, reader.size, COPIED_BYTES):
        writer.append([reader.read(position, COPIED_BYTES)])
    reader.close()
    writer.close()


# -- real directories


def _new_sibling(directory: Path) -> str:
    directory.parent.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{directory.name}.copy-", dir=directory.parent)).as_posix()


def _remove_all(directories: Sequence[str]) -> None:
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


def _empty_directory(directory: str) -> None:
    os.makedirs(directory, exist_ok=True)
    for entry in os.scandir(directory):
        if entry.is_dir():
            shutil.rmtree(entry.path)
        elif entry.name != LOCK:
            os.unlink(entry.path)


def _link_directory(source: str, target: str, shared: tuple[str, ...]) -> None:
    """Copy a data directory; link the files that end in `shared`."""
    for entry in os.scandir(source):
        if entry.name == LOCK or entry.name.endswith(UNFINISHED):
            continue
        if entry.is_dir():
            _link_partition(entry.path, f"{target}/{entry.name}", shared)
        else:
            shutil.copyfile(entry.path, f"{target}/{entry.name}")


def _link_partition(source: str, target: str, shared: tuple[str, ...]) -> None:
    os.mkdir(target)
    names = [name for name in os.listdir(source) if not name.endswith(UNFINISHED)]
    # The active segment still grows, so it is copied.
    active = max((name for name in names if name.endswith(LOG)), default="").removesuffix(LOG)
    for name in names:
        is_closed = not name.startswith(active)
        copy_file = _link if is_closed and name.endswith(shared) else shutil.copyfile
        copy_file(f"{source}/{name}", f"{target}/{name}")


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # the file system has no links, or the file has too many
        shutil.copyfile(source, target)
