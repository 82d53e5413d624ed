"""Reads that do not wait for a disk: what is not in memory is loaded somewhere else first.

An event loop that waits for a disk lets all clients wait, because one of them reads what is old. So
whatever it reads is read by `only_cached`, and where something is not in the system's page cache
NotCached is raised: a worker thread calls its `load`, and then the same is read once more.

Linux tells what is cached (preadv2 with RWF_NOWAIT, since 4.14, on most file systems). Where the system
cannot tell, everything counts as cached.
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

LOOK_BYTES = 128 * 1024
"""What Linux reads ahead at once, if it is not told otherwise."""

NOT_KNOWN_THERE = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
"""What a call says that a system or a file system does not have."""
_NO_WAIT: int = getattr(os, "RWF_NOWAIT", 0)
_must_not_wait: ContextVar[bool] = ContextVar("must_not_wait", default=False)


class OpenFile(Protocol):
    """What keeps a descriptor open."""

    @property
    def fd(self) -> int | None: ...

    @property
    def path(self) -> str: ...


class NotCached(Exception):
    """Bytes that a read needs are on the disk only: `size` of them from `position`."""

    def __init__(self, file: OpenFile, position: int, size: int) -> None:
        super().__init__(f"{size} bytes from {position} on are not in memory")
        self.file = file
        self.position = position
        self.size = size
        self.failure: UnreadableError | None = None
        """Why `load` could not read it."""

    @property
    def end(self) -> int:
        """Where what `load` loads ends."""
        return self.position + max(self.size, LOOK_BYTES)

    def has_loaded(self, another: NotCached) -> bool:
        """Whether `load` has loaded that, too."""
        is_same = self.file.path == another.file.path and self.position <= another.position
        return is_same and another.position + another.size <= self.end

    def load(self) -> None:
        """Have the system read them from the disk. Blocks; any thread may call it.

        What the disk cannot read is in `failure` then; other errors are for the next read to tell.
        """
        fd = self.file.fd
        assert fd is not None
        position, end = self.position, self.end
        with self._failure_noted(), open(os.devnull, "wb") as nowhere:
            # As much again is asked for behind them: who reads old records mostly goes on, and the disk
            # works while these are sent. More would keep its queue so full that looks have to wait.
            os.posix_fadvise(fd, position, end - position + self.size, os.POSIX_FADV_WILLNEED)
            # A sixth of what it costs to read them: they are not copied.
            while position < end and (
                size := os.sendfile(nowhere.fileno(), fd, position, end - position)
            ):
                position += size

    @contextlib.contextmanager
    def _failure_noted(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in READ_FAILURES:
                self.failure = UnreadableError(self.file.path, str(error.strerror))


class Reading(Protocol):
    """How something is read: `only_cached` or `waiting`."""

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
    """Call `read`, which raises NotCached instead of waiting for a disk.

    It may have done a part of its work by then, and is called again. It must not call anybody who reads
    for others, nor start a task, which would inherit this.
    """
    token = _must_not_wait.set(True)
    try:
        return read(*args, **kwargs)
    except NotCached as absent:
        absent.__context__ = None  # its frames are of no use, and keep files open
        raise
    finally:
        _must_not_wait.reset(token)


def waiting(
    read: Callable[Arguments, Result], /, *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    """Call `read`, which waits for a disk, also within `only_cached`: it must not stop half-way."""
    token = _must_not_wait.set(False)
    try:
        return read(*args, **kwargs)
    finally:
        _must_not_wait.reset(token)


def failing(error: UnreadableError) -> Reading:
    """A way to read for what could not be loaded: it raises `error`."""

    def refuse(
        read: Callable[Arguments, Result], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        raise error

    return refuse


def must_not_wait() -> bool:
    """Whether who reads now is called by `only_cached`."""
    return _must_not_wait.get() and _NO_WAIT != 0


def read_cached(file: OpenFile, position: int, size: int) -> bytearray | None:
    """Up to `size` bytes, fewer only at the end of the file; None where the system cannot tell what is
    cached. Raises NotCached, and OSError."""
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
        if error.errno in NOT_KNOWN_THERE:
            return None
        raise
    del buffer[done:]
    return buffer


def uncached_range(file: OpenFile, position: int, size: int) -> NotCached | None:
    """Return the range to load before a read of `size` bytes, or None if the page cache has it.

    The function samples one byte per `LOOK_BYTES`, because the system reads more than a page at once.
    """
    fd, byte = file.fd, [bytearray(1)]
    if not _NO_WAIT or fd is None or size <= 0:
        return None
    try:
        for at in (*range(position, position + size - 1, LOOK_BYTES), position + size - 1):
            os.preadv(fd, byte, at, _NO_WAIT)
    except BlockingIOError:
        return NotCached(file, position, size)
    except OSError:
        pass  # nobody can tell, or the read does
    return None
