"""A disk that fails on demand: power cuts at named points, failing syncs, no space, torn writes."""

from __future__ import annotations

import errno as errors
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kbroker.cluster import OFFSETS_TOPIC
from kbroker.protocol.records import HEADER_SIZE, iter_headers, read_header, read_records
from kbroker.storage.crash_files import MODES, NO_LIMIT, CrashFile, CrashFiles, Mode, stable_copy
from kbroker.storage.errors import StorageError
from kbroker.storage.files import Buffer
from kbroker.storage.naming import CLEAN_SHUTDOWN, CLEANED, LOG, directory_name

from .given import check_number, one_of
from .transaction_steps import COMPLETED, MARKER, PREPARED, Step, parse_steps

DIRECTORY = "disk"
"""The data directory of a broker on such a disk."""
ANYWHERE = "/"
"""The directory that is full when there is no room for anything."""
SHOWN_BYTES = 128 * 1024
"""The size that the disk claims to have: a small one, of which a broker keeps little back."""
OFFSET_COMMIT_KEYS = (0, 1)
"""Versions of the keys of committed offsets; those of groups are others."""
Matcher = Callable[[str, str], bool]
MARKER_POINT = r"txn\.marker\([1-9]\d*\)"
"""The points that have a number: which marker of a transaction it is."""


def _is_log(path: str) -> bool:
    """Whether it holds the records of a topic of users."""
    return path.endswith(LOG) and "/__" not in path


POINTS: dict[str, Matcher] = {
    # between the arrival of records and their bytes in the file
    "produce.received": lambda kind, path: kind == "write" and _is_log(path),
    # between the bytes and their sync
    "produce.appended": lambda kind, path: kind == "written" and _is_log(path),
    # between the sync and the ack
    "produce.synced": lambda kind, path: kind == "synced" and _is_log(path),
    "commit.appended": lambda kind, path: kind == "commit",
    "segment.created": lambda kind, path: kind == "created" and _is_log(path),
    "index.written": lambda kind, path: kind == "sync" and path.endswith("index"),
    "checkpoint.written": lambda kind, path: kind == "rename" and "checkpoint" in path,
    "clean_marker.written": lambda kind, path: kind == "rename" and CLEAN_SHUTDOWN in path,
    "compaction.cleaned": lambda kind, path: kind == "rename" and path.endswith(CLEANED),
    # between the sync of the decision and the first marker
    PREPARED: lambda kind, _path: kind == PREPARED,
    # between the bytes that say that all markers are written, and their sync and the answer
    COMPLETED: lambda kind, _path: kind == COMPLETED,
}
"""Where a crash can be put: each lies between one step and the next."""
FAILING = {"fsync": "sync", "write": "write"}
"""What of a disk can fail, and the operation that it stands for."""


def _matcher(point: str) -> Matcher:
    """When the broker is at a point. Raises ValueError for an unknown one."""
    if re.fullmatch(MARKER_POINT, point):
        return lambda kind, _path: kind == point
    if point in POINTS:
        return POINTS[point]
    raise ValueError(f"there is no point {point!r}; there are {', '.join(POINTS)}, txn.marker(n)")


class PowerCut(BaseException):
    """The machine is off. Nothing may handle it: the broker ends where it is."""


class _Write(NamedTuple):
    """Bytes that were appended to a file."""

    path: str
    position: int
    size: int


@dataclass(slots=True)
class _CrashPoint:
    point: str
    matches: Matcher
    mode: Mode
    seed: int


@dataclass(slots=True)
class DiskFaults:
    """Armed faults of a disk that have not happened yet.

    They survive power cuts and the restore of a snapshot.
    """

    trap: _CrashPoint | None = None
    failures: list[tuple[str, int]] = field(default_factory=list)
    full: set[str] = field(default_factory=set)
    full_without_write: dict[str, str] = field(default_factory=dict)
    """Of the full directories those that have refused nothing yet, and how the test has said it."""
    pause_ms: float = 0
    paused: bool = False

    def unmet(self) -> list[str]:
        """A sentence for each thing that should have happened and did not."""
        reports = [
            f"disk.fail({operation!r}) hit nothing: there was no {operation} of records"
            for operation, _ in self.failures
        ]
        if self.trap is not None:
            reports.append(f"crash_at({self.trap.point!r}): the broker never came there")
        if self.pause_ms and not self.paused:
            reports.append(f"disk.slow({self.pause_ms:g}) slowed nothing: there was no sync")
        reports += [
            f"{said} refused nothing: there was no write that found no room"
            for said in list(self.full_without_write.values())
        ]
        return reports

    def fill(self, directory: str, said: str) -> None:
        """Let a directory be full from now on, if it is not so already."""
        if directory not in self.full:
            self.full_without_write[directory] = said
            self.full.add(directory)

    def free_space(self) -> None:
        """Make all directories writable again."""
        self.full.clear()
        self.full_without_write.clear()


