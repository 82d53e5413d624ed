"""File system access of the log store: the only module that calls the operating system.

All platform differences are here, each with a fallback: vectored writes (absent on Windows), the
sync call (fdatasync; F_FULLFSYNC on macOS, where fsync does not flush the drive's cache), and
directory sync (unavailable and unnecessary on Windows). The rest of the store uses two small
interfaces, `Files` and `File`. They work on a disk (`OsFiles`) and in memory (`MemFiles`).

Each file is synced by itself. Linux can sync a whole file system (syncfs), but not reliably: on
FUSE the sync may not reach the server, and before Linux 5.8 it does not report failed writes.

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

from .cached import UNSUPPORTED_ERRORS, NotCached, must_not_wait, read_cached, uncached_range
from .errors import (
    READ_FAILURES,
    StorageError,
    SyncFailedError,
    UnreadableError,
    WriteRefusedError,
)

Buffer = bytes | bytearray | memoryview
Calls = Sequence[Callable[[], None]]
# Signature of `Files.at_once`.
AtOnce = Callable[[Calls, int | None], None]


class Lock(Protocol):
    """An exclusive lock on a directory, released by `release` or by the end of the process."""

    def release(self) -> None: ...


class Source(Protocol):
    """The open file or memory that a `FileRange` reads from."""

    @property
    def fd(self) -> int | None: ...

    @property
    def path(self) -> str: ...

    def read(self, position: int, size: int) -> bytes: ...

    def parts(self, position: int, size: int) -> list[Buffer]: ...


class FileRange:
    """A range of stored bytes that is not read yet: `length` bytes from `position` of one file.

    The range keeps its file open, so a segment may be deleted while it is being sent. `fd` is the
    descriptor for sendfile; it is None in memory, where `parts` returns the bytes without a copy.
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
        """Read the whole range. Raises StorageError if the file cannot be read."""
        return self.source.read(self.position, self.length)

    def parts(self) -> list[Buffer]:
        """Read the whole range as a list of pieces, split as they are stored."""
        return self.source.parts(self.position, self.length)

    def uncached_range(self, size: int) -> NotCached | None:
        """Return the part of the first `size` bytes that is not in the page cache, or None."""
        return uncached_range(self.source, self.position, size)


