"""Non-blocking reads: data that is not in the page cache is loaded in another thread first.

If an event loop waited for the disk, one client that reads old records would delay all other
clients. So the loop reads through `only_cached`, which raises NotCached if data is not in the page
cache. A worker thread then calls its `load`, and the read is repeated.

Linux reports which data is cached (preadv2 with RWF_NOWAIT, since 4.14, on most file systems). On
other systems all data is treated as cached.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import ParamSpec, Protocol, TypeVar

from .errors import READ_FAILURES, UnreadableError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# Default readahead of Linux in bytes.
READAHEAD_BYTES = 128 * 1024

# Error numbers of calls that a system or file system does not support.
UNSUPPORTED_ERRORS = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
_NO_WAIT: int = getattr(os, "RWF_NOWAIT", 0)
_must_not_wait: ContextVar[bool] = ContextVar("must_not_wait", default=False)


class OpenFile(Protocol):
    """An object that keeps a file descriptor open."""

    @property
    def fd(self) -> int | None: ...

    @property
    def path(self) -> str: ...


class NotCached(Exception):
    """A read needs `size` bytes from `position` on, which are not in the page cache."""

    def __init__(self, file: OpenFile, position: int, size: int) -> None:
        super().__init__(f"{size} bytes from position {position} are not in the page cache")
        self.file = file
        self.position = position
        self.size = size
        # Error of `load`, if the disk could not read the data.
        self.failure: UnreadableError | None = None

    @property
    def end(self) -> int:
        """End position of the data that `load` reads."""
        return self.position + max(self.size, READAHEAD_BYTES)

    def has_loaded(self, another: NotCached) -> bool:
        """Return True if `load` has also loaded the range of `another`."""
        is_same = self.file.path == another.file.path and self.position <= another.position
        return is_same and another.position + another.size <= self.end

    def load(self) -> None:
        """Load the data into the page cache; blocks. Any thread may call it.

        A read error of the disk is stored in `failure`; the next read reports other errors.
        """
        fd = self.file.fd
        assert fd is not None
        position, end = self.position, self.end
        with self._store_failure(), open(os.devnull, "wb") as devnull:
            # Also request the next range of the same size: most readers continue, and the disk
            # works while this range is sent. A larger request would delay other reads in the disk
            # queue.
            os.posix_fadvise(fd, position, end - position + self.size, os.POSIX_FADV_WILLNEED)
            # sendfile to /dev/null takes a sixth of the time of a read, as it does not copy.
            while position < end and (
                size := os.sendfile(devnull.fileno(), fd, position, end - position)
            ):
                position += size

    @contextlib.contextmanager
    def _store_failure(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in READ_FAILURES:
                self.failure = UnreadableError(self.file.path, str(error.strerror))


class Reading(Protocol):
    """A function that runs a read: `only_cached` or `waiting`."""

    def __call__(
        self,
        read: Callable[Arguments, Result],
        /,
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result: ...


def only_cached(
    read: Callable[Arguments, Result], /, *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    """Call `read`, which raises NotCached instead of blocking on the disk.

    `read` may be called again after part of its work is done. It must not read for other requests
    and must not start a task, which would inherit this mode.
    """
    token = _must_not_wait.set(True)
    try:
        return read(*args, **kwargs)
    except NotCached as absent:
        absent.__context__ = None  # its traceback would keep files open
        raise
    finally:
        _must_not_wait.reset(token)


def waiting(
    read: Callable[Arguments, Result], /, *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    """Call `read` in blocking mode, even within `only_cached`: it must not be interrupted."""
    token = _must_not_wait.set(False)
    try:
        return read(*args, **kwargs)
    finally:
        _must_not_wait.reset(token)


def failing(error: UnreadableError) -> Reading:
    """Return a `Reading` that raises `error`, for data that could not be loaded."""

    def refuse(
        read: Callable[Arguments, Result], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        raise error

    return refuse


def must_not_wait() -> bool:
    """Return True within `only_cached`, if the system supports it."""
    return _must_not_wait.get() and _NO_WAIT != 0


def read_cached(file: OpenFile, position: int, size: int) -> bytearray | None:
    """Read up to `size` bytes, fewer only at the end of the file; None if the system cannot tell.

    Raises NotCached if not all bytes are in the page cache, and OSError.
    """
    assert file.fd is not None
    buffer = bytearray(size)
    done = 0
    try:
        while done < size:
            view = memoryview(buffer)[done:]
            more = os.preadv(file.fd, [view], position + done, _NO_WAIT)
            view.release()
            if not more:
                break
            done += more
    except BlockingIOError:
        raise NotCached(file, position, size) from None
    except OSError as error:
        if error.errno in UNSUPPORTED_ERRORS:
            return None
        raise
    del buffer[done:]
    return buffer


def uncached_range(file: OpenFile, position: int, size: int) -> NotCached | None:
    """Return the range to load before a read of `size` bytes, or None if it is in the page cache.

    The function samples one byte per `READAHEAD_BYTES`, because the kernel reads ahead that much.
    """
    fd, byte = file.fd, [bytearray(1)]
    if not _NO_WAIT or fd is None or size <= 0:
        return None
    try:
        for at in (*range(position, position + size - 1, READAHEAD_BYTES), position + size - 1):
            os.preadv(fd, byte, at, _NO_WAIT)
    except BlockingIOError:
        return NotCached(file, position, size)
    except OSError:
        pass  # unsupported, or the read reports the error
    return None
