"""The log directories of one node: each log is in one of them and can move to another.

Each directory has its own `LogManager` with a lock, an ID and checkpoints. A new partition is
placed in the directory with the fewest partitions. A failing disk takes only its own directory
offline.

A log moves in steps. A crash after any step leaves exactly one valid log::

    1  <other>/orders-0.<id>-future is filled      the source serves
    2  the future replica is complete and durable  the source serves
    3  <one>/orders-0 is renamed to ...-delete     the future replica is the log
    4  <other>/orders-0.<id>-future is renamed to orders-0 (after a crash: by the next start)

A future replica whose log exists is incomplete; it is removed and copied again.
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
    """A checkpoint of each directory; see `CheckpointJob`."""

    def __init__(self, jobs: list[CheckpointJob]) -> None:
        self._jobs = jobs

    @property
    def unrecorded(self) -> list[Log]:
        """Logs whose log start offset is not durable (`CheckpointJob.unrecorded`)."""
        return [log for job in self._jobs for log in job.unrecorded]

    def run(self) -> None:
        """Run all checkpoints, even if one fails. Raises the first StorageError."""
        _call_each([job.run for job in self._jobs])

    def requeue(self) -> None:
        """Requeue the unfinished work in the logs."""
        for job in self._jobs:
            job.requeue()


def _call_each(calls: Iterable[Callable[[], None]]) -> None:
    """Make all calls, then raise the first StorageError, if any."""
    failed: StorageError | None = None
    for call in calls:
        try:
            call()
        except StorageError as error:
            failed = failed or error
    if failed is not None:
        raise failed


class Directory(Protocol):
    """A log directory, locked by a manager or only inspected."""

    @property
    def data_dir(self) -> str: ...

    @property
    def meta(self) -> MetaProperties: ...

    def directories(self) -> list[Partition]: ...


def check_together(directories: Sequence[Directory]) -> None:
    """Raise StorageError if directories cannot belong to the same node.

    Directories do not belong together if their clusters differ, if one directory is a copy of
    another, or if two directories hold the same partition.
    """
    first = directories[0]
    seen: dict[str, Directory] = {}
    paths: dict[Partition, str] = {}
    for directory in directories:
        if directory.meta.cluster_id != first.meta.cluster_id:
            raise StorageError(
                f"{directory.data_dir}: belongs to cluster {directory.meta.cluster_id}, but "
                f"{first.data_dir} belongs to {first.meta.cluster_id}; remove one of them from "
                "log.dirs"
            )
        other = seen.setdefault(directory.meta.directory_id, directory)
        if other is not directory:
            raise StorageError(
                f"{directory.data_dir}: is a copy of {other.data_dir}; remove it from log.dirs"
            )
    for directory in directories:
        for key in directory.directories():
            known = paths.setdefault(key, directory.data_dir)
            if known != directory.data_dir:
                raise StorageError(
                    f"{key[0]}-{key[1]}: is both in {known} and in {directory.data_dir}; move one of "
                    "the two away"
                )


class LogDirectories:
    """The logs of a node in all its log directories, with the interface of a `LogManager`.

    Attributes:
        cordoned: Directories that get no new partitions while there are others.
        interrupted: Moves that the last shutdown interrupted: partition and target directory.
    """

    def __init__(self, files: Files, managers: Sequence[LogManager]) -> None:
        """Use locked directories, and finish or remove interrupted moves.

        Raises StorageError as in `check_together`.
        """
        self.files = files
        self.managers = list(managers)
        self._by_path = {manager.data_dir: manager for manager in managers}
        self._placed: dict[Partition, LogManager] = {}  # partitions without a log yet
        self._placed_in: Counter[str] = Counter()  # number of these partitions by directory
        self._futures: dict[Partition, FutureLog] = {}
        self.cordoned: set[str] = set()
        self.interrupted: list[tuple[Partition, str]] = []
        check_together(self.managers)
        for manager in self.managers:
            self._finish_interrupted_moves(manager)

    def _finish_interrupted_moves(self, manager: LogManager) -> None:
        """Rename finished future replicas to logs, and remove unfinished ones of existing logs.

        Any other future replica is kept: it may hold the only copy of the records.
        """
        for future in manager.partition_directories.futures():
            holder = self._holder(future.key)
            if holder is None and manager.is_finished(future):
                manager.install_future(future.key, future.name)
            elif holder is not None and holder.belongs_to_log(future):
                manager.discard_future(future)
                self.interrupted.append((future.key, manager.data_dir))
            else:
                logger.warning(
                    "%s/%s: not a future replica of a log of this node, or an unfinished one of a "
                    "missing log; it is kept but not served. Remove it if its records are not needed",
                    manager.data_dir,
                    future.name,
                )

    # -- placement

    @property
    def meta(self) -> MetaProperties:
        """Identity of the first directory; all have the same cluster and node."""
        return self.managers[0].meta

    @property
    def clean(self) -> bool:
        """True if the previous owner closed all directories cleanly."""
        return all(manager.clean for manager in self.managers)

    @property
    def crashed(self) -> bool:
        """True if a directory was used before and not closed cleanly."""
        return any(not manager.clean and not manager.is_new for manager in self.managers)

    def _holder(self, key: Partition) -> LogManager | None:
        return next((manager for manager in self.managers if key in manager), None)

    def where(self, topic: str, partition: int) -> LogManager:
        """Return the manager of a partition, or the one where a new partition will be placed.

        Raises StorageError if all directories are offline.
        """
        key = (topic, partition)
        manager = self._holder(key) or self._placed.get(key)
        if manager is None:
            manager = self._placed[key] = self._emptiest()
            self._placed_in[manager.data_dir] += 1
        return manager

    @property
    def has_read_only(self) -> bool:
        """True if a directory is read-only."""
        return any(manager.read_only_reason is not None for manager in self.managers)

    def read_only_reason(self, topic: str, partition: int) -> str | None:
        """Return the reason why a partition is read-only, or None.

        A partition without a directory is writable if any directory is.
        """
        key = (topic, partition)
        manager = self._holder(key) or self._placed.get(key)
        if manager is not None:
            return manager.read_only_reason
        reasons = [each.read_only_reason for each in self.managers]
        return None if None in reasons else reasons[0]

    def _forget_place(self, key: Partition) -> None:
        manager = self._placed.pop(key, None)
        if manager is not None:
            self._placed_in[manager.data_dir] -= 1

    def named(self, paths: Iterable[str]) -> set[str]:
        """Return the directories in `paths` (`*`: all). Raises ValueError for an unknown one."""
        wanted = set(paths)
        if wanted == {EVERY_DIRECTORY}:
            return set(self._by_path)
        unknown = sorted(wanted - set(self._by_path))
        if unknown:
            known = ", ".join(self._by_path)
            raise ValueError(f"unknown log directory '{unknown[0]}' (valid: {known})")
        return wanted

    def _emptiest(self) -> LogManager:
        working = [manager for manager in self.managers if manager.failed is None]
        if not working:
            raise StorageError(self.managers[0].failed or "all data directories are offline")
        accepting = [each for each in working if each.read_only_reason is None]
        uncordoned = [each for each in accepting if each.data_dir not in self.cordoned]
        # Use a cordoned or read-only directory if there is no other.
        return min(
            uncordoned or accepting or working,
            key=lambda each: len(each) + self._placed_in[each.data_dir],
        )

    def manager_at(self, path: str) -> LogManager | None:
        """Return the manager of the directory at `path`, or None if the node does not use it."""
        return self._by_path.get(path)

    def __contains__(self, partition: Partition) -> bool:
        """Return True if a partition is on disk, open or not."""
        return self._holder(partition) is not None

    def is_directory(self, key: Partition) -> bool:
        """Return True if a log directory contains a directory for the partition."""
        holder = self._holder(key)
        return holder is not None and holder.partition_directories.is_directory(key)

    def directories(self) -> list[Partition]:
        """Return all partitions on disk, open or not (`LogManager.directories`)."""
        return [key for manager in self.managers for key in manager.directories()]

    def partitions(self) -> list[tuple[str, int, UUID | None]]:
        """Return the partitions with topic IDs of all directories (`LogManager.partitions`)."""
        return sorted(
            (each for manager in self.managers for each in manager.partitions()),
            key=lambda each: each[:2],
        )

    def get(self, topic: str, partition: int) -> Log | None:
        """Return the log of a partition if it is open."""
        manager = self._holder((topic, partition))
        return manager.get(topic, partition) if manager else None

    def __iter__(self) -> Iterator[Log]:
        """Iterate over all open logs."""
        return (log for manager in self.managers for log in manager)

    # -- logs

    def open_log(
        self, topic: str, topic_id: UUID, partition: int, config: LogConfig, *, now_ms: int
    ) -> Log:
        """Return the log of a partition in its directory (`LogManager.open_log`)."""
        manager = self.where(topic, partition)
        log = manager.open_log(topic, topic_id, partition, config, now_ms=now_ms)
        self._forget_place((topic, partition))
        return log

    def delete_logs(self, partitions: Iterable[Partition], topic_id: UUID) -> list[str]:
        """Delete logs and their future replicas (`LogManager.delete_logs`).

        Raises the first StorageError after trying each directory.
        """
        keys, kept = list(partitions), list[str]()
        for key in keys:
            self._forget_place(key)

        def delete_in(manager: LogManager) -> None:
            kept.extend(manager.delete_logs(keys, topic_id))

        _call_each(
            [
                *(partial(self.drop_future, key) for key in keys),
                *(partial(delete_in, manager) for manager in self.managers),
            ]
        )
        return kept

    def move_aside(self, partitions: Iterable[Partition]) -> list[str]:
        """Move stray partitions aside (`LogManager.move_aside`)."""
        keys = list(partitions)
        for key in keys:
            self._forget_place(key)
        return [directory for manager in self.managers for directory in manager.move_aside(keys)]

    def fail_directory_of(self, error: SyncFailedError) -> None:
        """Take the directory of a failed sync offline."""
        for manager in self.managers:
            if error.path == manager.data_dir or error.path.startswith(f"{manager.data_dir}/"):
                manager.fail(str(error))

    def empty_trash(self) -> None:
        """Delete the bytes of deleted partitions; blocks. A worker thread may call it."""
        for manager in self.managers:
            manager.empty_trash()

    def sync_recovered(self) -> None:
        """Sync all data that a crashed owner wrote (`LogManager.sync_recovered`)."""
        _call_each([manager.sync_recovered for manager in self.managers])

    def sync(self, logs: Iterable[Log]) -> list[tuple[Log, int]]:
        """Sync many logs (`sync_logs`); a failed sync takes its whole directory offline."""
        by_directory: dict[str, list[Log]] = {}
        for log in logs:
            by_directory.setdefault(log.directory.rpartition("/")[0], []).append(log)
        ends = []
        for path, logs_there in by_directory.items():
            failed = self._by_path[path].failed
            if failed is not None:  # another sync of this directory failed
                for log in logs_there:
                    log.fail(failed)
                continue
            synced = sync_logs(self.files, logs_there)
            if not synced:
                self._by_path[path].fail(logs_there[0].offline or f"{path}: a sync failed")
            ends += synced
        return ends

    # -- moves

    def future(self, topic: str, partition: int) -> FutureLog | None:
        """Return the future replica of a log, if it is being moved."""
        return self._futures.get((topic, partition))

    def next_future(self) -> FutureLog | None:
        """Return the future replica that was started first."""
        return next(iter(self._futures.values()), None)

    def start_move(self, source: Log, path: str) -> FutureLog:
        """Start to copy a log to the directory at `path`; an earlier copy is dropped.

        Raises StorageError.
        """
        key = (source.topic, source.partition)
        self.drop_future(key)
        future = self._futures[key] = FutureLog(self.files, path, source)
        return future

    def drop_future(self, key: Partition) -> None:
        """Remove the future replica of a partition, if any. Raises StorageError."""
        future = self._futures.pop(key, None)
        if future is not None:
            future.abandon()

    def swap(self, future: FutureLog, config: LogConfig, *, now_ms: int) -> Log:
        """Replace a log with its caught-up future replica.

        The source must not be synced or checkpointed concurrently. Blocks for a few syncs.

        Args:
            future: The future replica.
            config: Settings of the log.
            now_ms: Current time of the log clock in ms.

        Returns:
            The opened log in its new directory.

        Raises:
            StorageError: Before the renames, the source keeps serving. Afterwards the partition is
                offline until the node restarts.
        """
        source = future.source
        key = (source.topic, source.partition)
        old, new = self.where(*key), self._by_path[future.data_dir]
        offsets = future.finish()
        new.checkpoint_future(key, offsets)
        del self._futures[key]  # from here on the future replica must not be dropped
        try:
            old.delete_logs([key], source.topic_id)
        except StorageError:
            if source.offline is None:  # no directory was renamed
                self._futures[key] = future
            raise
        new.install_future(key, future.directory.rpartition("/")[2])
        return new.open_log(source.topic, source.topic_id, source.partition, config, now_ms=now_ms)

    # -- producer ids

    def reserved_producer_ids_end(self) -> int:
        """Return the first producer ID after those that this node has reserved, or 0.

        Blocks. Raises StorageError.
        """
        working = [each.data_dir for each in self.managers if each.failed is None]
        return read_reserved_end(self.files, working)

    def store_reserved_producer_ids_end(self, end: int) -> None:
        """Store the first producer ID after those that this node has reserved, in each directory.

        Blocks. Raises the first StorageError after trying each directory.
        """
        working = [each.data_dir for each in self.managers if each.failed is None]
        _call_each([partial(write_reserved_end, self.files, each, end) for each in working])

    # -- checkpoints and shutdown

    def checkpoint_due(self, now_ms: int) -> bool:
        """Return True if a checkpoint of any online directory is due."""
        return any(each.failed is None and each.checkpoint_due(now_ms) for each in self.managers)

    def checkpoint(self, now_ms: int) -> DirectoryJobs:
        """Collect a checkpoint of all online directories; `DirectoryJobs.run` writes it."""
        working = [manager for manager in self.managers if manager.failed is None]
        return DirectoryJobs([manager.checkpoint(now_ms) for manager in working])

    def note_compaction(self, log: Log, end_offset: int) -> None:
        """Record durably that a log may have offset gaps (`LogManager.note_compaction`)."""
        self._by_path[log.directory.rpartition("/")[0]].note_compaction(log, end_offset)

    def close(self, *, clean: bool = True, now_ms: int = 0) -> None:
        """Close all directories (`LogManager.close`). Raises the first StorageError."""
        for future in self._futures.values():
            future.close()
        _call_each(
            [
                partial(manager.close, clean=clean and manager.failed is None, now_ms=now_ms)
                for manager in self.managers
            ]
        )
