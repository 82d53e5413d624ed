"""A disk in memory that fails on demand: power cuts, failed syncs, no space, torn writes."""

from __future__ import annotations

import errno as errors
import os
import re
import threading
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

from .arguments import check_number, parse_choice
from .transaction_steps import COMPLETED, MARKER, PREPARED, Step, parse_steps

# Name of the data directory on the disk.
DIRECTORY = "disk"
# Item of `DiskFaults.full` that stands for the whole disk.
WHOLE_DISK = "/"
# Reported capacity of the disk in bytes. It is small, so that a broker reserves little space.
REPORTED_CAPACITY_BYTES = 128 * 1024
# Key versions of committed offsets in the offsets topic; other versions are group metadata.
OFFSET_COMMIT_KEYS = (0, 1)
Matcher = Callable[[str, str], bool]
# Pattern of the points that contain the number of a transaction marker.
MARKER_POINT = r"txn\.marker\([1-9]\d*\)"


def _is_log(path: str) -> bool:
    """Return True for a log file of a topic that is not internal."""
    return path.endswith(LOG) and "/__" not in path


# Points of `crash_at`, and functions that return True if an operation on a file reaches the point.
POINTS: dict[str, Matcher] = {
    # before records are written
    "produce.received": lambda kind, path: kind == "write" and _is_log(path),
    # after records are written, before they are synced
    "produce.appended": lambda kind, path: kind == "written" and _is_log(path),
    # after records are synced, before they are acknowledged
    "produce.synced": lambda kind, path: kind == "synced" and _is_log(path),
    "commit.appended": lambda kind, path: kind == "commit",
    "segment.created": lambda kind, path: kind == "created" and _is_log(path),
    "index.written": lambda kind, path: kind == "sync" and path.endswith("index"),
    "checkpoint.written": lambda kind, path: kind == "rename" and "checkpoint" in path,
    "clean_marker.written": lambda kind, path: kind == "rename" and CLEAN_SHUTDOWN in path,
    "compaction.cleaned": lambda kind, path: kind == "rename" and path.endswith(CLEANED),
    # after the decision is synced, before the first marker is written
    PREPARED: lambda kind, _path: kind == PREPARED,
    # after the completion is written, before it is synced and the client gets its response
    COMPLETED: lambda kind, _path: kind == COMPLETED,
}
# Operations that `Disk.fail` accepts, and the kind of file operation of each.
FAILING = {"fsync": "sync", "write": "write"}


def _matcher(point: str) -> Matcher:
    """Return the function that recognizes a point.

    Raises:
        ValueError: The point does not exist.
    """
    if re.fullmatch(MARKER_POINT, point):
        return lambda kind, _path: kind == point
    if point in POINTS:
        return POINTS[point]
    raise ValueError(f"there is no point {point!r} (valid: {', '.join(POINTS)}, txn.marker(N))")


