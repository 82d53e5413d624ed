"""Where bytes rest: the only door between the log store and an operating system.

Everything that differs by platform is here, each with a plain fallback: vectored writes (absent on
Windows), the call that makes bytes durable (fdatasync; F_FULLFSYNC on macOS, where fsync stops at
the drive's cache), directory sync (impossible on Windows, where names are durable by other means).
The rest of the store sees two small interfaces, `Files` and `File`, and works unchanged on a disk
(`OsFiles`) and in memory (`MemFiles`).

What counts as durable was synced by itself, file by file. Linux has one sync for a whole file system
(syncfs), but not every file system keeps its promise: on FUSE it may not reach the server at all,
and before Linux 5.8 it does not tell of writes that failed.

Paths are strings with forward slashes on every platform.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import filelock

from .cached import NOT_KNOWN_THERE, NotCached, must_not_wait, read_cached, uncached_range
from .errors import (
    READ_FAILURES,
    StorageError,
    SyncFailedError,
    UnreadableError,
    WriteRefusedError,
)

Buffer = bytes | bytearray | memoryview
Calls = Sequence[Callable[[], None]]
AtOnce = Callable[[Calls, int | None], None]
"""As `Files.at_once`."""


class Lock(Protocol):
    """An exclusive claim on a directory, given back by `release` or by the end of the process."""

    def release(self) -> None: ...


class Source(Protocol):
    """What a `FileRange` reads from and keeps open."""

    @property
    def fd(self) -> int | None: ...

    @property
    def path(self) -> str: ...

    def read(self, position: int, size: int) -> bytes: ...

    def parts(self, position: int, size: int) -> list[Buffer]: ...


class FileRange:
    """Stored bytes that have not been read yet: `length` bytes from `position` of one file.

    The range keeps its file open, so a segment may be deleted while it is being sent. `fd` is what
    sendfile takes; it is None in memory, where `parts` gives the bytes without a copy.
    """

    __slots__ = ("fd", "length", "position", "source")

    def __init__(self, source: Source, position: int, length: int) -> None:
        self.source = source
        self.position = position
        self.length = length
        self.fd = source.fd

    def __len__(self) -> int:
        return self.length

    def read(self) -> bytes:
        """All bytes of the range in one piece. Raises StorageError when the file cannot be read."""
        return self.source.read(self.position, self.length)

    def parts(self) -> list[Buffer]:
        """All bytes of the range in as many pieces as they are stored in."""
        return self.source.parts(self.position, self.length)

    def uncached_range(self, size: int) -> NotCached | None:
        """Return the range to load before the first `size` bytes are read, or None if all are cached."""
        return uncached_range(self.source, self.position, size)


class File(Protocol):
    """One open file that grows at its end.

    `size` counts the bytes that are whole: a failed append leaves none behind.
    """

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int: ...

    def append(self, parts: Sequence[Buffer]) -> int:
        """Write all parts (a thousand at most) at the end; returns the position of the first byte.

        Raises WriteRefusedError after cutting away whatever part of them had been written. If that is
        refused too, the file `is_torn`.
        """

    @property
    def is_torn(self) -> bool:
        """Whether bytes of a failed append lie behind `size`; the next append or `truncate` cuts them."""

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes, fewer only at the end of the file."""

    def range(self, position: int, size: int) -> FileRange: ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Make everything appended so far survive a power cut. Blocks; any thread may call it."""

    def close(self) -> None:
        """Give up this handle; ranges that are alive keep theirs."""


class Files(Protocol):
    """A file system, reduced to what a log store asks of it.

    All methods raise StorageError for what the system refuses and FileNotFoundError for a name
    that does not exist. Where a write is refused that is a WriteRefusedError. What is made is for
    its owner alone, where the system knows modes.
    """

    @property
    def durable(self) -> bool:
        """Whether anything outlives the process; if not, there is nothing to sync."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and appending."""

    def read_bytes(self, path: str) -> bytes: ...

    def write_atomic(self, path: str, data: bytes) -> None:
        """Replace the content so that a crash leaves the old or the new one, never a mixture.

        Durable on return: the bytes are synced before the name is, and the name before the return.
        """

    def rename(self, old: str, new: str) -> None:
        """Rename a file or a directory; durable after `sync_dir`."""

    def remove(self, path: str) -> None:
        """Remove a file; open ranges keep reading it. A missing file is no error."""

    def listdir(self, path: str) -> list[str]:
        """The names in a directory, sorted; empty for a missing directory."""

    def mkdir(self, path: str) -> None:
        """Make a directory and its parents; an existing one is no error."""

    def rmtree(self, path: str) -> None:
        """Remove a directory with everything in it; a missing one is no error."""

    def exists(self, path: str) -> bool: ...

    def is_directory(self, path: str) -> bool:
        """Whether there is a directory at this path."""

    def size(self, path: str) -> int: ...

    def usage(self, path: str) -> tuple[int, int]:
        """Bytes of the file system that holds `path`: used or free for us, and free for us.

        What it keeps for the system's administrator or for others is no one's to use, as in `df`.
        """

    def allocate(self, path: str, size: int) -> None:
        """Make a file that takes up so many bytes; whatever is in them. It must not exist."""

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory survive a power cut. Blocks."""

    def at_once(self, calls: Calls, threads_max: int | None = None) -> None:
        """Make calls that sync, in any order and perhaps several at a time; blocks.

        Parameters: `threads_max` is how many at a time at most; None for as many as help.

        Raises what one of them raised; calls that had not begun by then are left out.
        """

    def lock(self, path: str) -> Lock:
        """Claim a lock file and the directory that it is in.

        Raises StorageError when someone else holds one of them.
        """


# -- the operating system


def _fsync_call() -> Callable[[int], None]:
    """The cheapest call of this platform after which bytes survive a power cut."""
    if sys.platform == "darwin":
        import fcntl

        def full_fsync(fd: int) -> None:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)

        return full_fsync
    return getattr(os, "fdatasync", os.fsync)


def _write_zeros(fd: int, size: int) -> None:
    while size:
        size -= os.write(fd, bytes(min(size, _ZEROS)))


def _posix_allocate(fd: int, size: int) -> None:
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno not in NOT_KNOWN_THERE:
            raise
        _write_zeros(fd, size)


def _own(path: str, flags: int) -> int:
    """Opens for `open`, as `OsFile` does."""
    return os.open(path, flags, _OWN_FILE)


def _joined_write(fd: int, parts: Sequence[Buffer]) -> int:
    return os.write(fd, b"".join(parts))


def _seek_read(fd: int, size: int, position: int) -> bytes:
    # Appends are unaffected by the moved file position: the file is in append mode.
    os.lseek(fd, position, os.SEEK_SET)
    return os.read(fd, size)


_fsync = _fsync_call()
_writev: Callable[[int, Sequence[Buffer]], int] = getattr(os, "writev", _joined_write)
_take_up: Callable[[int, int], None] = (
    _posix_allocate if hasattr(os, "posix_fallocate") else _write_zeros
)
_pread: Callable[[int, int, int], bytes] = getattr(os, "pread", _seek_read)
_APPEND = (
    os.O_RDWR | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
)  # O_BINARY: Windows only


_READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
_READ_SIZE = 64 * 1024
_ZEROS = 1024 * 1024


_OWN_FILE, _OWN_DIRECTORY = 0o600, 0o700
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


@contextlib.contextmanager
def _reported(action: str, path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _read_error(action, path, error) from error


def _read_error(action: str, path: str, error: OSError) -> StorageError:
    """Return the error of a call that changes nothing."""
    reason = error.strerror or str(error)
    if error.errno in READ_FAILURES:
        return UnreadableError(path, reason)
    return StorageError(f"cannot {action} {path}: {reason}")


@contextlib.contextmanager
def _reported_open(path: str, *, create: bool, read_only: bool) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if read_only or (error.errno in READ_FAILURES and not create):
            raise _read_error("open", path, error) from error
        raise _write_error("open", path, error) from error


@contextlib.contextmanager
def _reported_sync(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SyncFailedError(f"cannot sync {path}: {error.strerror or error}", path) from error


@contextlib.contextmanager
def _reported_temporary_sync(path: str) -> Iterator[None]:
    """Nothing relies on a temporary file yet, so a lack of space there may be over later."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise
        raise SyncFailedError(f"cannot sync {path}: {error.strerror or error}", path) from error