class File(Protocol):
    """An open append-only file.

    `size` is in bytes and does not include the bytes of a failed append.
    """

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int: ...

    def append(self, parts: Sequence[Buffer]) -> int:
        """Write all parts (at most 1,000) at the end; return the position of the first byte.

        Raises WriteRefusedError after truncating the bytes that were written. If that fails too,
        `is_torn` is True.
        """

    @property
    def is_torn(self) -> bool:
        """True if bytes of a failed append follow `size`; the next write truncates them."""

    def read(self, position: int, size: int) -> bytes:
        """Read up to `size` bytes, fewer only at the end of the file."""

    def range(self, position: int, size: int) -> FileRange: ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Make everything appended so far survive a power failure; blocks. Thread-safe."""

    def close(self) -> None:
        """Close this handle; existing ranges keep the file open."""


class Files(Protocol):
    """The file system operations that a log store needs.

    All methods raise FileNotFoundError for a missing path, WriteRefusedError for a failed write and
    StorageError for other failures. New files and directories are accessible to their owner only,
    if the system supports modes.
    """

    @property
    def durable(self) -> bool:
        """True if files outlive the process; otherwise there is nothing to sync."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file for reading and appending."""

    def read_bytes(self, path: str) -> bytes: ...

    def write_atomic(self, path: str, data: bytes) -> None:
        """Replace the content of a file, durably.

        A crash leaves the old or the new content, never a mixture.
        """

    def rename(self, old: str, new: str) -> None:
        """Rename a file or a directory; durable after `sync_dir`."""

    def remove(self, path: str) -> None:
        """Remove a file; open ranges stay readable. A missing file is ignored."""

    def listdir(self, path: str) -> list[str]:
        """Return the sorted names in a directory; empty for a missing directory."""

    def mkdir(self, path: str) -> None:
        """Create a directory and its parents; an existing one is ignored."""

    def rmtree(self, path: str) -> None:
        """Remove a directory and its content; a missing one is ignored."""

    def exists(self, path: str) -> bool: ...

    def is_directory(self, path: str) -> bool:
        """Return True if `path` is a directory."""

    def size(self, path: str) -> int: ...

    def usage(self, path: str) -> tuple[int, int]:
        """Return the usable and the free bytes of the file system that holds `path`.

        Space that is reserved for root or limited by quotas is not counted, as in `df`.
        """

    def allocate(self, path: str, size: int) -> None:
        """Create a file that occupies `size` bytes; its content is undefined. It must not exist."""

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory survive a power failure; blocks."""

    def at_once(self, calls: Calls, threads_max: int | None = None) -> None:
        """Run calls that sync, in any order and possibly concurrently; blocks.

        Args:
            calls: Functions to call.
            threads_max: Maximum number of concurrent calls; None for the best number.

        Raises:
            Exception: The first exception of a call; calls that have not started are skipped.
        """

    def lock(self, path: str) -> Lock:
        """Lock a lock file and its directory.

        Raises StorageError if another process holds one of them.
        """


# -- the operating system


def _fsync_call() -> Callable[[int], None]:
    """Return the cheapest call of this platform after which bytes survive a power failure."""
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
        if error.errno not in UNSUPPORTED_ERRORS:
            raise
        _write_zeros(fd, size)


def _open_private(path: str, flags: int) -> int:
    """Open a file that is accessible to its owner only; `opener` for `open`."""
    return os.open(path, flags, _PRIVATE_FILE)


def _write_joined(fd: int, parts: Sequence[Buffer]) -> int:
    return os.write(fd, b"".join(parts))


def _seek_read(fd: int, size: int, position: int) -> bytes:
    # The file position does not affect appends: the file is in append mode.
    os.lseek(fd, position, os.SEEK_SET)
    return os.read(fd, size)


_fsync = _fsync_call()
_writev: Callable[[int, Sequence[Buffer]], int] = getattr(os, "writev", _write_joined)
_allocate: Callable[[int, int], None] = (
    _posix_allocate if hasattr(os, "posix_fallocate") else _write_zeros
)
_pread: Callable[[int, int, int], bytes] = getattr(os, "pread", _seek_read)
_APPEND = (
    os.O_RDWR | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
)  # O_BINARY: Windows only


_READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
# Bytes per read call.
_READ_SIZE = 64 * 1024
# Bytes per write call when a file is filled with zeros.
_ZEROS = 1024 * 1024


_PRIVATE_FILE, _PRIVATE_DIRECTORY = 0o600, 0o700
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NO_PERMISSION = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


@contextlib.contextmanager
def _translate_errors(action: str, path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _read_error(action, path, error) from error


def _read_error(action: str, path: str, error: OSError) -> StorageError:
    """Return the exception for a failed call that does not write."""
    reason = error.strerror or str(error)
    if error.errno in READ_FAILURES:
        return UnreadableError(path, reason)
    return StorageError(f"cannot {action} {path}: {reason}")


@contextlib.contextmanager
def _translate_open_errors(path: str, *, create: bool, read_only: bool) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if read_only or (error.errno in READ_FAILURES and not create):
            raise _read_error("open", path, error) from error
        raise _write_error("open", path, error) from error


@contextlib.contextmanager
def _translate_sync_errors(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SyncFailedError(f"cannot sync {path}: {error.strerror or error}", path) from error


@contextlib.contextmanager
def _translate_temporary_sync_errors(path: str) -> Iterator[None]:
    """Report ENOSPC as a write error: no data relies on a temporary file yet."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise
        raise SyncFailedError(f"cannot sync {path}: {error.strerror or error}", path) from error


def one_by_one(calls: Calls, threads_max: int | None = None) -> None:
    """Run calls in order; the first exception ends the run."""
    for call in calls:
        call()