class Disk(CrashFiles):
    """The disk of one broker. What was not synced is lost in a power cut, as the mode says:

    `drop` loses all of it, `torn` a random part of its sectors, `lost-name` also the names of files
    whose directory was not synced, `mixed` a random part of everything.
    """

    def __init__(self) -> None:
        super().__init__()
        self.after_cut: CrashFiles | None = None
        """What the next start finds, once the power has been cut."""
        self.has_partition: Callable[[str, int], bool] = lambda topic, partition: True
        """What the broker on this disk knows."""
        self.faults = DiskFaults()
        self._unsynced: dict[str, list[Step]] = {}
        """Logs that were written to after their last sync, and what that says of transactions."""
        self._markers: Counter[int] = Counter()
        self._last_write: _Write | None = None

    def crash_at(self, point: str, mode: Mode, seed: int) -> None:
        """Cut the power when the broker comes to a point. Raises ValueError for an unknown one."""
        mode = one_of("mode", mode, MODES)
        self.faults.trap = _CrashPoint(point, _matcher(point), mode, seed)

    def arm(self, faults: DiskFaults) -> None:
        """Replace the armed faults, with those of another disk for example."""
        self.faults = faults

    def cut(self, mode: Mode, seed: int) -> None:
        """Cut the power now; everything after this fails. Raises ValueError for another mode."""
        mode = one_of("mode", mode, MODES)
        if self.after_cut is None:
            self.after_cut = self.crashed(mode, seed)

    # -- what a test arms

    def fail(self, operation: str, number: int = errors.EIO) -> None:
        """Let the next "fsync" or "write" of records fail with an error of the system.

        Parameters: `number` is EIO, ENOSPC ... Raises ValueError for another operation.
        """
        if operation not in FAILING:
            raise ValueError(f"operation is {' or '.join(FAILING)}, not {operation!r}")
        self.faults.failures.append((operation, number))

    def full(self, topic: str | None = None, partition: int = 0, *, free: int = 0) -> None:
        """Leave no room: for a partition, or with `topic` None for anything above `free` bytes.

        A write must meet that before `free_space`, or the test fails. Where there is no room for
        anything the broker takes records again when it has found out that there is. Raises
        ValueError for a partition that does not exist.
        """
        check_number("free", free, 0)
        if topic is None:
            self.capacity = self.used() + free
            self.faults.fill(ANYWHERE, f"disk.full(free={free})")
        elif not self.has_partition(topic, partition):
            raise ValueError(f"there is no partition {topic}-{partition}; create it first")
        else:
            self.faults.fill(_directory(topic, partition), f"disk.full({topic!r}, {partition})")

    def free_space(self) -> None:
        """Undo every `full`."""
        self.capacity = NO_LIMIT
        self.faults.free_space()

    def slow(self, milliseconds: float) -> None:
        """Let each sync take that much longer; 0 makes it fast again."""
        check_number("milliseconds", milliseconds, 0)
        self.faults.pause_ms, self.faults.paused = milliseconds, False

    def tear_last_write(self) -> None:
        """Let only the first half of what was written last to a log be on the disk.

        Whether it was synced or not: a disk that lied. The broker knows nothing of it, so cut the
        power next. Raises ValueError when nothing was written since the start.
        """
        if self._last_write is None:
            raise ValueError("nothing was written to a log since the broker was started")
        path, position, size = self._last_write
        self.damage(path, self.read_bytes(path)[: position + size // 2])

    def flip(self, topic: str, partition: int, offset: int, bit: int = 0) -> None:
        """Flip a bit of the batch that holds a record, counted from the end of its header.

        Raises ValueError when the partition does not hold it.
        """
        directory = _directory(topic, partition)
        for name in self.listdir(directory):
            if not name.endswith(LOG):
                continue
            data = bytearray(self.read_bytes(f"{directory}/{name}"))
            for position, header in iter_headers(data):
                if header.base_offset <= offset <= header.last_offset:
                    data[position + HEADER_SIZE + bit // 8] ^= 1 << bit % 8
                    self.damage(f"{directory}/{name}", bytes(data))
                    return
        raise ValueError(f"{topic}-{partition} does not hold offset {offset}")

    # -- what the broker does

    def open(self, path: str, *, create: bool = False) -> CrashFile:
        is_new = create and not self.exists(path)
        file = super().open(path, create=create)
        if is_new:
            self._check_crash_point("created", path)
        return _DiskFile(self, file)

    def usage(self, path: str) -> tuple[int, int]:
        _, free = super().usage(path)
        return SHOWN_BYTES, min(free, SHOWN_BYTES // 2)

    def announce(self, kind: str, path: str) -> None:
        super().announce(kind, path)
        self._check_crash_point(kind, path)
        faults = self.faults
        if kind == FAILING["fsync"] and faults.pause_ms:
            faults.paused = True
            time.sleep(faults.pause_ms / 1000)
        directory = path.rpartition("/")[0]
        if kind == "write" and directory in faults.full:
            faults.full_without_write.pop(directory, None)
            raise StorageError(f"cannot append to {path}: {os.strerror(errors.ENOSPC)}")
        for index, (operation, number) in enumerate(faults.failures):
            if _is_log(path) and kind == FAILING[operation]:
                del faults.failures[index]
                raise StorageError(f"{operation} of {path}: {os.strerror(number)}")

    def before_write(self, size: int) -> None:
        """So many bytes are about to be written: the last moment to see that there is no room."""
        if ANYWHERE in self.faults.full_without_write and self.used() + size > self.capacity:
            self.faults.full_without_write.pop(ANYWHERE, None)

    def written(self, path: str, position: int, data: bytes) -> None:
        """Bytes are in a file, and not durable yet."""
        steps = list(parse_steps(path, data)) if path.endswith(LOG) else []
        if path.endswith(LOG):
            self._unsynced.setdefault(path, []).extend(steps)
            self._last_write = _Write(path, position, len(data))
        self._check_crash_point("written", path)
        if f"/{OFFSETS_TOPIC}-" in path and path.endswith(LOG) and _has_commit(data):
            self._check_crash_point("commit", path)
        if any(step.name == COMPLETED for step in steps):
            self._check_crash_point(COMPLETED, path)

    def synced(self, path: str) -> None:
        """A sync has been done."""
        for step in self._unsynced.pop(path, ()):
            self._on_durable_step(path, step)
        self._check_crash_point("synced", path)

    def _on_durable_step(self, path: str, step: Step) -> None:
        if step.name == PREPARED:
            self._markers[step.producer_id] = 0
            self._check_crash_point(step.name, path)
        elif step.name == MARKER:
            self._markers[step.producer_id] += 1
            self._check_crash_point(f"{MARKER}({self._markers[step.producer_id]})", path)

    def _check_crash_point(self, kind: str, path: str) -> None:
        if self.after_cut is not None:
            raise StorageError("the power is off")
        trap = self.faults.trap
        if trap is not None and trap.matches(kind, path):
            self.faults.trap = None
            self.cut(trap.mode, trap.seed)
            raise PowerCut

    def fork(self) -> Disk:
        """A disk of its own with what is on this one, all of it durable."""
        disk = Disk()
        disk.capacity = self.capacity
        disk._root = stable_copy(self._root)
        return disk

    def restarted(self) -> Disk:
        """The disk as the next start finds it."""
        disk = Disk()
        disk.capacity = self.capacity
        disk._root = (self.after_cut or self)._root
        disk.arm(self.faults)
        return disk


class _DiskFile(CrashFile):
    """A file that tells what was done to it."""

    __slots__ = ("_disk",)

    def __init__(self, disk: Disk, file: CrashFile) -> None:
        super().__init__(disk, file._inode, file.path)
        self._disk = disk

    def append(self, parts: Sequence[Buffer]) -> int:
        data = b"".join(parts)
        self._disk.before_write(len(data))
        position = super().append([data])
        self._disk.written(self.path, position, data)
        return position

    def sync(self) -> None:
        super().sync()
        self._disk.synced(self.path)


def _directory(topic: str, partition: int) -> str:
    return f"/{DIRECTORY}/{directory_name(topic, partition)}"


def _has_commit(batch: bytes) -> bool:
    """Whether a batch of the offsets topic commits an offset; it keeps other things as well."""
    return not read_header(batch).is_control and any(
        record.key is not None
        and record.value is not None
        and int.from_bytes(record.key[:2], "big") in OFFSET_COMMIT_KEYS
        for record in read_records(batch)
    )