def one_by_one(calls: Calls, threads_max: int | None = None) -> None:
    """Make calls in their order; raises what one of them raises."""
    for call in calls:
        call()


@contextlib.contextmanager
def _reported_write(action: str, path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _write_error(action, path, error) from error


def _write_error(action: str, path: str, error: OSError) -> StorageError:
    advice = "; free some space there" if error.errno in _NO_ROOM else ""
    text = f"cannot {action} {path}: {error.strerror or error}{advice}"
    # Without a descriptor it is the process that is at its end, not the directory.
    return StorageError(text) if error.errno in _NO_DESCRIPTORS else WriteRefusedError(text)


class _Handle:
    """A file descriptor that closes when the file and all ranges of it are gone."""

    __slots__ = ("fd", "path")

    def __init__(self, fd: int, path: str) -> None:
        self.fd = fd
        self.path = path

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.fd)

    def read(self, position: int, size: int) -> bytes:
        return bytes(self._read(position, size))

    def parts(self, position: int, size: int) -> list[Buffer]:
        return [self._read(position, size)]

    def _read(self, position: int, size: int) -> bytes | bytearray:
        try:
            if must_not_wait():
                cached = read_cached(self, position, size)
                if cached is not None:
                    return cached
            data = _pread(self.fd, size, position)
            while 0 < len(data) < size:  # a signal or a 2 GiB limit can shorten one read
                more = _pread(self.fd, size - len(data), position + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise _read_error("read", self.path, error) from error
        return data


def cut_torn(file: File) -> None:
    """Remove the bytes that a failed append left at the end. Raises WriteRefusedError."""
    if file.is_torn:
        file.truncate(file.size)


class OsFile:
    """One file of the operating system: for reading, and in append mode if it may be written."""

    __slots__ = ("_fd", "_handle", "is_torn", "path", "size")

    def __init__(self, path: str, *, create: bool, read_only: bool = False) -> None:
        mode = _READ if read_only else _APPEND | (os.O_CREAT if create else 0)
        with _reported_open(path, create=create, read_only=read_only):
            self._fd = os.open(path, mode, _OWN_FILE)
            self._handle: _Handle | None = _Handle(self._fd, path)
            self.path = path
            self.size = os.fstat(self._fd).st_size
            self.is_torn = False

    def append(self, parts: Sequence[Buffer]) -> int:
        position = self.size
        total = 0
        for part in parts:
            total += len(part)
        try:
            if self.is_torn:
                self._cut(position)
            if _writev(self._fd, parts) != total:
                self._write_rest(b"".join(parts))
        except OSError as error:
            self._cut_back(position)
            raise _write_error("append to", self.path, error) from error
        except MemoryError:
            self._cut_back(position)
            raise
        self.size = position + total
        return position

    def _write_rest(self, data: bytes) -> None:
        """Go on after a short write; its cause usually shows as an error of the next one."""
        done = os.fstat(self._fd).st_size - self.size
        view = memoryview(data)
        while done < len(data):
            done += os.write(self._fd, view[done:])

    def _cut_back(self, position: int) -> None:
        """Take back the bytes of a failed append; where that fails, the next one has to."""
        self.is_torn = True
        with contextlib.suppress(OSError):
            self._cut(position)

    def _cut(self, position: int) -> None:
        """End the file at `position`. Raises OSError."""
        os.ftruncate(self._fd, position)
        self.is_torn = False

    def read(self, position: int, size: int) -> bytes:
        return self._open_handle().read(position, size)

    def range(self, position: int, size: int) -> FileRange:
        return FileRange(self._open_handle(), position, size)

    def _open_handle(self) -> _Handle:
        if self._handle is None:
            raise StorageError(f"{self.path} is closed")
        return self._handle

    def truncate(self, size: int) -> None:
        with _reported_write("truncate", self.path):
            self._cut(size)
        self.size = size

    def sync(self) -> None:
        handle = self._handle  # keeps the descriptor open while a worker thread is in the call
        if handle is None:
            return
        with _reported_sync(self.path):
            _fsync(handle.fd)

    def close(self) -> None:
        self._handle = None
        self._fd = -1


def _locked(path: str) -> StorageError:
    return StorageError(
        f"{path} is locked: another broker uses this data directory; stop it, or choose another "
        "directory with --data-dir"
    )


class _FileLock:
    """A lock file, and the directory that it is in: who removes the file does not free the directory."""

    __slots__ = ("_directory", "_lock")

    def __init__(self, lock: filelock.BaseFileLock, directory: int | None) -> None:
        self._lock = lock
        self._directory = directory

    def release(self) -> None:
        directory, self._directory = self._directory, None
        if directory is not None:
            _unlock_directory(directory)
        self._lock.release()


def _locked_directory(path: str) -> int | None:
    """Lock a directory, where the system can lock one; returns a descriptor that holds the lock.

    Raises BlockingIOError when it is locked.
    """
    if sys.platform == "win32":
        return None
    import fcntl

    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise
    except OSError:  # some network file systems lock files only
        os.close(fd)
        return None
    return fd


def _unlock_directory(fd: int) -> None:
    """Unlock a directory, also if a forked child still has the descriptor."""
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


class OsFiles:
    """Files of the operating system.

    `read_only`: they belong to another process, and `open` gives files that only can be read;
    `at_once` makes calls that block, returns when all are done, and raises what one of them raised.
    """

    durable = True

    def __init__(self, *, read_only: bool = False, at_once: AtOnce = one_by_one) -> None:
        self._read_only = read_only
        self._at_once = at_once

    def open(self, path: str, *, create: bool = False) -> OsFile:
        return OsFile(path, create=create, read_only=self._read_only)

    def read_bytes(self, path: str) -> bytes:
        # Not by `open`, which costs more than the reading of a small file.
        with _reported("read", path):
            fd = os.open(path, _READ)
            if must_not_wait():
                return _Handle(fd, path).read(0, os.fstat(fd).st_size)
            try:
                return b"".join(iter(lambda: os.read(fd, _READ_SIZE), b""))
            finally:
                os.close(fd)

    def write_atomic(self, path: str, data: bytes) -> None:
        temporary = path + ".tmp"
        with _reported_write("write", path):
            with open(temporary, "wb", opener=_own) as file:
                file.write(data)
                file.flush()
                with _reported_temporary_sync(temporary):
                    _fsync(file.fileno())
            os.replace(temporary, path)
        self.sync_dir(path.rpartition("/")[0] or ".")

    def rename(self, old: str, new: str) -> None:
        with _reported_write("rename", old):
            os.replace(old, new)

    def remove(self, path: str) -> None:
        with _reported_write("remove", path), contextlib.suppress(FileNotFoundError):
            try:
                os.unlink(path)
            except PermissionError:
                # Windows keeps a file that a range still reads; loading removes it another time.
                if os.name != "nt":
                    raise

    def listdir(self, path: str) -> list[str]:
        with _reported("list", path):
            try:
                return sorted(os.listdir(path))
            except FileNotFoundError:
                return []

    def mkdir(self, path: str) -> None:
        try:
            os.makedirs(path, _OWN_DIRECTORY, exist_ok=True)
        except OSError as error:
            raise _write_error("create", path, error) from error

    def rmtree(self, path: str) -> None:
        with _reported_write("remove", path), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def size(self, path: str) -> int:
        with _reported("measure", path):
            return os.stat(path).st_size

    def usage(self, path: str) -> tuple[int, int]:
        with _reported("measure the disk of", path):
            found = shutil.disk_usage(path)
        return found.used + found.free, found.free

    def allocate(self, path: str, size: int) -> None:
        with _reported_write("make", path):
            fd = os.open(path, _NEW, _OWN_FILE)
            try:
                _take_up(fd, size)
            except OSError:
                os.unlink(path)
                raise
            finally:
                os.close(fd)

    def sync_dir(self, path: str) -> None:
        if os.name == "nt":  # no handle on a directory can be flushed there
            return
        with _reported("open", path):
            fd = os.open(path, os.O_RDONLY)
        try:
            with _reported_sync(path):
                os.fsync(fd)
        finally:
            os.close(fd)

    def at_once(self, calls: Calls, threads_max: int | None = None) -> None:
        self._at_once(calls, threads_max)

    def lock(self, path: str) -> Lock:
        lock = filelock.FileLock(path, mode=_OWN_FILE)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            raise _locked(path) from None
        except OSError as error:
            raise StorageError(f"cannot lock {path}: {error}") from error
        try:
            return _FileLock(lock, _locked_directory(path.rpartition("/")[0] or "."))
        except OSError as error:
            lock.release()
            if isinstance(error, BlockingIOError):
                raise _locked(path) from None
            raise StorageError(f"cannot lock {path}: {error}") from error


# -- memory

_BLOCK_MIN = 4 * 1024
_BLOCK_MAX = 1024 * 1024


class MemFile:
    """A file in memory: a list of blocks that never move, so views into them stay valid."""

    __slots__ = ("_blocks", "_owner", "_room", "_starts", "fd", "path", "size")
    is_torn = False

    def __init__(self, owner: MemFiles, path: str) -> None:
        self._owner = owner
        self._blocks: list[memoryview] = []
        self._starts: list[int] = []  # file position of each block's first byte
        self._room = 0  # free bytes at the end of the last block
        self.path = path
        self.size = 0
        self.fd = None

    def append(self, parts: Sequence[Buffer]) -> int:
        position = self.size
        total = 0
        for part in parts:
            total += len(part)
        self._owner.claim(total)
        try:
            self.store(parts)
        except MemoryError:
            self._owner.claim(-total)
            self._cut(position)  # nobody has seen these bytes
            raise
        return position

    def store(self, parts: Sequence[Buffer]) -> None:
        """Append without asking whether there is room."""
        for part in parts:
            length = len(part)
            if length <= self._room:
                block = self._blocks[-1]
                start = len(block) - self._room
                block[start : start + length] = part
                self._room -= length
                self.size += length
            else:
                self._append_across(memoryview(part))

    def _append_across(self, part: memoryview) -> None:
        while len(part) > 0:
            if self._room == 0:
                self._grow(len(part))
            block = self._blocks[-1]
            start = len(block) - self._room
            taken = min(self._room, len(part))
            block[start : start + taken] = part[:taken]
            self._room -= taken
            self.size += taken
            part = part[taken:]

    def _grow(self, needed: int) -> None:
        length = max(_BLOCK_MIN, min(max(needed, self.size), _BLOCK_MAX))
        self._blocks.append(memoryview(bytearray(length)))
        self._starts.append(self.size)
        self._room = length

    def read(self, position: int, size: int) -> bytes:
        return b"".join(self.parts(position, size))

    def parts(self, position: int, size: int) -> list[Buffer]:
        end = min(position + size, self.size)
        found: list[Buffer] = []
        index = bisect_right(self._starts, position) - 1
        while position < end:
            block = self._blocks[index]
            start = position - self._starts[index]
            piece = block[start : start + end - position].toreadonly()
            found.append(piece)
            position += len(piece)
            index += 1
        return found

    def range(self, position: int, size: int) -> FileRange:
        return FileRange(self, position, size)

    def truncate(self, size: int) -> None:
        if size > self.size:
            raise StorageError(f"{self.path} cannot grow by truncation")
        self._owner.claim(size - self.size)
        self._cut(size)
        if self._blocks:
            # A copy, because views of the cut bytes may still be on their way to a client.
            self._blocks[-1] = memoryview(bytearray(self._blocks[-1]))

    def _cut(self, size: int) -> None:
        keep = bisect_right(self._starts, size - 1)
        del self._blocks[keep:], self._starts[keep:]
        self.size = size
        self._room = len(self._blocks[-1]) - (size - self._starts[-1]) if keep else 0

    def sync(self) -> None:
        pass

    def close(self) -> None:
        pass

    def fork(self, owner: MemFiles) -> MemFile:
        """The file as it is now, for `owner`; it shares the blocks, and fills none of them up."""
        other = MemFile(owner, self.path)
        other._blocks, other._starts = self._blocks.copy(), self._starts.copy()
        other.size = self.size
        if other._blocks:
            other._blocks[-1] = other._blocks[-1][: self.size - self._starts[-1]]
        return other


class _MemLock:
    __slots__ = ("_locks", "_path")

    def __init__(self, locks: set[str], path: str) -> None:
        self._locks = locks
        self._path = path
        locks.add(path)

    def release(self) -> None:
        self._locks.discard(self._path)


class MemFiles:
    """Files in memory, gone with the process.

    `limit` is the most bytes that all files together may hold (`memory.limit.bytes`); an append
    above it is refused with StorageError and leaves nothing behind.
    """

    durable = False

    def __init__(self, *, limit: int = 1 << 30) -> None:
        self.limit = limit
        self._used = 0
        self._freed = False  # something was removed since `_used` was counted
        self._directories: dict[str, dict[str, MemFile | None]] = {}  # None stands for a directory
        self._locks: set[str] = set()

    def fork(self) -> MemFiles:
        """The files as they are now, apart from these from now on.

        The cost does not depend on what is in the files: bytes that were written never change, so
        both share them.
        """
        other = MemFiles(limit=self.limit)
        for path, names in list(self._directories.items()):
            other._directories[path] = {
                name: file and file.fork(other) for name, file in list(names.items())
            }
        other._freed = True
        return other

    @property
    def used(self) -> int:
        """Bytes of all files together."""
        if self._freed:
            self._freed = False
            # Not a subtraction, because a worker thread may remove while the owner appends.
            directories = list(self._directories.values())
            files = [file for names in directories for file in list(names.values())]
            self._used = sum(file.size for file in files if file)
        return self._used

    def claim(self, size: int) -> None:
        """Account for `size` more bytes (fewer when negative)."""
        if size > 0 and self._used + size > self.limit and self.used + size > self.limit:
            raise StorageError(f"memory storage is full (memory.limit.bytes={self.limit})")
        self._used += size

    def open(self, path: str, *, create: bool = False) -> MemFile:
        directory, _, name = path.rpartition("/")
        names = self._directory(directory)
        file = names.get(name)
        if file is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            file = names[name] = MemFile(self, path)
        return file

    def _directory(self, path: str) -> dict[str, MemFile | None]:
        try:
            return self._directories[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path) from None

    def read_bytes(self, path: str) -> bytes:
        file = self.open(path)
        return file.read(0, file.size)

    def write_atomic(self, path: str, data: bytes) -> None:
        directory, _, name = path.rpartition("/")
        file = MemFile(self, path)
        file.store([data])  # small, and when all is full perhaps the way out
        self._directory(directory)[name] = file
        self._freed = True

    def rename(self, old: str, new: str) -> None:
        old_directory, _, old_name = old.rpartition("/")
        new_directory, _, new_name = new.rpartition("/")
        names = self._directory(old_directory)
        if old_name not in names:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        self.remove(new)
        file = self._directory(new_directory)[new_name] = names.pop(old_name)
        if file is None:
            self._directories[new] = self._directories.pop(old)
        else:
            file.path = new

    def remove(self, path: str) -> None:
        directory, _, name = path.rpartition("/")
        file = self._directories.get(directory, {}).pop(name, None)
        if file is not None:
            self._freed = True

    def listdir(self, path: str) -> list[str]:
        return sorted(self._directories.get(path, ()))

    def mkdir(self, path: str) -> None:
        if path in self._directories:
            return
        self._directories[path] = {}
        parent, _, name = path.rpartition("/")
        if path:
            self.mkdir(parent)
            self._directories[parent][name] = None

    def rmtree(self, path: str) -> None:
        for name, file in list(self._directories.get(path, {}).items()):
            if file is None:
                self.rmtree(f"{path}/{name}")
            else:
                self.remove(f"{path}/{name}")
        self._directories.pop(path, None)
        parent, _, name = path.rpartition("/")
        self._directories.get(parent, {}).pop(name, None)

    def exists(self, path: str) -> bool:
        directory, _, name = path.rpartition("/")
        return name in self._directories.get(directory, ())

    def size(self, path: str) -> int:
        return self.open(path).size

    def is_directory(self, path: str) -> bool:
        return path in self._directories

    def usage(self, path: str) -> tuple[int, int]:
        return self.limit, max(self.limit - self.used, 0)

    def allocate(self, path: str, size: int) -> None:
        self.open(path, create=True).append([bytes(size)])

    def sync_dir(self, path: str) -> None:
        pass

    def at_once(self, calls: Calls, threads_max: int | None = None) -> None:
        one_by_one(calls)

    def lock(self, path: str) -> Lock:
        if path in self._locks:
            raise _locked(path)
        return _MemLock(self._locks, path)
