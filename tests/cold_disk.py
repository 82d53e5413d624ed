"""A fake page cache: files that are on disk only, and the threads that wait for them."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kbroker.storage import cached, files

PAGE = 4096


class ColdDisk:
    """A layer between this process and its files that tracks which data is in memory.

    The current data of a directory is not in memory until a call has read it.

    Attributes:
        waits: Calls of the creating thread (the event loop) that would have waited for a disk.
        loads: Number of such calls of other threads.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        self.waits: list[str] = []
        self.loads = 0
        self.broken: set[int] = set()
        """Files, by inode, of which the disk cannot read what is not in memory."""
        self._loop = threading.get_ident()
        found = [path.stat() for path in directory.rglob("*") if path.is_file()]
        self._sizes = {each.st_ino: each.st_size for each in found}
        self._present: set[tuple[int, int]] = set()
        self._preadv, self._pread = os.preadv, os.pread
        self._read, self._sendfile = os.read, os.sendfile
        monkeypatch.setattr(cached, "_NO_WAIT", os.RWF_NOWAIT)
        monkeypatch.setattr(os, "preadv", self.preadv)
        monkeypatch.setattr(os, "pread", self.pread)
        monkeypatch.setattr(os, "read", self.read)
        monkeypatch.setattr(os, "sendfile", self.sendfile)
        monkeypatch.setattr(files, "_pread", self.pread)

    def break_files(self, directory: Path, pattern: str = "*") -> None:
        """Make reads from disk fail for the files of a directory."""
        self.broken |= {each.stat().st_ino for each in directory.glob(pattern)}

    def preadv(self, fd: int, buffers: Sequence[Any], position: int, flags: int = 0) -> int:
        size = sum(map(len, buffers))
        if flags & os.RWF_NOWAIT:
            if self._absent(fd, position, size):
                raise BlockingIOError(errno.EAGAIN, "it is on the disk")
        else:
            self._reads("preadv", fd, position, size)
        return self._preadv(fd, buffers, position)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self._reads("pread", fd, position, size)
        return self._pread(fd, size, position)

    def read(self, fd: int, size: int) -> bytes:
        if os.fstat(fd).st_ino in self._sizes:
            self._reads("read", fd, os.lseek(fd, 0, os.SEEK_CUR), size)
        return self._read(fd, size)

    def sendfile(self, to: int, fd: int, position: int, size: int) -> int:
        self._reads("sendfile", fd, position, size)
        return self._sendfile(to, fd, position, size)

    def _absent(self, fd: int, position: int, size: int) -> set[tuple[int, int]]:
        inode = os.fstat(fd).st_ino
        end = min(position + size, self._sizes.get(inode, 0))
        pages = range(position // PAGE, -(-end // PAGE))
        return {(inode, page) for page in pages} - self._present

    def _reads(self, call: str, fd: int, position: int, size: int) -> None:
        absent = self._absent(fd, position, size)
        if not absent:
            return
        if os.fstat(fd).st_ino in self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._present |= absent
        if threading.get_ident() == self._loop:
            self.waits.append(
                f"{call} of {size} bytes from {position} of {os.readlink(f'/proc/self/fd/{fd}')}"
            )
        else:
            self.loads += 1
