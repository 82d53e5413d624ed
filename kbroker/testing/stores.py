"""Where a broker under test keeps its data: in memory, on a disk that breaks, in real directories.

Each kind can be copied while the broker runs, at a cost that does not depend on how much it holds:
in memory both share the bytes, on a real disk the files of closed segments are linked.
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
from kbroker.storage.marks import complete, seal
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

COPIED_BYTES = 16 * 1024 * 1024
"""How much of a file is in memory while it is copied."""
UNCHANGING = (LOG,)
"""Files of closed segments that several brokers may share."""
READ_ONLY = (*UNCHANGING, OFFSET_INDEX, TIME_INDEX)
"""Those that a copy which nobody writes to may share as well. Compaction writes over the indexes of the
segments that it replaces: one that does not fit its segment is not believed, but made anew."""
UNFINISHED = (".tmp", CLEANED, DELETED_DIRECTORY, FUTURE_DIRECTORY)
"""What a broker is about to make or to remove: a copy needs neither."""


class Store(Protocol):
    """The data directories of one broker, and what they are on."""

    @property
    def files(self) -> Files:
        """Where the directories are."""

    @property
    def directories(self) -> Sequence[str]: ...

    @property
    def data_dirs(self) -> Sequence[str] | None:
        """What `open_broker` takes; None lets it keep everything in memory."""

    def copy(self, logs: LogDirectories) -> Store:
        """What is here now, in a place of its own: as if the owner of `logs` had been stopped.

        No checkpoint may run meanwhile.
        """

    def fresh(self) -> Store:
        """An empty one of the same kind, for another broker."""

    def take(self, other: Store) -> None:
        """Hold what `other` does, and nothing else. Raises ValueError: it has more directories."""

    def release(self) -> None:
        """The broker is gone for good."""


class MemoryStore:
    """Data in memory.

    Parameters: `limit` is the most bytes that it holds.
    """

    directories = (MEMORY_DIRECTORY,)
    data_dirs = None

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.files = MemFiles(limit=limit)

    def copy(self, logs: LogDirectories) -> MemoryStore:
        other = MemoryStore(self._limit)
        other.files = self.files.fork()
        _complete(other.files, other, logs)
        return other

    def fresh(self) -> MemoryStore:
        return MemoryStore(self._limit)

    def take(self, other: Store) -> None:
        if isinstance(other, MemoryStore):
            self.files = other.files.fork()
            self.files.limit = self._limit
        else:
            self.files = MemFiles(limit=self._limit)
            copy_directories(other, self)

    def release(self) -> None:
        pass


class BreakableStore:
    """Data on a disk that fails on demand; a copy of it costs as much as it holds."""

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
        _complete(other.disk, other, logs)
        return other

    def fresh(self) -> BreakableStore:
        return BreakableStore()

    def take(self, other: Store) -> None:
        if isinstance(other, BreakableStore):
            self.disk = other.disk.fork()
        else:
            self.disk = Disk()
            copy_directories(other, self)
            self.disk = self.disk.fork()  # what it begins with is durable

    def release(self) -> None:
        pass


def has_crashed(store: Store) -> bool:
    """Whether the power of the disk was cut, and nobody has put it on again."""
    return isinstance(store, BreakableStore) and store.disk.after_cut is not None


class DirectoryStore:
    """Data in directories of the operating system.

    Parameters: `directories` are their paths; `is_temporary` removes them when nobody needs them any
    more, and lets others share their files.
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
            seal(log)
        other = self.fresh()
        for directory, theirs in zip(self.directories, other.directories, strict=True):
            _link_directory(directory, theirs, READ_ONLY)
        _complete(_UnsyncedFiles(), other, logs)
        return other

    def fresh(self) -> DirectoryStore:
        # Beside the directories, because files are linked within one file system only.
        beside = [_beside(Path(directory)) for directory in self.directories]
        return DirectoryStore(beside, is_temporary=True)

    def take(self, other: Store) -> None:
        _check_directories(other, self)
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
        disk: The store is a disk in memory that can fail.
        bytes_max: Maximum bytes of a store in memory that cannot fail.

    Raises:
        ValueError: Both a data directory and a disk are wanted.
    """
    if disk and data_dir:
        raise ValueError("disk=True is a disk in memory, and keeps nothing in a directory")
    if disk:
        return BreakableStore()
    if data_dir:
        return DirectoryStore([data_dir] if isinstance(data_dir, str) else data_dir)
    return MemoryStore(bytes_max)


class _UnsyncedFiles(OsFiles):
    """Files of a copy that lives as long as this process: nothing waits for the disk."""

    def write_atomic(self, path: str, data: bytes) -> None:
        Path(path).write_bytes(data)


def _complete(files: Files, copy: Store, logs: LogDirectories) -> None:
    for manager, directory in zip(logs.managers, copy.directories, strict=True):
        complete(files, directory, manager)


def copy_directories(source: Store, target: Store) -> None:
    """Copy all files. Raises ValueError when one has more directories than the other."""
    _check_directories(source, target)
    for directory, to in zip(source.directories, target.directories, strict=True):
        _copy_tree(source.files, directory, target.files, to)


def _check_directories(source: Store, target: Store) -> None:
    if len(source.directories) != len(target.directories):
        raise ValueError(
            f"the data is in {len(source.directories)} directories, this broker has "
            f"{len(target.directories)}; give it as many with data_dir=[...]"
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


def _beside(directory: Path) -> str:
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
    """Let a data directory hold what another one does, sharing the files that end in `shared`."""
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
    # The last segment is appended to.
    active = max((name for name in names if name.endswith(LOG)), default="").removesuffix(LOG)
    for name in names:
        is_closed = not name.startswith(active)
        place = _link if is_closed and name.endswith(shared) else shutil.copyfile
        place(f"{source}/{name}", f"{target}/{name}")


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links, or one that has too many of this file
        shutil.copyfile(source, target)
