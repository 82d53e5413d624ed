"""A log directory and its logs: ownership, checkpoints, and the partitions on disk.

Logs are opened on demand, even after a crash. Start-up reads four small files, however many
partitions there are.

The owner calls these methods from its event loop:

* `open_log` for a partition that the broker hosts, `delete_logs` for deleted topics;
* `sync_logs` for all logs with a pending acknowledgement (in a worker thread, then `Log.synced`);
* `checkpoint` if `checkpoint_due` (the job's `run` in a worker thread);
* `close` at the end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import NamedTuple
from uuid import UUID

from .checkpoints import (
    MetaProperties,
    OffsetCheckpoints,
    Offsets,
    Partition,
    checksums_in_marker,
    clean_marker,
)
from .errors import CorruptLogError, StorageError, SyncFailedError, WriteRefusedError
from .files import Files, Lock
from .log import Log
from .log_config import LogConfig
from .log_start_marks import LogStartMark
from .naming import (
    CLEAN_SHUTDOWN,
    LOCK,
    META_PROPERTIES,
    PROBE,
    RESERVE,
    directory_name,
    is_deleted_directory,
    parse_directory_name,
)
from .open_segments import OpenSegments
from .partition_directories import FutureDirectory, PartitionDirectories
from .recovery import QuarantinedData, load_log
from .reserve import Reserve
from .segment import Segment
from .sync import SyncItem, sync_together

logger = logging.getLogger(__name__)

# Time between two checkpoints in ms.
CHECKPOINT_EVERY_MS = 5_000
# Time between two checkpoints in ms if a log waits for one (a new segment or removed files).
_ROLLED_EVERY_MS = 1_000
# Bytes appended to one log after which a checkpoint is due.
CHECKPOINT_EVERY_BYTES = 16 * 1024 * 1024
# Logs that a checkpoint syncs concurrently while it holds the guard.
LOGS_AT_ONCE = 16
# Threads that sync the logs after a crash while clients are served; default of Kafka's
# num.recovery.threads.per.data.dir. With 16 threads, each system call of the event loop waits for
# the GIL: an append takes 6 ms instead of 0.8 ms, and recovery is hardly faster on a fast disk.
RECOVERY_SYNC_THREADS = 2

_NO_ID = UUID(int=0)


class _CollectedLog(NamedTuple):
    """One log in a checkpoint: its offsets, and the work before and after they are written."""

    log: Log
    offsets: Offsets
    before: list[SyncItem]
    after: list[Segment | LogStartMark]


class CheckpointJob:
    """The work of one checkpoint.

    `run` blocks and may run in a worker thread, one job at a time. It syncs the data that the
    offsets rely on, writes the offsets, then deletes obsolete segments. After a failed job the
    owner calls `requeue`, and the next job does the rest. A failed sync takes the directory
    offline.

    The owner may delete a log concurrently, and even create another one at the same paths. So each
    step takes the guard and checks that its log still exists.
    """

    def __init__(
        self,
        files: Files,
        checkpoints: OffsetCheckpoints,
        logs: list[_CollectedLog],
        fail: Callable[[str], None],
    ) -> None:
        self._files = files
        self._checkpoints = checkpoints
        self._logs = logs
        self._fail = fail
        # Logs whose log start offset is not durable yet.
        self._unrecorded = {each.log: None for each in logs}
        self._is_written = False  # the offsets are written

    @property
    def unrecorded(self) -> list[Log]:
        """Logs whose log start offset a crash would move back, because the job failed."""
        return list(self._unrecorded)

    def run(self, logs_at_once: int = LOGS_AT_ONCE) -> None:
        """Write the checkpoint.

        Args:
            logs_at_once: Number of logs to sync concurrently.

        Raises:
            StorageError: The old checkpoints are kept and still valid.
            SyncFailedError: A sync failed; the directory is offline.
        """
        try:
            self._sync_data(logs_at_once)
            self._checkpoints.update(self._offsets())
            self._is_written = True
            self._unrecorded.clear()
        except SyncFailedError as error:
            self._fail(str(error))
            raise
        except StorageError:
            # The disk may be full: deleting the obsolete segments frees space.
            self._remove_on_full_disk()
            raise
        try:
            self._remove()
        except SyncFailedError as error:
            self._fail(str(error))
            raise

    def _sync_data(self, logs_at_once: int) -> None:
        """Sync the data of each log in order, several logs concurrently.

        The guard is held for one sync of each log at a time.
        """
        for start in range(0, len(self._logs), logs_at_once):
            pending = self._logs[start : start + logs_at_once]
            while pending := [each for each in pending if each.before]:
                with self._checkpoints.guard:
                    self._files.at_once([partial(_run_first_sync, each) for each in pending])

    def _remove(self) -> None:
        """Delete obsolete segments, oldest first, and log start marks."""
        for log, _, _, after in self._logs:
            while after:
                with self._checkpoints.guard:
                    if not log.deleted:
                        after[0].remove()
                del after[0]

    def _remove_on_full_disk(self) -> None:
        """Delete obsolete segments without a checkpoint of the log start; a mark records it.

        Each deletion is made durable before the next one: a crash must not restore a segment but
        not its successor. Marks stay until a checkpoint succeeds.
        """
        for log, offsets, _, after in self._logs:
            segments = [each for each in after if isinstance(each, Segment)]
            if segments:
                with self._checkpoints.guard:
                    mark = None if log.deleted else self._create_mark(log, offsets, segments[0])
                marks = [each for each in after if isinstance(each, LogStartMark)]
                if mark is not None:
                    marks = [mark, *(each for each in marks if each.offset != mark.offset)]
                after[:] = [*segments, *marks]
            for segment in segments:
                with self._checkpoints.guard:
                    if not log.deleted:
                        segment.remove()
                        log.segments.sync_directory()
                del after[0]

    def _create_mark(self, log: Log, offsets: Offsets, oldest: Segment) -> LogStartMark:
        """Create a mark of the log start. Raises StorageError."""
        mark = LogStartMark(self._files, log.directory, offsets.log_start)
        try:
            mark.create()
        except WriteRefusedError:
            oldest.remove_indexes()  # free an inode or a block for the name of the mark
            mark.create()
        self._unrecorded.pop(log, None)
        return mark

    def _offsets(self) -> Iterator[tuple[Partition, Offsets]]:
        for log, offsets, _, _ in self._logs:
            if not log.deleted:
                # The log may have been truncated in the meantime.
                point = min(offsets.recovery_point, log.synced_offset)
                yield _key(log), offsets._replace(recovery_point=point)

    def requeue(self) -> None:
        """Requeue the unfinished work in the logs, and the offsets if they are not written."""
        for each in self._logs:
            each.log.requeue()
            if not self._is_written and not each.log.deleted:
                each.log.note_change()


def _run_first_sync(collected: _CollectedLog) -> None:
    """Run the first pending sync of a log. If a file is missing, the log goes offline."""
    if not collected.log.deleted:
        try:
            collected.before[0].sync()
        except FileNotFoundError as error:
            damage = CorruptLogError(str(error.filename), 0, "it or its directory is missing")
            collected.log.fail(damage.message)
            logger.error("%s", damage.message)
            collected.before.clear()
            return
    del collected.before[0]


def _key(log: Log) -> Partition:
    return log.topic, log.partition


def _offsets_of(log: Log) -> Offsets:
    return Offsets(
        log.log_start_offset, log.synced_offset, log.high_watermark, log.first_dirty_offset
    )


class RepairResult(NamedTuple):
    """Result of repairing a log.

    Attributes:
        log: The repaired log.
        known_start: Previous log start offset, from the checkpoints.
        known_end: Previous log end offset, from the checkpoints and valid batches after the damage.
        readable: Number of records in valid batches after the damage.
        quarantined: Files that hold the bytes after the damage.
    """

    log: Log
    known_start: int
    known_end: int
    readable: int
    quarantined: list[str]


class LogManager:
    """The logs of one log directory, which is locked while the manager is open.

    Attributes:
        data_dir: Path of the directory.
        meta: Identity from meta.properties.
        clean: True if the previous owner shut down cleanly.
        partition_directories: Directories of the partitions, open or not.
        is_new: True if the directory was created by this manager.
        failed: Reason why the directory and all its logs are offline, or None.
        read_only_reason: Reason why all its logs are read-only, or None.
    """

    def __init__(
        self,
        files: Files,
        data_dir: str,
        fresh: MetaProperties,
        *,
        guard: AbstractContextManager[object] | None = None,
        open_files_max: int | None = None,
    ) -> None:
        """Lock a directory and mark it as in use.

        Args:
            files: File system of the directory.
            data_dir: Path of the directory; it is created if missing.
            fresh: Identity to write to a new directory. An existing directory must have the same
                `node_id`; its cluster and directory IDs are kept.
            guard: Lock to use if checkpoint jobs run in other threads. The jobs and the writing
                methods here hold it for a few syncs at a time.
            open_files_max: Maximum number of logs that keep their active file open; None for no
                limit.

        Raises:
            StorageError: Another broker uses the directory, or it belongs to another node or a
                newer version.
        """
        self._files = files
        self.data_dir = data_dir
        self.partition_directories = PartitionDirectories(files, data_dir)
        self.is_new = False
        self.failed: str | None = None
        self.read_only_reason: str | None = None
        _make_directory(files, data_dir)
        self._lock: Lock = files.lock(f"{data_dir}/{LOCK}")
        try:
            self.meta = self._read_meta(fresh)
            self._logs: dict[Partition, Log] = {}
            self._changed: dict[Log, None] = {}  # in the order of their first change
            self._open_segments = None if open_files_max is None else OpenSegments(open_files_max)
            self._durable = False  # the data of a crashed owner is synced
            self._checkpoints = OffsetCheckpoints(files, data_dir, guard)
            self._job: CheckpointJob | None = None
            self._checkpointed_ms = 0
            self._checkpointed_bytes: dict[Log, int] = {}
            self._find_directories()
            self._reserve = Reserve(files, f"{data_dir}/{RESERVE}")
            if files.durable:
                self._create_reserve()
            self.clean = self._take_clean_marker()
        except BaseException:
            self._lock.release()
            raise

    # -- start

    def _read_meta(self, fresh: MetaProperties) -> MetaProperties:
        path = f"{self.data_dir}/{META_PROPERTIES}"
        try:
            meta = MetaProperties.from_bytes(self._files.read_bytes(path), path)
        except FileNotFoundError:
            self._files.write_atomic(path, fresh.to_bytes())
            self.is_new = True
            return fresh
        check_owner(self.data_dir, meta, fresh.node_id)
        return meta

    def _find_directories(self) -> None:
        names = self._files.listdir(self.data_dir)
        self._trash = [f"{self.data_dir}/{name}" for name in names if is_deleted_directory(name)]
        # Partitions on disk, in the same order in every run.
        self._directories = dict.fromkeys(sorted(partitions_among(names)))
        self._unopened = set(self._directories)

    def _take_clean_marker(self) -> bool:
        """Return True after a clean shutdown; remove the marker durably before any change.

        The marker is ignored if the checkpoints changed since: older or missing checkpoints cannot
        be used to validate logs.
        """
        path = f"{self.data_dir}/{CLEAN_SHUTDOWN}"
        if not self._files.exists(path):
            return False
        changed = self._checkpoints.changed_files(checksums_in_marker(self._files.read_bytes(path)))
        self._files.remove(path)
        self._files.sync_dir(self.data_dir)
        if changed:
            logger.warning(
                "%s: %s changed after the last clean stop (missing, damaged or another copy); every "
                "log is checked as after a crash, but truncated or missing logs may not be noticed. "
                "If records are missing, stop the server and restore these files and the partition "
                "directories from the same backup",
                self.data_dir,
                " and ".join(changed),
            )
        return not changed

    # -- full or unwritable disk

    def _create_reserve(self) -> None:
        """Create the reserve file; start read-only if the disk is full."""
        try:
            self._reserve.create()
        except StorageError as error:
            self.make_read_only(error.message or str(error))

    def make_read_only(self, reason: str) -> None:
        """Make all logs of this directory read-only until `make_writable`.

        This releases the reserved space, so that retention and compaction can free more.
        """
        self.read_only_reason = reason
        for log in self._logs.values():
            log.read_only_reason = reason
        with suppress(StorageError):  # the disk may not even delete the file
            self._reserve.release()

    def probe(self) -> None:
        """Check that the disk is writable and has free space; blocks. Any thread may call it.

        Raises StorageError.
        """
        self._reserve.create()
        path = f"{self.data_dir}/{PROBE}"
        try:
            self._files.write_atomic(path, b"probe")
            self._files.remove(path)
        except StorageError:
            self._reserve.release()
            raise

    def make_writable(self) -> None:
        """Make all logs of this directory writable again."""
        self.read_only_reason = None
        for log in self._logs.values():
            log.read_only_reason = None

    # -- logs

    @property
    def files(self) -> Files:
        """The file system of the directory."""
        return self._files

    def get(self, topic: str, partition: int) -> Log | None:
        """Return the log of a partition if it is open."""
        return self._logs.get((topic, partition))

    def __iter__(self) -> Iterator[Log]:
        """Iterate over all open logs."""
        return iter(list(self._logs.values()))

    def __contains__(self, partition: Partition) -> bool:
        return partition in self._directories

    def __len__(self) -> int:
        """Return the number of partitions on disk, open or not."""
        return len(self._directories)

    def fail(self, reason: str) -> None:
        """Take the directory and all its logs offline until it is reopened."""
        self.failed = self.failed or reason
        for log in self:
            log.fail(reason)

    def usage(self) -> tuple[int, int]:
        """Return the usable and the free bytes of the disk. Raises StorageError."""
        if self.failed is not None:
            raise StorageError(self.failed)
        return self._files.usage(self.data_dir)

    def size_of(self, topic: str, partition: int) -> int:
        """Return the bytes of a partition's records, open or not. Raises StorageError."""
        log = self._logs.get((topic, partition))
        if log is not None:
            return log.segments.size
        return self.partition_directories.size((topic, partition))

    def directories(self) -> list[Partition]:
        """Return all partitions on disk, open or not.

        Those found at the start come first, sorted; newer ones follow. Sorting all of them on each
        call would be slow.
        """
        return list(self._directories)

    def partitions(self) -> list[tuple[str, int, UUID | None]]:
        """Return topic, partition and topic ID of each directory; reads one file each.

        The ID is None if the file is missing, damaged or unreadable.
        """
        return [(*partition, self._topic_id(partition)) for partition in self.directories()]

    def sync_recovered(self) -> None:
        """Sync all data that a crashed owner wrote, several logs concurrently; blocks.

        Otherwise each log is synced when it is opened. A worker thread may call this while the
        owner opens logs. Raises StorageError.
        """
        calls = [partial(self._sync_log, key) for key in tuple(self._unopened)]
        self._files.at_once(calls, RECOVERY_SYNC_THREADS)
        self._files.sync_dir(self.data_dir)
        self._durable = True

    def _sync_log(self, key: Partition) -> None:
        """Sync the data of a log from its recovery point on, and its file names."""
        self.partition_directories.sync(key, self._checkpoints.get(key).recovery_point, self.fail)

    def _topic_id(self, key: Partition) -> UUID | None:
        log = self._logs.get(key)
        if log is not None:
            return log.topic_id
        with suppress(StorageError):  # the directory may be unreadable
            identity = self.partition_directories.read_identity(key)
            return None if identity is None else identity.topic_id
        return None

    def open_log(
        self, topic: str, topic_id: UUID, partition: int, config: LogConfig, *, now_ms: int
    ) -> Log:
        """Return the log of a partition: open, loaded from disk, or new.

        A new log has no directory until its first append.

        Args:
            topic: Topic name.
            topic_id: Topic ID that the directory must have.
            partition: Partition number.
            config: Settings of the log.
            now_ms: Current time of the log clock in ms.

        Raises:
            CorruptLogError: Durable bytes are damaged; other logs are not affected.
            ForeignLogError: The directory holds another partition or another topic ID.
            StorageError: The directory or its files cannot be read or written.
        """
        key = (topic, partition)
        log = self._logs.get(key)
        if log is not None and log.topic_id == topic_id:
            return log
        if self.failed is not None:
            raise StorageError(self.failed)
        try:
            return self._open_log(key, topic_id, config, now_ms)
        except StorageError as error:
            if type(error) is not StorageError:
                raise
            directory = self.partition_directories.path(key)
            raise StorageError(
                f"{error.message}. The partition is offline and its files are unchanged; make "
                f"{directory} a readable directory, or restore it from a backup"
            ) from error

    def _open_log(self, key: Partition, topic_id: UUID, config: LogConfig, now_ms: int) -> Log:
        if key in self._directories:
            was_used = bool(self._checkpoints.get(key).recovery_point)
            self.partition_directories.check_identity(key, topic_id, was_used=was_used)
        return self._register(key, self._load(key, topic_id, config, now_ms, clean=self.clean))

    def repair_log(
        self, topic: str, topic_id: UUID, partition: int, config: LogConfig, *, now_ms: int
    ) -> RepairResult:
        """Open a damaged log with the records before the damage.

        All batches are checked as after a crash without checkpoints. The log ends at the first bad
        batch; the bytes after it are kept in `.corrupt` files next to the segments.

        Raises:
            StorageError: The directory or its files cannot be read or written.
        """
        key = (topic, partition)
        offsets = self._checkpoints.get(key)
        quarantined = QuarantinedData()
        distrusted = offsets._replace(recovery_point=0, high_watermark=0)
        self._checkpoints.update([(key, distrusted)])
        log = self._register(
            key, self._load(key, topic_id, config, now_ms, clean=False, quarantined=quarantined)
        )
        known_end = max(
            log.log_end_offset, quarantined.end, offsets.recovery_point, offsets.high_watermark
        )
        return RepairResult(
            log, offsets.log_start, known_end, quarantined.records, quarantined.paths
        )

    def forget_missing(self, key: Partition) -> Offsets:
        """Accept that a partition directory is missing: remove and return its checkpoints.

        Raises StorageError.
        """
        known = self._checkpoints.get(key)
        self._checkpoints.forget([key])
        return known

    def _register(self, key: Partition, log: Log) -> Log:
        log.read_only_reason = self.read_only_reason
        self._logs[key] = log
        self._directories[key] = None
        self._unopened.discard(key)
        return log

    def _load(
        self,
        key: Partition,
        topic_id: UUID,
        config: LogConfig,
        now_ms: int,
        *,
        clean: bool,
        quarantined: QuarantinedData | None = None,
    ) -> Log:
        topic, partition = key
        log = Log(
            self._files,
            self.data_dir,
            topic,
            partition,
            topic_id,
            config,
            changed=self._changed,
            lower_recovery_point=self._lower_recovery_point,
            open_segments=self._open_segments,
        )
        offsets = self._checkpoints.get(key)
        if key not in self._directories and not offsets.recovery_point:
            if offsets.high_watermark > offsets.log_start:
                logger.warning(
                    "%s/%s is missing: partition %s-%d starts empty, although consumers could read "
                    "offsets %d to %d; if the cause was not a power failure with flush.policy=os or "
                    "interval, stop the server and restore the directory from a backup",
                    self.data_dir,
                    directory_name(*key),
                    topic,
                    partition,
                    offsets.log_start,
                    offsets.high_watermark - 1,
                )
            return log
        load_log(
            self._files,
            log,
            offsets,
            clean=clean,
            now_ms=now_ms,
            # Only on first opening: data that this process wrote later may not be synced.
            durable=self._durable and key in self._unopened,
            quarantined=quarantined,
        )
        return log

    def delete_logs(self, partitions: Iterable[Partition], topic_id: UUID) -> list[str]:
        """Delete partitions of a topic; `empty_trash` deletes their bytes.

        The directories are renamed at once. File ranges that are being sent stay readable. A
        directory that holds another topic ID is moved aside instead.

        Args:
            partitions: Partitions to delete; those without a directory are ignored.
            topic_id: ID of the deleted topic.

        Returns:
            New paths of the directories that were moved aside.

        Raises:
            StorageError: A directory cannot be renamed.
        """
        keys = [key for key in partitions if key in self._directories]
        own = [key for key in keys if self._holds_topic(key, topic_id)]
        self._trash += self._remove_from_service(
            own, self.partition_directories.prepare_deleted_path
        )
        return self.move_aside(key for key in keys if key in self._directories)

    def _holds_topic(self, key: Partition, topic_id: UUID) -> bool:
        """Return False if the directory of a partition holds another topic ID or is unreadable."""
        log = self._logs.get(key)
        if log is not None:
            return log.topic_id == topic_id
        try:
            held = self.partition_directories.read_identity(key)
        except StorageError:
            return False
        return held is None or held.belongs_to(topic_id, key[1])

    def move_aside(self, partitions: Iterable[Partition]) -> list[str]:
        """Move the directories of stray partitions aside, and keep their data.

        As in Kafka, records are kept if the metadata is older than they are.

        Args:
            partitions: Partitions without a topic.

        Returns:
            New paths of the directories.

        Raises:
            StorageError: A directory cannot be renamed.
        """
        return self._remove_from_service(partitions, self.partition_directories.unused_stray_path)

    def _remove_from_service(
        self, partitions: Iterable[Partition], name: Callable[[Partition, UUID], str]
    ) -> list[str]:
        """Rename the directories of partitions; return the new paths of those that existed.

        Raises the first StorageError. If a directory cannot be renamed, the others are renamed
        nevertheless, and the partition keeps its directory.
        """
        removed = [key for key in partitions if key in self._directories]
        if not removed:
            return []
        # Before the rename: these offsets must not apply to a later topic with this name.
        opened = [log for key in removed if (log := self._logs.get(key)) is not None]
        _forget_offsets(self._checkpoints, removed, opened)
        renamed: list[str] = []
        failed: StorageError | None = None
        with self._checkpoints.guard:
            for key in removed:
                try:
                    renamed += self._rename_aside(key, name)
                except StorageError as error:
                    failed = failed or error
        self._files.sync_dir(self.data_dir)
        if failed is not None:
            raise failed
        return renamed

    def _rename_aside(self, key: Partition, name: Callable[[Partition, UUID], str]) -> list[str]:
        path = self.partition_directories.path(key)
        topic_id = self._topic_id(key) or _NO_ID
        log = self._logs.pop(key, None)
        if log is not None:
            log.close(clean=False)
            self._changed.pop(log, None)
            self._checkpointed_bytes.pop(log, None)
        renamed = []
        if self._files.exists(path):
            renamed = [name(key, topic_id)]
            self._files.rename(path, renamed[0])
        # Only now: a new log would overwrite the files of a directory that is not known here.
        self._directories.pop(key, None)
        self._unopened.discard(key)
        return renamed

    def empty_trash(self) -> None:
        """Delete the bytes of deleted partitions; blocks. A worker thread may call it."""
        while self._trash:
            self._files.rmtree(self._trash.pop())

    # -- future replicas

    def belongs_to_log(self, future: FutureDirectory) -> bool:
        """Return True if a future replica belongs to the current log of its partition."""
        return self._holds_topic(future.key, future.topic_id)

    def is_finished(self, future: FutureDirectory) -> bool:
        """Return True if a future replica was complete and durable when its move stopped."""
        return self._checkpoints.get(future.key) != Offsets()

    def discard_future(self, future: FutureDirectory) -> None:
        """Remove an unfinished future replica and its checkpoint."""
        self._files.rmtree(f"{self.data_dir}/{future.name}")
        if future.key not in self._directories:
            self._checkpoints.forget([future.key])

    def checkpoint_future(self, key: Partition, offsets: Offsets) -> None:
        """Checkpoint a future replica before `install_future`. Raises StorageError."""
        self._checkpoints.update([(key, offsets)])

    def install_future(self, key: Partition, name: str) -> None:
        """Rename the future replica in directory `name` to the log of a partition, durably.

        Raises StorageError.
        """
        self._files.rename(f"{self.data_dir}/{name}", self.partition_directories.path(key))
        self._files.sync_dir(self.data_dir)
        self._directories[key] = None
        self._unopened.add(key)

    # -- checkpoints

    def checkpoint_due(self, now_ms: int) -> bool:
        """Return True if a log changed and the next checkpoint is due."""
        if not self._changed:
            return False
        waited_ms = now_ms - self._checkpointed_ms
        if waited_ms >= CHECKPOINT_EVERY_MS or waited_ms < 0:
            return True
        if waited_ms >= _ROLLED_EVERY_MS and any(
            log.pending.needs_checkpoint for log in self._changed
        ):
            return True
        return any(
            log.appended_bytes - self._checkpointed_bytes.get(log, 0) >= CHECKPOINT_EVERY_BYTES
            for log in self._changed
        )

    def checkpoint(self, now_ms: int) -> CheckpointJob:
        """Collect a checkpoint of all changed logs; `CheckpointJob.run` writes it."""
        self._checkpointed_ms = now_ms
        if self._job is not None:
            self._job.requeue()
        collected = []
        for log in self._changed:
            self._checkpointed_bytes[log] = log.appended_bytes
            if log.log_end_offset or log.pending.needs_checkpoint:
                collected.append(_CollectedLog(log, _offsets_of(log), *log.take_checkpoint_work()))
        # In place: the logs share this dict. Logs that are not synced will change again.
        for log in [log for log in self._changed if not log.pending.dirty]:
            del self._changed[log]
        self._job = CheckpointJob(self._files, self._checkpoints, collected, self.fail)
        return self._job

    def _lower_recovery_point(self, log: Log) -> None:
        """Lower the checkpointed recovery point of a log before it is truncated.

        The point is never raised: later data may not be durable. The file is written even if
        nothing changes, so that an unwritable disk is detected before the truncation.
        """
        offsets = _offsets_of(log)
        point = min(offsets.recovery_point, self._checkpoints.get(_key(log)).recovery_point)
        lowered = offsets._replace(recovery_point=point)
        self._checkpoints.update([(_key(log), lowered)], always_write=True)

    def note_compaction(self, log: Log, end_offset: int) -> None:
        """Record durably, before a compaction, that a log has gaps only before a recovery point.

        If the recovery point were within a gap, recovery would report the gap as damage. Blocks. A
        worker thread may call it.

        Args:
            log: The log.
            end_offset: End of the compacted offsets. All records before it are synced, and no
                checkpoint for them is pending.

        Raises:
            StorageError: A checkpoint file cannot be written.
        """
        self._checkpoints.update(self._before_compaction(log, end_offset))

    def _before_compaction(self, log: Log, end_offset: int) -> Iterator[tuple[Partition, Offsets]]:
        if not log.deleted:
            known = self._checkpoints.get(_key(log))
            # The log may have been truncated in the meantime.
            point = max(known.recovery_point, min(end_offset, log.synced_offset))
            first_dirty = max(known.first_dirty, 0)
            yield _key(log), known._replace(recovery_point=point, first_dirty=first_dirty)

    # -- end

    def close(self, *, clean: bool = True, now_ms: int = 0) -> None:
        """Close all logs and unlock the directory; if `clean`, sync everything first.

        The clean-shutdown marker is written only if no log is offline and, after a crash, all logs
        were opened.

        Args:
            clean: Sync all logs and write a checkpoint.
            now_ms: Current time of the log clock in ms.

        Raises:
            StorageError: A write failed; the directory is unlocked anyway.
        """
        try:
            if clean:
                self._sync_all()
            sound = [log.close(clean=clean) for log in self._logs.values()]
            if clean:
                self.checkpoint(now_ms).run(max(len(self._logs), 1))  # no other user of the guard
                if all(sound) and (self.clean or not self._unopened):
                    marker = f"{self.data_dir}/{CLEAN_SHUTDOWN}"
                    self._files.write_atomic(marker, clean_marker(self._checkpoints.checksums()))
        finally:
            self._logs.clear()
            self._lock.release()

    def _sync_all(self) -> None:
        """Sync all logs in one pass, which is faster than one by one."""
        dirty = [log for log in self._logs.values() if log.pending.dirty and log.offline is None]
        for log, end in sync_logs(self._files, dirty):
            log.synced(end)


