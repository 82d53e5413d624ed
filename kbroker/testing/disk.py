"""A disk that fails on demand: power cuts at named points, failing syncs, no space, flipped bits."""

from __future__ import annotations

import errno as errors
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from kbroker.protocol.records import HEADER_SIZE, iter_headers
from kbroker.storage.crash_files import CrashFile, CrashFiles, Mode
from kbroker.storage.errors import StorageError
from kbroker.storage.naming import CLEAN_SHUTDOWN, folder_name

FOLDER = "disk"
"""The data folder of a broker on such a disk."""
Matcher = Callable[[str, str], bool]


def _is_log(path: str) -> bool:
    return path.endswith(".log") and "/__" not in path


POINTS: dict[str, Matcher] = {
    # between the arrival of records and their bytes in the file
    "produce.received": lambda kind, path: kind == "write" and _is_log(path),
    # between the bytes and their sync
    "produce.appended": lambda kind, path: kind in ("sync", "syncfs") and _is_log(path),
    # between the sync and the ack
    "produce.synced": lambda kind, path: kind == "synced" and _is_log(path),
    "commit.appended": lambda kind, path: (
        kind == "sync" and path.endswith(".log") and "/__consumer_offsets" in path
    ),
    "segment.created": lambda kind, path: kind == "created" and _is_log(path),
    "index.written": lambda kind, path: kind == "sync" and path.endswith("index"),
    "checkpoint.written": lambda kind, path: kind == "rename" and "checkpoint" in path,
    "clean_marker.written": lambda kind, path: kind == "rename" and CLEAN_SHUTDOWN in path,
    "compaction.cleaned": lambda kind, path: kind == "rename" and path.endswith(".cleaned"),
}
"""Where a crash can be put: each lies between one step and the next."""


class PowerCut(BaseException):
    """The machine is off. Nothing may handle it: the broker ends where it is."""


@dataclass(slots=True)
class _Trap:
    matches: Matcher
    mode: Mode
    seed: int


class Disk(CrashFiles):
    """The disk of one broker. What was not synced is lost in a power cut, as the mode says:

    `drop` loses all of it, `torn` a random part of its sectors, `lost-name` also the names of files
    whose folder was not synced, `mixed` a random part of everything.
    """

    def __init__(self) -> None:
        super().__init__()
        self.after_cut: CrashFiles | None = None
        """What the next start finds, once the power has been cut."""
        self._trap: _Trap | None = None
        self._failures: list[tuple[str, int]] = []
        self._pause_seconds = 0.0

    def crash_at(self, point: str, mode: Mode, seed: int) -> None:
        """Cut the power when the broker comes to a point. Raises ValueError for an unknown one."""
        if point not in POINTS:
            raise ValueError(f"there is no point {point!r}; there are {', '.join(POINTS)}")
        self._trap = _Trap(POINTS[point], mode, seed)

    def cut(self, mode: Mode, seed: int) -> None:
        """Cut the power now; everything after this fails."""
        if self.after_cut is None:
            self.after_cut = self.crashed(mode, seed)

    # -- what a test arms

    def fail(self, operation: str, number: int = errors.EIO) -> None:
        """Let the next "sync" or "write" fail with an error of the system (EIO, ENOSPC ...)."""
        if operation not in ("sync", "write"):
            raise ValueError(f"operation is sync or write, not {operation!r}")
        self._failures.append((operation, number))

    def full(self, free: int = 0) -> None:
        """Leave room for so many bytes only."""
        self.capacity = self.used() + free

    def slow(self, milliseconds: float) -> None:
        """Let each sync take that much longer; 0 makes it fast again."""
        self._pause_seconds = milliseconds / 1000

    def flip(self, topic: str, partition: int, offset: int, bit: int = 0) -> None:
        """Flip a bit of the batch that holds a record, counted from the end of its header.

        Raises ValueError when the partition does not hold it.
        """
        folder = f"/{FOLDER}/{folder_name(topic, partition)}"
        for name in self.listdir(folder):
            if not name.endswith(".log"):
                continue
            data = bytearray(self.read_bytes(f"{folder}/{name}"))
            for position, header in iter_headers(data):
                if header.base_offset <= offset <= header.last_offset:
                    data[position + HEADER_SIZE + bit // 8] ^= 1 << bit % 8
                    self.damage(f"{folder}/{name}", bytes(data))
                    return
        raise ValueError(f"{topic}-{partition} does not hold offset {offset}")

    # -- what the broker does

    def open(self, path: str, *, create: bool = False) -> CrashFile:
        is_new = create and not self.exists(path)
        file = super().open(path, create=create)
        if is_new:
            self._look("created", path)
        return _DiskFile(self, file)

    def announce(self, kind: str, path: str) -> None:
        super().announce(kind, path)
        self._look(kind, path)
        if kind == "sync" and self._pause_seconds:
            time.sleep(self._pause_seconds)
        for index, (operation, number) in enumerate(self._failures):
            if operation == kind:
                del self._failures[index]
                raise StorageError(f"{kind} of {path}: {os.strerror(number)}")

    def synced(self, path: str) -> None:
        """A sync has been done."""
        self._look("synced", path)

    def _look(self, kind: str, path: str) -> None:
        if self.after_cut is not None:
            raise StorageError("the power is off")
        trap = self._trap
        if trap is not None and trap.matches(kind, path):
            self._trap = None
            self.cut(trap.mode, trap.seed)
            raise PowerCut

    def restarted(self) -> Disk:
        """The disk as the next start finds it."""
        disk = Disk()
        disk.capacity = self.capacity
        disk._root = (self.after_cut or self)._root
        return disk


class _DiskFile(CrashFile):
    """A file that tells when a sync is done."""

    __slots__ = ()

    def __init__(self, disk: Disk, file: CrashFile) -> None:
        super().__init__(disk, file._inode, file.path)

    def sync(self) -> None:
        super().sync()
        assert isinstance(self._files, Disk)
        self._files.synced(self.path)