@contextlib.contextmanager
def _translate_write_errors(action: str, path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _write_error(action, path, error) from error


def _write_error(action: str, path: str, error: OSError) -> StorageError:
    text = f"cannot {action} {path}: {error.strerror or error}{_advice(error)}"
    # Missing file descriptors are a problem of the process, not of the directory.
    return StorageError(text) if error.errno in _NO_DESCRIPTORS else WriteRefusedError(text)


def _advice(error: OSError) -> str:
    if error.errno in _NO_SPACE:
        return "; free some space there"
    if error.errno in _NO_PERMISSION:
        return "; make it writable for this user, or choose another directory"
    return ""


class _Handle:
    """A file descriptor that is closed when its file and all ranges of it are released."""

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


def truncate_torn(file: File) -> None:
    """Truncate the bytes that a failed append left at the end. Raises WriteRefusedError."""
    if file.is_torn:
        file.truncate(file.size)


class OsFile:
    """A file of the operating system, in append mode unless it is read-only."""

    __slots__ = ("_fd", "_handle", "is_torn", "path", "size")

    def __init__(self, path: str, *, create: bool, read_only: bool = False) -> None:
        mode = _READ if read_only else _APPEND | (os.O_CREAT if create else 0)
        with _translate_open_errors(path, create=create, read_only=read_only):
            self._fd = os.open(path, mode, _PRIVATE_FILE)
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
                self._truncate_to(position)
            if _writev(self._fd, parts) != total:
                self._write_rest(b"".join(parts))
        except OSError as error:
            self._undo_append(position)
            raise _write_error("append to", self.path, error) from error
        except MemoryError:
            self._undo_append(position)
            raise
        self.size = position + total
        return position

    def _write_rest(self, data: bytes) -> None:
        """Continue after a short write; the next call usually raises the error that caused it."""
        done = os.fstat(self._fd).st_size - self.size
        view = memoryview(data)
        while done < len(data):
            done += os.write(self._fd, view[done:])

    def _undo_append(self, position: int) -> None:
        """Truncate the bytes of a failed append; if that fails, the next append retries."""
        self.is_torn = True
        with contextlib.suppress(OSError):
            self._truncate_to(position)

    def _truncate_to(self, position: int) -> None:
        """Truncate the file to `position`. Raises OSError."""
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
        with _translate_write_errors("truncate", self.path):
            self._truncate_to(size)
        self.size = size

    def sync(self) -> None:
        handle = self._handle  # keeps the descriptor open while a worker thread is in the call
        if handle is None:
            return
        with _translate_sync_errors(self.path):
            _fsync(handle.fd)

    def close(self) -> None:
        self._handle = None
        self._fd = -1


def _locked_error(path: str) -> StorageError:
    return StorageError(
        f"{path} is locked: another broker uses this data directory; stop it, or choose another "
        "directory with --data-dir"
    )


def _lock_error(path: str, error: OSError) -> StorageError:
    return StorageError(f"cannot lock {path}: {error.strerror or error}{_advice(error)}")


class _FileLock:
    """A lock file plus a lock on its directory, which survives the removal of the lock file."""

    __slots__ = ("_directory", "_lock")

    def __init__(self, lock: filelock.BaseFileLock, directory: int | None) -> None:
        self._lock = lock
        self._directory = directory

    def release(self) -> None:
        directory, self._directory = self._directory, None
        if directory is not None:
            _unlock_directory(directory)
        self._lock.release()


def _lock_directory(path: str) -> int | None:
    """Lock a directory if the system supports that; return a descriptor that holds the lock.

    Raises BlockingIOError if it is locked by another process.
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
    """Unlock a directory even if a forked child has inherited the descriptor."""
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


class OsFiles:
    """Files of the operating system.

    Args:
        read_only: The files belong to another process; `open` opens them for reading only.
        at_once: Implementation of `Files.at_once`; the default runs the calls one by one.
    """

    durable = True

    def __init__(self, *, read_only: bool = False, at_once: AtOnce = one_by_one) -> None:
        self._read_only = read_only
        self._at_once = at_once

    def open(self, path: str, *, create: bool = False) -> OsFile:
        return OsFile(path, create=create, read_only=self._read_only)

    def read_bytes(self, path: str) -> bytes:
        # Does not use `open`, which takes longer than reading a small file.
        with _translate_errors("read", path):
            fd = os.open(path, _READ)
            if must_not_wait():
                return _Handle(fd, path).read(0, os.fstat(fd).st_size)
            try:
                return b"".join(iter(lambda: os.read(fd, _READ_SIZE), b""))
            finally:
                os.close(fd)

    def write_atomic(self, path: str, data: bytes) -> None:
        temporary = path + ".tmp"
        with _translate_write_errors("write", path):
            with open(temporary, "wb", opener=_open_private) as file:
                file.write(data)
                file.flush()
                with _translate_temporary_sync_errors(temporary):
                    _fsync(file.fileno())
            os.replace(temporary, path)
        self.sync_dir(path.rpartition("/")[0] or ".")

    def rename(self, old: str, new: str) -> None:
        with _translate_write_errors("rename", old):
            os.replace(old, new)

    def remove(self, path: str) -> None:
        with _translate_write_errors("remove", path), contextlib.suppress(FileNotFoundError):
            try:
                os.unlink(path)
            except PermissionError:
                # Windows keeps a file that a range still reads; a later load removes it.
                if os.name != "nt":
                    raise

    def listdir(self, path: str) -> list[str]:
        with _translate_errors("list", path):
            try:
                return sorted(os.listdir(path))
            except FileNotFoundError:
                return []

    def mkdir(self, path: str) -> None:
        try:
            os.makedirs(path, _PRIVATE_DIRECTORY, exist_ok=True)
        except OSError as error:
            raise _write_error("create", path, error) from error

    def rmtree(self, path: str) -> None:
        with _translate_write_errors("remove", path), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def size(self, path: str) -> int:
        with _translate_errors("measure", path):
            return os.stat(path).st_size

    def usage(self, path: str) -> tuple[int, int]:
        with _translate_errors("measure the disk of", path):
            found = shutil.disk_usage(path)
        return found.used + found.free, found.free

    def allocate(self, path: str, size: int) -> None:
        with _translate_write_errors("create", path):
            fd = os.open(path, _NEW, _PRIVATE_FILE)
            try:
                _allocate(fd, size)
            except OSError:
                os.unlink(path)
                raise
            finally:
                os.close(fd)

    def sync_dir(self, path: str) -> None:
        if os.name == "nt":  # Windows cannot flush a directory
            return
        with _translate_errors("open", path):
            fd = os.open(path, os.O_RDONLY)
        try:
            with _translate_sync_errors(path):
                os.fsync(fd)
        finally:
            os.close(fd)

    def at_once(self, calls: Calls, threads_max: int | None = None) -> None:
        self._at_once(calls, threads_max)

    def lock(self, path: str) -> Lock:
        lock = filelock.FileLock(path, mode=_PRIVATE_FILE)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            raise _locked_error(path) from None
        except OSError as error:
            raise _lock_error(path, error) from error
        try:
            return _FileLock(lock, _lock_directory(path.rpartition("/")[0] or "."))
        except OSError as error:
            lock.release()
            if isinstance(error, BlockingIOError):
                raise _locked_error(path) from None
            raise _lock_error(path, error) from error


# -- memory

_BLOCK_MIN = 4 * 1024
_BLOCK_MAX = 1024 * 1024


class MemFile:
    """A file in memory: a list of blocks that never move, so views of them stay valid."""

    __slots__ = ("_blocks", "_free", "_owner", "_starts", "fd", "path", "size")
    is_torn = False

    def __init__(self, owner: MemFiles, path: str) -> None:
        self._owner = owner
        self._blocks: list[memoryview] = []
        self._starts: list[int] = []  # file position of each block's first byte
        self._free = 0  # free bytes at the end of the last block
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
            self._truncate_to(position)  # no reader has seen these bytes
            raise
        return position

    def store(self, parts: Sequence[Buffer]) -> None:
        """Append without checking the memory limit."""
        for part in parts:
            length = len(part)
            if length <= self._free:
                block = self._blocks[-1]
                start = len(block) - self._free
                block[start : start + length] = part
                self._free -= length
                self.size += length
            else:
                self._append_across(memoryview(part))

    def _append_across(self, part: memoryview) -> None:
        while len(part) > 0:
            if self._free == 0:
                self._grow(len(part))
            block = self._blocks[-1]
            start = len(block) - self._free
            taken = min(self._free, len(part))
            block[start : start + taken] = part[:taken]
            self._free -= taken
            self.size += taken
            part = part[taken:]

    def _grow(self, needed: int) -> None:
        length = max(_BLOCK_MIN, min(max(needed, self.size), _BLOCK_MAX))
        self._blocks.append(memoryview(bytearray(length)))
        self._starts.append(self.size)
        self._free = length

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
        self._truncate_to(size)
        if self._blocks:
            # Copy the block: responses may still hold views of the truncated bytes.
            self._blocks[-1] = memoryview(bytearray(self._blocks[-1]))

    def _truncate_to(self, size: int) -> None:
        keep = bisect_right(self._starts, size - 1)
        del self._blocks[keep:], self._starts[keep:]
        self.size = size
        self._free = len(self._blocks[-1]) - (size - self._starts[-1]) if keep else 0

    def sync(self) -> None:
        pass

    def close(self) -> None:
        pass

    def fork(self, owner: MemFiles) -> MemFile:
        """Return a copy for `owner` that shares the blocks; shared blocks are not appended to."""
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
    """Files in memory that are lost when the process ends.

    `limit` is the maximum total size in bytes (`memory.limit.bytes`). An append beyond it raises
    StorageError and changes nothing.
    """

    durable = False

    def __init__(self, *, limit: int = 1 << 30) -> None:
        self.limit = limit
        self._used = 0
        self._freed = False  # a file was removed since `_used` was computed
        self._directories: dict[str, dict[str, MemFile | None]] = {}  # None means a directory
        self._locks: set[str] = set()

    def fork(self) -> MemFiles:
        """Return an independent copy of all files.

        The copies share the written bytes, which never change, so the cost does not depend on the
        size.
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
        """Total size of all files in bytes."""
        if self._freed:
            self._freed = False
            # Recomputed: a worker thread may remove files while the owner appends.
            directories = list(self._directories.values())
            files = [file for names in directories for file in list(names.values())]
            self._used = sum(file.size for file in files if file)
        return self._used

    def claim(self, size: int) -> None:
        """Add `size` (may be negative) to the used bytes. Raises StorageError at the limit."""
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
        file.store([data])  # not limited: small, and may be needed to free memory
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
            raise _locked_error(path)
        return _MemLock(self._locks, path)