class PowerCut(BaseException):
    """The power of the disk is cut. No code of the broker may catch this exception."""


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

    Power cuts and the restore of a snapshot keep these faults.

    Attributes:
        crash_point: Point at which the power is cut.
        failures: Operations that are going to fail, each with its error number.
        full: Full directories.
        full_without_write: Full directories that have not rejected a write yet, each with the call
            of the test that filled it.
        pause_ms: Additional time of each sync, in ms.
        slowed_sync: True if a sync was slowed down.
    """

    crash_point: _CrashPoint | None = None
    failures: list[tuple[str, int]] = field(default_factory=list)
    full: set[str] = field(default_factory=set)
    full_without_write: dict[str, str] = field(default_factory=dict)
    pause_ms: float = 0
    slowed_sync: bool = False

    def describe_unmet(self) -> list[str]:
        """Return a sentence for each fault that has not happened."""
        reports = [
            f"disk.fail({operation!r}) hit nothing: there was no {operation} of records"
            for operation, _ in self.failures
        ]
        if self.crash_point is not None:
            reports.append(
                f"crash_at({self.crash_point.point!r}): the broker never reached the point"
            )
        if self.pause_ms and not self.slowed_sync:
            reports.append(f"disk.slow({self.pause_ms:g}) hit nothing: there was no sync")
        reports += [
            f"{call} hit nothing: no write failed for lack of space"
            for call in list(self.full_without_write.values())
        ]
        return reports

    def fill(self, directory: str, call: str) -> None:
        """Make a directory full.

        Args:
            directory: Path of the directory.
            call: Call of the test, for the message of `describe_unmet`.
        """
        if directory not in self.full:
            self.full_without_write[directory] = call
            self.full.add(directory)

    def free_space(self) -> None:
        """Make all directories writable again."""
        self.full.clear()
        self.full_without_write.clear()


class Disk(CrashFiles):
    """The disk of one broker. A power cut loses unsynced data, depending on the mode.

    * `drop` loses all unsynced data.
    * `torn` keeps a random part of the unsynced sectors.
    * `lost-name` loses all unsynced data, and the names of files whose directory was not synced.
    * `mixed` keeps a random part of all unsynced data and names.

    Attributes:
        after_cut: Content of the disk after the power cut; None if the power is on.
        has_partition: Returns True if the broker has the partition.
        faults: Armed faults.
    """

    def __init__(self) -> None:
        super().__init__()
        self.after_cut: CrashFiles | None = None
        self.has_partition: Callable[[str, int], bool] = lambda topic, partition: True
        self.faults = DiskFaults()
        # Held while files change: the test damages them while the broker writes.
        self.changing = threading.RLock()
        # Logs with unsynced writes, and the steps of transactions in these writes.
        self._unsynced: dict[str, list[Step]] = {}
        self._markers: Counter[int] = Counter()
        self._last_write: _Write | None = None

    def crash_at(self, point: str, mode: Mode, seed: int) -> None:
        """Cut the power when the broker reaches a point; see `LocalBroker.crash_at`.

        Raises:
            ValueError: The point or mode does not exist.
        """
        mode = parse_choice("mode", mode, MODES)
        self.faults.crash_point = _CrashPoint(point, _matcher(point), mode, seed)

    def arm(self, faults: DiskFaults) -> None:
        """Replace the armed faults."""
        self.faults = faults

    def cut(self, mode: Mode, seed: int) -> None:
        """Cut the power now; all later operations fail.

        Raises:
            ValueError: The mode does not exist.
        """
        mode = parse_choice("mode", mode, MODES)
        with self.changing:
            if self.after_cut is None:
                self.after_cut = self.crashed(mode, seed)

    # -- faults

    def fail(self, operation: str, number: int = errors.EIO) -> None:
        """Make the next sync or write of records fail.

        Args:
            operation: "fsync" or "write".
            number: Error number, for example `errno.EIO`.

        Raises:
            ValueError: The operation does not exist.
        """
        if operation not in FAILING:
            raise ValueError(f"invalid operation {operation!r} (valid: {', '.join(FAILING)})")
        self.faults.failures.append((operation, number))

    def full(self, topic: str | None = None, partition: int = 0, *, free: int = 0) -> None:
        """Fill the disk, or the directory of one partition.

        The test fails if the full disk rejects no write before `free_space`. After `free_space`, the
        broker accepts records again once it has detected the free space.

        Args:
            topic: Topic name; None to fill the whole disk.
            partition: Partition number.
            free: Bytes that remain free on the disk, if `topic` is None.

        Raises:
            ValueError: The partition does not exist, or `free` is negative.
        """
        check_number("free", free, 0)
        if topic is None:
            self.capacity = self.used() + free
            self.faults.fill(WHOLE_DISK, f"disk.full(free={free})")
        elif not self.has_partition(topic, partition):
            raise ValueError(f"there is no partition {topic}-{partition}; create it first")
        else:
            self.faults.fill(_directory(topic, partition), f"disk.full({topic!r}, {partition})")

    def free_space(self) -> None:
        """Undo all calls of `full`."""
        self.capacity = NO_LIMIT
        self.faults.free_space()

    def slow(self, milliseconds: float) -> None:
        """Slow down each sync.

        Args:
            milliseconds: Additional time of each sync in ms; 0 for none.

        Raises:
            ValueError: `milliseconds` is negative.
        """
        check_number("milliseconds", milliseconds, 0)
        self.faults.pause_ms, self.faults.slowed_sync = milliseconds, False

    def tear_last_write(self) -> None:
        """Truncate the last write to a log to its first half, even if it was synced.

        This simulates a disk that reports a sync without doing it. The broker detects the loss only
        after a restart, so cut the power next.

        Raises:
            ValueError: Nothing was written to a log since the start.
        """
        if self._last_write is None:
            raise ValueError(
                "nothing was written to a log since the broker was started; produce a record first"
            )
        with self.changing:
            path, position, size = self._last_write
            self.damage(path, self.read_bytes(path)[: position + size // 2])

    def flip(self, topic: str, partition: int, offset: int, bit: int = 0) -> None:
        """Flip one bit of the batch that contains a record.

        Args:
            topic: Topic name.
            partition: Partition number.
            offset: Offset of the record.
            bit: Number of the bit, counted from the end of the batch header.

        Raises:
            ValueError: The partition does not have the record.
        """
        directory = _directory(topic, partition)
        with self.changing:
            for name in self.listdir(directory):
                if name.endswith(LOG) and self._flip_in(f"{directory}/{name}", offset, bit):
                    return
        raise ValueError(f"{topic}-{partition} does not have offset {offset}; produce it first")

    def _flip_in(self, path: str, offset: int, bit: int) -> bool:
        """Flip one bit of the batch with this offset; return False if the log does not have it."""
        data = bytearray(self.read_bytes(path))
        for position, header in iter_headers(data):
            if header.base_offset <= offset <= header.last_offset:
                data[position + HEADER_SIZE + bit // 8] ^= 1 << bit % 8
                self.damage(path, bytes(data))
                return True
        return False

    # -- operations of the broker

    def open(self, path: str, *, create: bool = False) -> CrashFile:
        with self.changing:
            is_new = create and not self.exists(path)
            file = super().open(path, create=create)
        if is_new:
            self._check_crash_point("created", path)
        return _DiskFile(self, file)

    def rename(self, old: str, new: str) -> None:
        with self.changing:
            super().rename(old, new)

    def remove(self, path: str) -> None:
        with self.changing:
            super().remove(path)

    def mkdir(self, path: str) -> None:
        with self.changing:
            super().mkdir(path)

    def usage(self, path: str) -> tuple[int, int]:
        _, free = super().usage(path)
        return REPORTED_CAPACITY_BYTES, min(free, REPORTED_CAPACITY_BYTES // 2)

    def announce(self, kind: str, path: str) -> None:
        super().announce(kind, path)
        self._check_crash_point(kind, path)
        faults = self.faults
        if kind == FAILING["fsync"] and faults.pause_ms:
            faults.slowed_sync = True
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
        """Record that a full disk is about to reject a write of `size` bytes."""
        if WHOLE_DISK in self.faults.full_without_write and self.used() + size > self.capacity:
            self.faults.full_without_write.pop(WHOLE_DISK, None)

    def written(self, path: str, position: int, data: bytes) -> None:
        """Check the crash points that a write reaches; the bytes are not synced yet."""
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
        """Check the crash points that a sync of a file reaches."""
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
            raise StorageError("the power is cut")
        crash_point = self.faults.crash_point
        if crash_point is not None and crash_point.matches(kind, path):
            self.faults.crash_point = None
            self.cut(crash_point.mode, crash_point.seed)
            raise PowerCut

    def fork(self) -> Disk:
        """Return a new disk with a copy of the data, as if all data was synced."""
        disk = Disk()
        disk.capacity = self.capacity
        disk._root = stable_copy(self._root)
        return disk

    def restarted(self) -> Disk:
        """Return the disk as the next start of the broker sees it."""
        disk = Disk()
        disk.capacity = self.capacity
        disk._root = (self.after_cut or self)._root
        disk.arm(self.faults)
        return disk


class _DiskFile(CrashFile):
    """A file that reports its operations to the disk."""

    __slots__ = ("_disk",)

    def __init__(self, disk: Disk, file: CrashFile) -> None:
        super().__init__(disk, file._inode, file.path)
        self._disk = disk

    def append(self, parts: Sequence[Buffer]) -> int:
        data = b"".join(parts)
        self._disk.before_write(len(data))
        with self._disk.changing:
            position = super().append([data])
        self._disk.written(self.path, position, data)
        return position

    def truncate(self, size: int) -> None:
        with self._disk.changing:
            super().truncate(size)

    def sync(self) -> None:
        super().sync()
        self._disk.synced(self.path)


def _directory(topic: str, partition: int) -> str:
    return f"/{DIRECTORY}/{directory_name(topic, partition)}"


def _has_commit(batch: bytes) -> bool:
    """Return True if a batch of the offsets topic commits an offset."""
    return not read_header(batch).is_control and any(
        record.key is not None
        and record.value is not None
        and int.from_bytes(record.key[:2], "big") in OFFSET_COMMIT_KEYS
        for record in read_records(batch)
    )
