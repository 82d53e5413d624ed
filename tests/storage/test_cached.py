"""Non-blocking reads of real files that are not in the page cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kbroker.storage import cached
from kbroker.storage.cached import READAHEAD_BYTES, NotCached, only_cached, waiting
from kbroker.storage.files import File, OsFiles

DATA = bytes(range(256)) * (3 * READAHEAD_BYTES // 256)


class Forgetful:
    """A page cache that contains only what was loaded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loaded: list[tuple[int, int]] = []
        self._sendfile, self._preadv = os.sendfile, os.preadv
        monkeypatch.setattr(cached, "_NO_WAIT", 8)
        monkeypatch.setattr(os, "sendfile", self.sendfile)
        monkeypatch.setattr(os, "preadv", self.preadv)

    def sendfile(self, to: int, fd: int, position: int, size: int) -> int:
        sent = self._sendfile(to, fd, position, size)
        self.loaded.append((position, position + sent))
        return sent

    def preadv(self, fd: int, buffers: list[bytearray], position: int, flags: int) -> int:
        end = min(position + sum(map(len, buffers)), os.fstat(fd).st_size)
        if position < end and not any(a <= position and end <= b for a, b in self.loaded):
            raise BlockingIOError
        return self._preadv(fd, buffers, position)


@pytest.fixture
def file(tmp_path: Path) -> File:
    opened = OsFiles().open(str(tmp_path / "a.log"), create=True)
    opened.append([DATA])
    return opened


def missed(file: File, position: int, size: int) -> NotCached:
    """Return the exception of a read that would block."""
    with pytest.raises(NotCached) as raised:
        only_cached(file.read, position, size)
    return raised.value


def test_uncached_bytes_are_loaded_and_read(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    system = Forgetful(monkeypatch)
    absent = missed(file, 1000, 50)
    assert (absent.position, absent.size) == (1000, 50)
    absent.load()
    assert system.loaded == [(1000, 1000 + READAHEAD_BYTES)]
    assert only_cached(file.read, 1000, 50) == DATA[1000:1050]


def test_read_at_the_end_of_a_file_does_not_wait(
    file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    Forgetful(monkeypatch)
    absent = missed(file, len(DATA) - 10, 100)
    absent.load()
    assert only_cached(file.read, len(DATA) - 10, 100) == DATA[-10:]
    assert only_cached(file.read, len(DATA), 100) == b""


def test_uncached_gap_between_cached_bytes_is_found(
    file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ends are cached, but not the bytes between them."""
    system = Forgetful(monkeypatch)
    size = len(DATA)
    system.loaded = [(0, 4096), (size - 4096, size)]
    found = file.range(0, size)
    assert isinstance(found.uncached_range(size), NotCached)
    assert found.uncached_range(4096) is None
    system.loaded.append((0, size))
    assert found.uncached_range(size) is None


def test_blocking_read_within_only_cached_waits(
    file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    Forgetful(monkeypatch)

    def steps() -> bytes:
        return waiting(file.read, 0, 5)

    assert only_cached(steps) == DATA[:5]


def test_other_disk_error_is_reported_by_the_next_read(
    file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    Forgetful(monkeypatch)
    absent = missed(file, 0, 5)

    def broken(*_: object) -> int:
        raise OSError("the disk is broken")

    monkeypatch.setattr(os, "sendfile", broken)
    absent.load()
    assert absent.has_loaded(missed(file, 0, 5))  # so the next read blocks and raises the error


def test_ordinary_reads_wait(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    Forgetful(monkeypatch)
    assert file.read(0, 5) == DATA[:5]


def test_written_bytes_are_cached_on_a_real_system(file: File) -> None:
    """Written bytes must not be reported as missing, on any file system."""
    assert only_cached(file.read, 0, len(DATA)) == DATA
