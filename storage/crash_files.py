"""A simulated disk for tests that loses unsynced data on a power failure.

The disk keeps the current and the *stable* (synced) bytes of each file, and likewise the names of
each directory. A power failure restores the stable state, in one of these modes:

* ``drop``: unsynced bytes are lost, all names are kept.
* ``torn``: a random subset of the unsynced 512-byte sectors is kept. A file may have its new
  length, its old length or a length in between, with zeroed holes.
* ``lost-name``: names that were created, renamed or removed since the last directory sync are
  restored; bytes as in ``drop``.
* ``mixed``: a random subset of the names and of the sectors is kept.

A hook is called before each change and each sync. In the hook, a test can simulate a power failure
(`crashed` returns the disk as the next start finds it), or fail the operation by raising
StorageError.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Literal, NamedTuple

from .errors import StorageError, WriteRefusedError
from .files import Buffer, Calls, FileRange, Lock, one_by_one

SECTOR = 512
# Unlimited capacity in bytes; used space is not counted then.
NO_LIMIT = 1 << 40

Mode = Literal["drop", "torn", "lost-name", "mixed"]
MODES: tuple[Mode, ...] = ("drop", "torn", "lost-name", "mixed")


class Operation(NamedTuple):
    """A coming operation: write, truncate, create, rename, remove, mkdir, sync or syncdir."""

    kind: str
    path: str


class Inode:
    """The current and the stable bytes of a file, and `allocated` bytes without content."""

    __slots__ = ("_unchanged_size", "allocated", "data", "stable")

    def __init__(self, stable: Buffer = b"", allocated: int = 0) -> None:
        self.data = bytearray(stable)
        self.stable = bytearray(stable)
        self.allocated = allocated
        # Bytes before this position are unchanged since the last sync.
        self._unchanged_size = len(stable)

    def write(self, position: int, data: Buffer) -> None:
        """Write bytes at a position; a gap before it is filled with zeros."""
        self._unchanged_size = min(self._unchanged_size, position, len(self.data))
        self.data.extend(bytes(max(position - len(self.data), 0)))
        self.data[position : position + len(data)] = data

    def truncate(self, size: int) -> None:
        """Truncate the file, or extend it with zeros."""
        self._unchanged_size = min(self._unchanged_size, size, len(self.data))
        del self.data[size:]
        self.data.extend(bytes(size - len(self.data)))

    def sync(self) -> None:
        self.stable[self._unchanged_size :] = self.data[self._unchanged_size :]
        self._unchanged_size = len(self.data)

    def torn_copy(self, random_: random.Random) -> bytes:
        """Return the stable bytes, overwritten with a random subset of the changed sectors."""
        data, stable = bytes(self.data), bytes(self.stable)
        if data == stable:
            return stable
        low, high = sorted((len(data), len(stable)))
        cut_at_sector = random_.randint(low, high) // SECTOR * SECTOR
        size = random_.choice((low, high, max(low, cut_at_sector)))
        image = bytearray(stable[:size].ljust(size, b"\0"))
        for start in range(0, size, SECTOR):
            if random_.random() < 0.5:
                sector = data[start : min(start + SECTOR, size)]
                image[start : start + len(sector)] = sector
        return bytes(image)


class Directory:
    """The current and the stable names of a directory."""

    __slots__ = ("names", "pending", "stable")

    def __init__(self) -> None:
        self.names: dict[str, Inode | Directory] = {}
        self.stable: dict[str, Inode | Directory] = {}
        # Changes since the last sync; each one is atomic.
        self.pending: list[dict[str, Inode | Directory | None]] = []

    def change(self, **names: Inode | Directory | None) -> None:
        self.pending.append(names)
        _apply(self.names, names)

    def sync(self) -> None:
        for change in self.pending:
            _apply(self.stable, change)
        self.pending.clear()

    def survivors(self, mode: Mode, random_: random.Random) -> dict[str, Inode | Directory]:
        if mode in ("drop", "torn"):
            return self.names
        names = dict(self.stable)
        if mode == "mixed":
            for change in self.pending:
                if random_.random() < 0.5:
                    _apply(names, change)
        return names


def _apply(
    names: dict[str, Inode | Directory], change: dict[str, Inode | Directory | None]
) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class CrashFile:
    """An open file, simple and slow: a bytearray and copies."""

    __slots__ = ("_files", "_inode", "fd", "path")
    is_torn = False

    def __init__(self, files: CrashFiles, inode: Inode, path: str) -> None:
        self._files = files
        self._inode = inode
        self.path = path
        self.fd = None

    @property
    def size(self) -> int:
        return len(self._inode.data)

    def append(self, parts: Sequence[Buffer]) -> int:
        position = self.size
        data = b"".join(parts)
        self._files.announce("write", self.path)
        self._files.claim(self.path, len(data))
        self._inode.write(position, data)
        return position

    def read(self, position: int, size: int) -> bytes:
        return bytes(self._inode.data[position : position + size])

    def parts(self, position: int, size: int) -> list[Buffer]:
        return [self.read(position, size)]

    def range(self, position: int, size: int) -> FileRange:
        return FileRange(self, position, size)

    def truncate(self, size: int) -> None:
        self._files.announce("truncate", self.path)
        self._inode.truncate(size)

    def sync(self) -> None:
        self._files.announce("sync", self.path)
        self._inode.sync()

    def close(self) -> None:
        pass


class _NoLock:
    """A lock that is never held, because a power failure releases all locks."""

    def release(self) -> None:
        pass


class CrashFiles:
    """A disk that can lose power.

    Args:
        hook: Called with each `Operation` before it happens.
        capacity: Maximum total size of all files in bytes.
    """

    durable = True

    def __init__(
        self, hook: Callable[[Operation], None] | None = None, *, capacity: int = NO_LIMIT
    ) -> None:
        self.hook = hook
        self.capacity = capacity
        self.operations = 0
        self._root = Directory()

    def announce(self, kind: str, path: str) -> None:
        self.operations += 1
        if self.hook is not None:
            self.hook(Operation(kind, path))

    def crashed(self, mode: Mode, seed: int) -> CrashFiles:
        """Return a copy of the disk after a power failure; this disk is unchanged."""
        files = CrashFiles(capacity=self.capacity)
        files._root = after_power_failure(self._root, mode, random.Random(seed))
        return files

    def killed(self) -> CrashFiles:
        """Return a copy of the disk after a process crash; this disk is unchanged.

        All data is kept, but a later power failure may still lose the unsynced part.
        """
        files = CrashFiles(capacity=self.capacity)
        files._root = deepcopy(self._root)
        return files

    def image(self) -> dict[str, bytes]:
        """Return the content of all files by path; the paths of directories end in a slash."""
        found: dict[str, bytes] = {}
        _collect(self._root, "", found)
        return found

    def damage(self, path: str, data: bytes) -> None:
        """Replace the current and the stable bytes of a file."""
        inode = self._file(path)
        inode.truncate(0)
        inode.write(0, data)
        inode.sync()

    def used(self) -> int:
        return _used_bytes(self._root)

    def claim(self, path: str, size: int) -> None:
        """Raise WriteRefusedError if `size` more bytes exceed the capacity."""
        if self.capacity < NO_LIMIT and self.used() + size > self.capacity:
            raise WriteRefusedError(f"cannot append to {path}: no space left")

    # -- the Files interface

    def open(self, path: str, *, create: bool = False) -> CrashFile:
        directory, name = self._parent_and_name(path)
        node = directory.names.get(name)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            self.announce("create", path)
            node = Inode()
            directory.change(**{name: node})
        if isinstance(node, Directory):
            raise StorageError(f"{path} is a directory")
        return CrashFile(self, node, path)

    def read_bytes(self, path: str) -> bytes:
        return bytes(self._file(path).data)

    def write_atomic(self, path: str, data: bytes) -> None:
        file = self.open(path + ".tmp", create=True)
        if file.size:
            file.truncate(0)
        file.append([data])
        file.sync()
        self.rename(path + ".tmp", path)
        self.sync_dir(path.rpartition("/")[0])

    def rename(self, old: str, new: str) -> None:
        directory, old_name = self._parent_and_name(old)
        new_directory, new_name = self._parent_and_name(new)
        if old_name not in directory.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        if directory is not new_directory:
            raise NotImplementedError("rename between directories")
        self.announce("rename", old)
        directory.change(**{old_name: None, new_name: directory.names[old_name]})

    def remove(self, path: str) -> None:
        try:
            directory, name = self._parent_and_name(path)
        except FileNotFoundError:
            return
        if name in directory.names:
            self.announce("remove", path)
            directory.change(**{name: None})

    def listdir(self, path: str) -> list[str]:
        try:
            return sorted(self._directory(path).names)
        except FileNotFoundError:
            return []

    def mkdir(self, path: str) -> None:
        directory = self._root
        done = ""
        for name in filter(None, path.split("/")):
            done += f"/{name}"
            node = directory.names.get(name)
            if node is None:
                self.announce("mkdir", done)
                node = Directory()
                directory.change(**{name: node})
            assert isinstance(node, Directory)
            directory = node

    def rmtree(self, path: str) -> None:
        if not self.exists(path):
            return
        for name in self.listdir(path):
            child = f"{path}/{name}"
            if isinstance(self._node(child), Directory):
                self.rmtree(child)
            else:
                self.remove(child)
        self.remove(path)

    def exists(self, path: str) -> bool:
        try:
            directory, name = self._parent_and_name(path)
        except FileNotFoundError:
            return False
        return name in directory.names

    def is_directory(self, path: str) -> bool:
        try:
            self._directory(path)
        except FileNotFoundError:
            return False
        return True

    def size(self, path: str) -> int:
        return len(self._file(path).data)

    def usage(self, path: str) -> tuple[int, int]:
        if self.capacity == NO_LIMIT:
            return NO_LIMIT, NO_LIMIT // 2
        return NO_LIMIT, max(self.capacity - self.used(), 0)

    def allocate(self, path: str, size: int) -> None:
        directory, name = self._parent_and_name(path)
        self.announce("create", path)
        self.claim(path, size)
        directory.change(**{name: Inode(allocated=size)})

    def sync_dir(self, path: str) -> None:
        directory = self._directory(path)
        self.announce("syncdir", path)
        directory.sync()

    def at_once(self, calls: Calls, threads_max: int | None = None) -> None:
        # Concurrent calls may run in any order.
        one_by_one(random.Random(self.operations).sample(calls, len(calls)))

    def lock(self, path: str) -> Lock:
        return _NoLock()

    def _directory(self, path: str) -> Directory:
        directory = self._root
        for name in filter(None, path.removeprefix(".").split("/")):
            node = directory.names.get(name)
            if not isinstance(node, Directory):
                raise FileNotFoundError(errno.ENOENT, "no such directory", path)
            directory = node
        return directory

    def _parent_and_name(self, path: str) -> tuple[Directory, str]:
        directory, _, name = path.rpartition("/")
        return self._directory(directory), name

    def _node(self, path: str) -> Inode | Directory:
        directory, name = self._parent_and_name(path)
        try:
            return directory.names[name]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such file", path) from None

    def _file(self, path: str) -> Inode:
        node = self._node(path)
        if isinstance(node, Directory):
            raise FileNotFoundError(errno.ENOENT, "not a file", path)
        return node


def after_power_failure(
    directory: Directory, mode: Mode, random_: random.Random, seen: dict[Inode, Inode] | None = None
) -> Directory:
    """Return a stable copy of a directory after a power failure.

    Two names of the same file are kept, since a rename may be half done.
    """
    seen = {} if seen is None else seen
    copy = Directory()
    for name, node in directory.survivors(mode, random_).items():
        if isinstance(node, Directory):
            copy.stable[name] = after_power_failure(node, mode, random_, seen)
            continue
        if node not in seen:
            is_torn = mode in ("torn", "mixed")
            seen[node] = Inode(node.torn_copy(random_) if is_torn else node.stable, node.allocated)
        copy.stable[name] = seen[node]
    copy.names = dict(copy.stable)
    return copy


def stable_copy(directory: Directory) -> Directory:
    """Return a copy of a directory in which all data is stable."""
    copy = Directory()
    for name, node in directory.names.items():
        if isinstance(node, Directory):
            copy.stable[name] = stable_copy(node)
        else:
            copy.stable[name] = Inode(node.data, node.allocated)
    copy.names = dict(copy.stable)
    return copy


def _used_bytes(directory: Directory) -> int:
    return sum(
        _used_bytes(node) if isinstance(node, Directory) else len(node.data) + node.allocated
        for node in directory.names.values()
    )


def _collect(directory: Directory, path: str, found: dict[str, bytes]) -> None:
    for name, node in sorted(directory.names.items()):
        if isinstance(node, Directory):
            found[f"{path}{name}/"] = b""
            _collect(node, f"{path}{name}/", found)
        else:
            found[f"{path}{name}"] = bytes(node.data)