def check_owner(data_dir: str, meta: MetaProperties, node_id: int) -> None:
    """Raise StorageError if the directory belongs to another node."""
    if meta.node_id != node_id:
        raise StorageError(
            f"{data_dir}: belongs to node {meta.node_id}, but this is node {node_id}; start with "
            f"node.id={meta.node_id}, or choose another directory"
        )


def _forget_offsets(
    checkpoints: OffsetCheckpoints, removed: Sequence[Partition], logs: Sequence[Log]
) -> None:
    """Remove the checkpoints of partitions whose open logs are about to be deleted.

    Raises StorageError; the logs stay in use then.
    """
    for log in logs:
        log.deleted = True
    try:
        checkpoints.forget(removed)
    except StorageError:
        for log in logs:
            log.deleted = False
            log.note_change()
        raise


def partitions_among(names: Iterable[str]) -> Iterator[Partition]:
    """Yield the partitions whose directories are among `names`."""
    for name in names:
        if parsed := parse_directory_name(name):
            yield parsed


def _make_directory(files: Files, path: str) -> None:
    """Create a directory and its parents durably."""
    if not path or files.exists(path):
        return
    parent = path.rpartition("/")[0]
    _make_directory(files, parent)
    files.mkdir(path)
    files.sync_dir(parent or ("/" if path.startswith("/") else "."))


def sync_logs(files: Files, logs: Iterable[Log]) -> list[tuple[Log, int]]:
    """Sync many logs in one pass, several concurrently if that is faster; blocks.

    A worker thread may call it while the owner appends, one pass at a time.

    Args:
        files: File system of the logs.
        logs: Logs of one directory.

    Returns:
        Each log with its end offset from before the pass, to pass to `Log.synced`. After a failed
        sync all logs are offline and the list is empty.
    """
    passes = [(log, log.log_end_offset) for log in logs]
    items = [item for log, _ in passes for item in log.pending.take_dirty()]
    try:
        sync_together(files, items)
    except StorageError as error:
        # The logs share a disk: after one failed sync none of them can be trusted.
        for log, _ in passes:
            log.fail(str(error))
        return []
    return passes
