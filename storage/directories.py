"""The data directories of one node: each log lies in one of them, and can move to another.

Each directory is a `LogManager` of its own, with its lock, its id and its checkpoints. A new partition
goes where the fewest are. What a failing disk takes away is its own directory, and nothing else.

A log moves in steps, and a crash after any of them leaves exactly one that is valid::

    1  <other>/orders-0.<id>-future is filled      the first one serves
    2  the copy is complete and durable            the first one serves
    3  <one>/orders-0 is renamed to ...-delete     the copy is the log: opening gives it its name
    4  <other>/orders-0.<id>-future is renamed to orders-0

A copy that is found beside a log of its name is not complete; it is made anew.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol
from uuid import UUID

from .checkpoints import MetaProperties, Partition
from .errors import StorageError, SyncFailedError
from .files import Files
from .future import FutureLog
from .log import Log
from .log_config import LogConfig
from .manager import CheckpointJob, LogManager, sync_logs
from .producer_id_checkpoint import read_reserved_end, write_reserved_end

logger = logging.getLogger(__name__)

EVERY_DIRECTORY = "*"


class DirectoryJobs:
    """One checkpoint of each directory; see `CheckpointJob`."""

    def __init__(self, jobs: list[CheckpointJob]) -> None:
        self._jobs = jobs

    def run(self) -> None:
        """Run all, whatever one of them meets. Raises the first StorageError."""
        _call_each([job.run for job in self._jobs])

    def put_back(self) -> None:
        """Give the logs again what was not done."""
        for job in self._jobs:
            job.put_back()


def _call_each(calls: Iterable[Callable[[], None]]) -> None:
    """Call everything; raises the first StorageError after that."""
    failed: StorageError | None = None
    for call in calls:
        try:
            call()
        except StorageError as error:
            failed = failed or error
    if failed is not None:
        raise failed


class Directory(Protocol):
    """A data directory, whether it is open or was only looked at."""

    @property
    def data_dir(self) -> str: ...

    @property
    def meta(self) -> MetaProperties: ...

    def directories(self) -> list[Partition]: ...


def check_together(directories: Sequence[Directory]) -> None:
    """Raise StorageError for directories that cannot be those of one node.

    They are not of one cluster, or one is a copy of another, or a partition is in two of them.
    """
    first = directories[0]
    seen: dict[str, Directory] = {}
    where: dict[Partition, str] = {}
    for directory in directories:
        if directory.meta.cluster_id != first.meta.cluster_id:
            raise StorageError(
                f"{directory.data_dir} belongs to cluster {directory.meta.cluster_id}, "
                f"{first.data_dir} to {first.meta.cluster_id}; take one of them out of log.dirs"
            )
        other = seen.setdefault(directory.meta.directory_id, directory)
        if other is not directory:
            raise StorageError(
                f"{directory.data_dir} is a copy of {other.data_dir}; take it out of log.dirs"
            )
    for directory in directories:
        for key in directory.directories():
            known = where.setdefault(key, directory.data_dir)
            if known != directory.data_dir:
                raise StorageError(
                    f"{key[0]}-{key[1]} is in {known} and in {directory.data_dir}; move one of the "
                    "two away"
                )


class LogDirectories:
    """The logs of a node, wherever they lie; used like a `LogManager`.

    `interrupted` are the moves that the last stop broke off: partition, and the directory it was on
    the way to.
    """

    def __init__(self, files: Files, managers: Sequence[LogManager]) -> None:
        """Take over opened directories, and clear up what a crash left between them.

        Raises StorageError, as `check_together`.
        """
        self.files = files
        self.managers = list(managers)
        self._by_path = {manager.data_dir: manager for manager in managers}
        self._placed: dict[Partition, LogManager] = {}  # partitions without a log
        self._placed_in: Counter[str] = Counter()  # how many of them, by directory
        self._futures: dict[Partition, FutureLog] = {}
        self.cordoned: set[str] = set()
        """Directories that take no new partitions as long as others do."""
        self.interrupted: list[tuple[Partition, str]] = []
        check_together(self.managers)
        for manager in self.managers:
            self._clear_up(manager)

    def _clear_up(self, manager: LogManager) -> None:
        """Give finished copies whose log is gone its name, and remove copies of logs that are here.

        Any other copy stays as it is: it may have the only records that are left.
        """
        for future in manager.partition_directories.futures():
            holder = self._holder(future.key)
            if holder is None and manager.is_finished(future):
                manager.take_over(future.key, future.name)
            elif holder is not None and holder.is_copy_of(future):
                manager.discard_future(future)
                self.interrupted.append((future.key, manager.data_dir))
            else:
                logger.warning(
                    "%s/%s is not a copy of a log of this node, or an unfinished one of a log that is "
                    "missing: it is kept and not served; remove it if its records are not needed",
                    manager.data_dir,
                    future.name,
                )

    # -- what is where

    @property
    def meta(self) -> MetaProperties:
        """Of the first directory; cluster and node are those of all."""
        return self.managers[0].meta

    @property
    def clean(self) -> bool:
        """Whether the last owner closed all directories properly."""
        return all(manager.clean for manager in self.managers)

    @property
    def crashed(self) -> bool:
        """Whether somebody used one of the directories, and did not close it properly."""
        return any(not manager.clean and not manager.is_new for manager in self.managers)

    def _holder(self, key: Partition) -> LogManager | None:
        return next((manager for manager in self.managers if key in manager), None)

    def where(self, topic: str, partition: int) -> LogManager:
        """The directory of a partition; for one that has none yet, where it will be.

        Raises StorageError when no directory works any more.
        """
        key = (topic, partition)
        manager = self._holder(key) or self._placed.get(key)
        if manager is None:
            manager = self._placed[key] = self._emptiest()
            self._placed_in[manager.data_dir] += 1
        return manager

    @property
    def refuses(self) -> bool:
        """Whether a directory takes no records for now."""
        return any(manager.refusal is not None for manager in self.managers)

    def refusal(self, topic: str, partition: int) -> str | None:
        """Why nothing is appended to a partition for now; None when it can be.

        One that has no directory yet gets one that takes records, while there is any.
        """
        key = (topic, partition)
        manager = self._holder(key) or self._placed.get(key)
        if manager is not None:
            return manager.refusal
        refusals = [each.refusal for each in self.managers]
        return None if None in refusals else refusals[0]

    def _forget_place(self, key: Partition) -> None:
        manager = self._placed.pop(key, None)
        if manager is not None:
            self._placed_in[manager.data_dir] -= 1

    def named(self, paths: Iterable[str]) -> set[str]:
        """The directories that `paths` name; `*` stands for all. Raises ValueError for an unknown."""
        wanted = set(paths)
        if wanted == {EVERY_DIRECTORY}:
            return set(self._by_path)
        unknown = sorted(wanted - set(self._by_path))
        if unknown:
            known = ", ".join(self._by_path)
            raise ValueError(f"there is no data directory {unknown[0]}; there are {known}")
        return wanted

    def _emptiest(self) -> LogManager:
        working = [manager for manager in self.managers if manager.failed is None]
        if not working:
            raise StorageError(self.managers[0].failed or "all data directories are offline")
        accepting = [each for each in working if each.refusal is None]
        open_ones = [each for each in accepting if each.data_dir not in self.cordoned]
        # A partition that exists has to go somewhere.
        return min(
            open_ones or accepting or working,
            key=lambda each: len(each) + self._placed_in[each.data_dir],
        )

    def manager_at(self, path: str) -> LogManager | None:
        """The directory at `path`; None when it is not one of this node's."""
        return self._by_path.get(path)

    def __contains__(self, partition: Partition) -> bool:
        """Whether a partition is on disk, open or not."""
        return self._holder(partition) is not None

    def is_directory(self, key: Partition) -> bool:
        """Return True if a log directory contains a directory for the partition."""
        holder = self._holder(key)
        return holder is not None and holder.partition_directories.is_directory(key)

    def directories(self) -> list[Partition]:
        """Topic and partition of everything on disk, open or not, as `LogManager.directories`."""
        return [key for manager in self.managers for key in manager.directories()]

    def partitions(self) -> list[tuple[str, int, UUID | None]]:
        """As `LogManager.partitions`, for all directories."""
        return sorted(
            (each for manager in self.managers for each in manager.partitions()),
            key=lambda each: each[:2],
        )

    def get(self, topic: str, partition: int) -> Log | None:
        """The log, if it is open."""
        manager = self._holder((topic, partition))
        return manager.get(topic, partition) if manager else None

    def __iter__(self) -> Iterator[Log]:
        """All open logs."""
        return (log for manager in self.managers for log in manager)

    # -- logs

    def open_log(
        self, topic: str, topic_id: UUID, partition: int, config: LogConfig, *, now_ms: int
    ) -> Log:
        """As `LogManager.open_log`, in the directory where the log is or will be."""
        manager = self.where(topic, partition)
        log = manager.open_log(topic, topic_id, partition, config, now_ms=now_ms)
        self._forget_place((topic, partition))
        return log

    def delete_logs(self, partitions: Iterable[Partition], topic_id: UUID) -> list[str]:
        """As `LogManager.delete_logs`; copies that are being made go as well."""
        keys = list(partitions)
        for key in keys:
            self._forget_place(key)
            self.drop_future(key)
        return [
            directory
            for manager in self.managers
            for directory in manager.delete_logs(keys, topic_id)
        ]

    def set_aside(self, partitions: Iterable[Partition]) -> list[str]:
        """As `LogManager.set_aside`."""
        keys = list(partitions)
        for key in keys:
            self._forget_place(key)
        return [directory for manager in self.managers for directory in manager.set_aside(keys)]

    def fail_at(self, error: SyncFailedError) -> None:
        """Take the directory offline in which a sync failed."""
        for manager in self.managers:
            if error.path == manager.data_dir or error.path.startswith(f"{manager.data_dir}/"):
                manager.fail(str(error))

    def empty_trash(self) -> None:
        """Remove the bytes of deleted partitions. Blocks; a worker thread may call it."""
        for manager in self.managers:
            manager.empty_trash()

    def settle(self) -> None:
        """As `LogManager.settle`."""
        _call_each([manager.settle for manager in self.managers])

    def sync(self, logs: Iterable[Log]) -> list[tuple[Log, int]]:
        """As `sync_logs`; a directory whose sync fails goes offline as a whole."""
        by_directory: dict[str, list[Log]] = {}
        for log in logs:
            by_directory.setdefault(log.directory.rpartition("/")[0], []).append(log)
        ends = []
        for path, some in by_directory.items():
            failed = self._by_path[path].failed
            if failed is not None:  # by a sync of something else
                for log in some:
                    log.fail(failed)
                continue
            synced = sync_logs(self.files, some)
            if not synced:
                self._by_path[path].fail(some[0].offline or f"{path}: a sync failed")
            ends += synced
        return ends

    # -- moving

    def future(self, topic: str, partition: int) -> FutureLog | None:
        """The copy of a log that is being made, if it is on its way."""
        return self._futures.get((topic, partition))

    def next_future(self) -> FutureLog | None:
        """The copy that was begun first."""
        return next(iter(self._futures.values()), None)

    def begin_move(self, source: Log, path: str) -> FutureLog:
        """Begin to copy a log into the directory at `path`; an earlier copy is given up.

        Raises StorageError.
        """
        key = (source.topic, source.partition)
        self.drop_future(key)
        future = self._futures[key] = FutureLog(self.files, path, source)
        return future

    def drop_future(self, key: Partition) -> None:
        """Give up a copy, if there is one. Raises StorageError."""
        future = self._futures.pop(key, None)
        if future is not None:
            future.abandon()

    def swap(self, future: FutureLog, config: LogConfig, *, now_ms: int) -> Log:
        """Let a copy that has caught up take the place of its log; returns the log as it is now.

        Nothing may sync or checkpoint the first log meanwhile. Blocks for a few syncs.

        Raises StorageError: before the names change, the first log goes on serving (and the copy
        stays one); after that the partition is offline until the node starts again.
        """
        source = future.source
        key = (source.topic, source.partition)
        here, there = self.where(*key), self._by_path[future.data_dir]
        offsets = future.finish()
        there.expect(key, offsets)
        del self._futures[key]  # from here on the copy must not be given up
        here.delete_logs([key], source.topic_id)
        there.take_over(key, future.directory.rpartition("/")[2])
        return there.open_log(
            source.topic, source.topic_id, source.partition, config, now_ms=now_ms
        )

    # -- producer ids

    def reserved_producer_ids_end(self) -> int:
        """Return the first producer id after those that this node has reserved, 0 for none.

        Blocks. Raises StorageError.
        """
        working = [each.data_dir for each in self.managers if each.failed is None]
        return read_reserved_end(self.files, working)

    def store_reserved_producer_ids_end(self, end: int) -> None:
        """Store the first producer id after those that this node has reserved, in each directory.

        Blocks. Raises the first StorageError, after an attempt for each directory.
        """
        working = [each.data_dir for each in self.managers if each.failed is None]
        _call_each([partial(write_reserved_end, self.files, each, end) for each in working])

    # -- checkpoints and end

    def checkpoint_due(self, now_ms: int) -> bool:
        """As `LogManager.checkpoint_due`, for any directory."""
        return any(manager.checkpoint_due(now_ms) for manager in self.managers)

    def checkpoint(self, now_ms: int) -> DirectoryJobs:
        """Collect a checkpoint of all directories that work; nothing is written before its `run`."""
        working = [manager for manager in self.managers if manager.failed is None]
        return DirectoryJobs([manager.checkpoint(now_ms) for manager in working])

    def note_compaction(self, log: Log) -> None:
        """As `LogManager.note_compaction`."""
        self._by_path[log.directory.rpartition("/")[0]].note_compaction(log)

    def close(self, *, clean: bool = True, now_ms: int = 0) -> None:
        """As `LogManager.close`, for each directory that works. Raises the first StorageError."""
        for future in self._futures.values():
            future.close()
        _call_each(
            [
                partial(manager.close, clean=clean and manager.failed is None, now_ms=now_ms)
                for manager in self.managers
            ]
        )
