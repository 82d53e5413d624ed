"""A data directory and the logs in it: who it belongs to, what is known about each log, which exist.

Logs are opened when somebody asks for them, after a crash as well: start-up reads four small files
however many partitions there are.

The owner calls, from its event loop:

* `open_log` for a partition it hosts, `delete_logs` for topics that are gone;
* `sync_logs` for all logs that have an ack waiting (in a worker thread, then `Log.synced`);
* `checkpoint` when `checkpoint_due` (the job's `run` in a worker thread);
* `close` at the end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
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
from .errors import StorageError, SyncFailedError, WriteRefusedError
from .files import Files, Lock
from .log import NEVER_COMPACTED, Log
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
from .partition_directories import Future, PartitionDirectories
from .recovery import Cut, load_log
from .reserve import Reserve
from .segment import Segment
from .sync import SyncItem, sync_together

logger = logging.getLogger(__name__)

CHECKPOINT_EVERY_MS = 5_000
_ROLLED_EVERY_MS = 1_000
CHECKPOINT_EVERY_BYTES = 16 * 1024 * 1024
LOGS_AT_ONCE = 16
"""How many logs a checkpoint makes durable at the same time, while others may want the guard."""
SETTLING_THREADS = 2
"""How many make durable what a crash left, while clients are served; as many as Kafka's
num.recovery.threads.per.data.dir. With 16 of them the event loop waits for the interpreter in each of its
calls of the system: 6 ms for an append that takes 0.8, and on a fast disk they are done hardly sooner."""

_NO_ID = UUID(int=0)


class _Collected(NamedTuple):
    """One log in a checkpoint: its offsets, and what is to be done before and after they count."""

    log: Log
    offsets: Offsets
    before: list[SyncItem]
    after: list[Segment | LogStartMark]


class CheckpointJob:
    """What one checkpoint writes, collected at one moment.

    `run` blocks and may run in a worker thread, one job at a time. It first makes durable what the
    offsets rely on, then writes the offsets, then removes segments that nobody needs any more.
    The owner calls `put_back` after a job that failed, and the next job does the rest (but a failed
    sync takes its log offline).

    The owner may delete a log meanwhile, and even make another one with the same paths. So each
    step takes the guard and looks whether its log is still there.
    """

    def __init__(
        self,
        files: Files,
        checkpoints: OffsetCheckpoints,
        logs: list[_Collected],
        fail: Callable[[str], None],
    ) -> None:
        self._files = files
        self._checkpoints = checkpoints
        self._logs = logs
        self._fail = fail

    def run(self, logs_at_once: int = LOGS_AT_ONCE) -> None:
        """Raises StorageError; the checkpoints are the old ones then, which are true still.

        After a failed sync the directory is offline, whichever file it was.
        """
        try:
            self._settle(logs_at_once)
            self._checkpoints.update(self._offsets())
        except SyncFailedError as error:
            self._fail(str(error))
            raise
        except StorageError:
            # Perhaps the disk is full, and what waits here is the way out of that.
            self._remove_on_full_disk()
            raise
        try:
            self._remove()
        except SyncFailedError as error:
            self._fail(str(error))
            raise

    def _settle(self, logs_at_once: int) -> None:
        """Settle what each log needs, in its order, and several logs at once.

        The guard is held until those have done their next thing.
        """
        for start in range(0, len(self._logs), logs_at_once):
            waiting = self._logs[start : start + logs_at_once]
            while waiting := [each for each in waiting if each.before]:
                with self._checkpoints.guard:
                    self._files.at_once([partial(_settle_first, each) for each in waiting])

    def _remove(self) -> None:
        """Remove segments, the oldest first, and marks."""
        for log, _, _, after in self._logs:
            while after:
                with self._checkpoints.guard:
                    if not log.deleted:
                        after[0].remove()
                del after[0]

    def _remove_on_full_disk(self) -> None:
        """Remove segments although no checkpoint names the log start: a mark does.

        A crash must not bring back one segment without the next: each removal is made durable before
        the next one. Marks stay until there is a checkpoint.
        """
        for log, offsets, _, after in self._logs:
            segments = [each for each in after if isinstance(each, Segment)]
            if segments:
                with self._checkpoints.guard:
                    mark = None if log.deleted else self._marked(log, offsets, segments[0])
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

    def _marked(self, log: Log, offsets: Offsets, oldest: Segment) -> LogStartMark:
        """Create a mark of the log start. Raises StorageError."""
        mark = LogStartMark(self._files, log.directory, offsets.log_start)
        try:
            mark.create()
        except WriteRefusedError:
            oldest.remove_indexes()  # for a disk without an inode or a block for the name
            mark.create()
        return mark

    def _offsets(self) -> Iterator[tuple[Partition, Offsets]]:
        for log, offsets, _, _ in self._logs:
            if not log.deleted:
                # The log may have been cut since.
                point = min(offsets.recovery_point, log.synced_offset)
                yield _key(log), offsets._replace(recovery_point=point)

    def put_back(self) -> None:
        """Give the logs again what was not done."""
        for each in self._logs:
            each.log.put_back()


def _settle_first(collected: _Collected) -> None:
    """Do the first thing that a log's offsets rely on."""
    if not collected.log.deleted:
        collected.before[0].sync()
    del collected.before[0]


def _key(log: Log) -> Partition:
    return log.topic, log.partition


def _offsets_of(log: Log) -> Offsets:
    return Offsets(
        log.log_start_offset, log.synced_offset, log.high_watermark, log.first_dirty_offset
    )


class Repaired(NamedTuple):
    """A log that was repaired.

    `known_start` and `known_end` are where it began and ended before, as far as checkpoints and sound
    batches behind the damage tell. `readable` are the records of those batches, in the files `put_aside`.
    """

    log: Log
    known_start: int
    known_end: int
    readable: int
    put_aside: list[str]


class LogManager:
    """The logs of one data directory, which is locked while the manager is open.

    `meta` says whose data it is. `clean` says that the last owner closed it properly.
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
        """Claim a directory, and mark it as in use.

        Parameters:
            files: where the directory is.
            data_dir: its path; made when it does not exist.
            fresh: written when the directory is new. In one that is not, `node_id` must be the same;
                cluster and directory id come from the directory.
            guard: a lock, when checkpoint jobs run in other threads. It is held for a few syncs at
                a time, by the jobs and by the methods here that write.
            open_files_max: how many logs may keep the file open that they append to; None for all.

        Raises:
            StorageError: another broker uses the directory, it belongs to another node, or it is of a
                newer version.
        """
        self._files = files
        self.data_dir = data_dir
        self.partition_directories = PartitionDirectories(files, data_dir)
        """The directories of the partitions, opened or not."""
        self.is_new = False
        """Whether nobody has used the directory before."""
        self.failed: str | None = None
        """Why the directory is offline, with all its logs."""
        self.refusal: str | None = None
        """Why nothing is appended to the logs of the directory for now."""
        _make_directory(files, data_dir)
        self._lock: Lock = files.lock(f"{data_dir}/{LOCK}")
        try:
            self.meta = self._read_meta(fresh)
            self._logs: dict[Partition, Log] = {}
            self._changed: dict[Log, None] = {}  # in order of their first change
            self._open_segments = None if open_files_max is None else OpenSegments(open_files_max)
            self._durable = False  # what the last owner wrote, although it crashed
            self._checkpoints = OffsetCheckpoints(files, data_dir, guard)
            self._job: CheckpointJob | None = None
            self._checkpointed_ms = 0
            self._checkpointed_bytes: dict[Log, int] = {}
            self._find_directories()
            self._reserve = Reserve(files, f"{data_dir}/{RESERVE}")
            if files.durable:
                self._keep_room()
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
        # Partitions that are on disk; in one order in every run.
        self._directories = dict.fromkeys(sorted(partitions_among(names)))
        self._unopened = set(self._directories)

    def _take_clean_marker(self) -> bool:
        """Return True if the last owner stopped in order; the marker is gone for good before anything
        is changed.

        The marker does not count if the checkpoints are not those of that stop: they may be older
        copies, or missing, and then no log can be measured by them.
        """
        path = f"{self.data_dir}/{CLEAN_SHUTDOWN}"
        if not self._files.exists(path):
            return False
        differing = self._checkpoints.differing(checksums_in_marker(self._files.read_bytes(path)))
        self._files.remove(path)
        self._files.sync_dir(self.data_dir)
        if differing:
            logger.warning(
                "%s: %s changed after the last clean stop (missing, damaged or another copy); every "
                "log is checked as after a crash, but a log that lost its end or its directory may not be "
                "noticed. If records are missing, stop the server and restore these files and the "
                "directories of the partitions from one copy",
                self.data_dir,
                " and ".join(differing),
            )
        return not differing

    # -- a disk that takes nothing

    def _keep_room(self) -> None:
        """Begin without appends on a disk on which no room can be kept back."""
        try:
            self._reserve.make()
        except StorageError as error:
            self.refuse(error.message or str(error))

    def refuse(self, reason: str) -> None:
        """Append nothing to the logs of this directory until `accept`; they can be read.

        What was kept back is for what wins room back.
        """
        self.refusal = reason
        for log in self._logs.values():
            log.refusal = reason
        with suppress(StorageError):  # where nothing can be removed, nothing is won
            self._reserve.release()

    def probe(self) -> None:
        """Find out whether the disk takes bytes, and has room again. Blocks; any thread may do it.

        Raises StorageError.
        """
        self._reserve.make()
        path = f"{self.data_dir}/{PROBE}"
        try:
            self._files.write_atomic(path, b"probe")
            self._files.remove(path)
        except StorageError:
            self._reserve.release()
            raise

    def accept(self) -> None:
        """Append to the logs of this directory again."""
        self.refusal = None
        for log in self._logs.values():
            log.refusal = None

    # -- logs

    @property
    def files(self) -> Files:
        """Where the directory is."""
        return self._files

    def get(self, topic: str, partition: int) -> Log | None:
        """The log, if it is open."""
        return self._logs.get((topic, partition))

    def __iter__(self) -> Iterator[Log]:
        """All open logs."""
        return iter(list(self._logs.values()))

    def __contains__(self, partition: Partition) -> bool:
        return partition in self._directories

    def __len__(self) -> int:
        """How many partitions are here, open or not."""
        return len(self._directories)

    def fail(self, reason: str) -> None:
        """Take the directory offline for good: nothing in it is served or taken any more."""
        self.failed = self.failed or reason
        for log in self:
            log.fail(reason)

    def usage(self) -> tuple[int, int]:
        """Bytes of the disk: used or free for us, and free for us. Raises StorageError."""
        if self.failed is not None:
            raise StorageError(self.failed)
        return self._files.usage(self.data_dir)

    def size_of(self, topic: str, partition: int) -> int:
        """Bytes of a partition's records, whether it is open or not. Raises StorageError."""
        log = self._logs.get((topic, partition))
        if log is not None:
            return log.segments.size
        return self.partition_directories.size((topic, partition))

    def directories(self) -> list[Partition]:
        """Topic and partition of everything on disk, open or not: what was found at the start by
        name, and behind it what came since. To sort all of them takes long when there are many."""
        return list(self._directories)

    def partitions(self) -> list[tuple[str, int, UUID | None]]:
        """As `directories`, with the topic id that the directory names; this reads a file for each.

        The id is None when the file that holds it is missing, damaged or cannot be read.
        """
        return [(*partition, self._topic_id(partition)) for partition in self.directories()]

    def settle(self) -> None:
        """Make durable what an owner that crashed had written, several logs at once.

        Without it each log is synced when it is opened. Blocks; a worker thread may call it, while
        the owner opens logs. Raises StorageError.
        """
        calls = [partial(self._settle_log, key) for key in tuple(self._unopened)]
        self._files.at_once(calls, SETTLING_THREADS)
        self._files.sync_dir(self.data_dir)
        self._durable = True

    def _settle_log(self, key: Partition) -> None:
        """Make durable what a log holds from its recovery point on, and its names."""
        self.partition_directories.sync(key, self._checkpoints.get(key).recovery_point, self.fail)

    def _topic_id(self, key: Partition) -> UUID | None:
        log = self._logs.get(key)
        if log is not None:
            return log.topic_id
        with suppress(StorageError):  # a directory that cannot be read says nothing
            held = self.partition_directories.held(key)
            return None if held is None else held.topic_id
        return None

    def open_log(
        self, topic: str, topic_id: UUID, partition: int, config: LogConfig, *, now_ms: int
    ) -> Log:
        """The log of a partition: the open one, or from disk, or a new one.

        A new log has no directory until its first append.

        Raises:
            CorruptLogError: bytes that were durable are damaged; other logs are not affected.
            ForeignLogError: the directory holds another partition, or one of another topic.
            StorageError: the system refuses.
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
                f"{error.message}. The partition is offline and its files are untouched; make "
                f"{directory} a directory that can be read, or restore it from a copy"
            ) from error

    def _open_log(self, key: Partition, topic_id: UUID, config: LogConfig, now_ms: int) -> Log:
        if key in self._directories:
            was_used = bool(self._checkpoints.get(key).recovery_point)
            self.partition_directories.check_held(key, topic_id, was_used=was_used)
        return self._keep(key, self._load(key, topic_id, config, now_ms, clean=self.clean))

    def repair_log(
        self, topic: str, topic_id: UUID, partition: int, config: LogConfig, *, now_ms: int
    ) -> Repaired:
        """Open a damaged log with what is readable before the damage.

        All of it is checked as after a crash that left nothing certain: the first bad batch ends
        it, and all bytes behind that are kept in `.corrupt` files beside the segments.

        Raises StorageError: the system refuses.
        """
        key = (topic, partition)
        offsets = self._checkpoints.get(key)
        cut = Cut()
        distrusted = offsets._replace(recovery_point=0, high_watermark=0)
        self._checkpoints.update([(key, distrusted)])
        log = self._keep(key, self._load(key, topic_id, config, now_ms, clean=False, cut=cut))
        known_end = max(log.log_end_offset, cut.end, offsets.recovery_point, offsets.high_watermark)
        return Repaired(log, offsets.log_start, known_end, cut.records, cut.paths)

    def give_up_missing(self, key: Partition) -> Offsets:
        """Accept that the directory of a partition is missing: remove its checkpoints, and return them.

        Raises StorageError.
        """
        known = self._checkpoints.get(key)
        self._checkpoints.forget([key])
        return known

    def _keep(self, key: Partition, log: Log) -> Log:
        log.refusal = self.refusal
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
        cut: Cut | None = None,
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
                    "%s/%s is missing: partition %s-%d begins empty, although consumers could read "
                    "offsets %d to %d; if that was not a power cut with flush.policy=os or interval, "
                    "stop the server and restore the directory from a copy",
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
            # What this process has written since may not be: only for the first opening.
            durable=self._durable and key in self._unopened,
            cut=cut,
        )
        return log

    def delete_logs(self, partitions: Iterable[Partition], topic_id: UUID) -> list[str]:
        """Remove partitions of a topic: gone at once under their names, their bytes with
        `empty_trash`.

        Ranges that are being sent stay readable. A directory that holds another partition is set
        aside instead.

        Args:
            partitions: Which ones; those without a directory are left out.
            topic_id: Id of the topic that was deleted, or whose replicas were.

        Returns:
            The directories that were set aside, under their new names.

        Raises:
            StorageError: The system refuses.
        """
        keys = [key for key in partitions if key in self._directories]
        own = [key for key in keys if self._is_known_to_be(key, topic_id)]
        self._trash += self._take_out(own, self.partition_directories.free_deleted)
        return self.set_aside(key for key in keys if key in self._directories)

    def _is_known_to_be(self, key: Partition, topic_id: UUID) -> bool:
        """Return False if the directory of a partition says that it holds another one."""
        log = self._logs.get(key)
        if log is not None:
            return log.topic_id == topic_id
        try:
            held = self.partition_directories.held(key)
        except StorageError:  # what cannot be read may be anything
            return False
        return held is None or held.is_of(topic_id, key[1])

    def set_aside(self, partitions: Iterable[Partition]) -> list[str]:
        """Take partitions out of service that belong to no topic, and keep what they hold.

        As Kafka does: metadata that is older than the records must not cost the records. Returns
        the directories in which they are from now on. Raises StorageError.
        """
        return self._take_out(partitions, self.partition_directories.free_stray)

    def _take_out(
        self, partitions: Iterable[Partition], name: Callable[[Partition, UUID], str]
    ) -> list[str]:
        """Rename the directories of partitions; returns the new names of those that were there."""
        gone = [key for key in partitions if key in self._directories]
        if not gone:
            return []
        # Before the names go: a later topic of this name must not be measured by these offsets.
        for key in gone:
            if log := self._logs.get(key):
                log.deleted = True
        self._checkpoints.forget(gone)
        with self._checkpoints.guard:
            renamed = [self._put_aside(key, name) for key in gone]
        self._files.sync_dir(self.data_dir)
        return [directory for directory in renamed if directory is not None]

    def _put_aside(self, key: Partition, name: Callable[[Partition, UUID], str]) -> str | None:
        path = self.partition_directories.path(key)
        topic_id = self._topic_id(key) or _NO_ID
        log = self._logs.pop(key, None)
        if log is not None:
            log.close(clean=False)
            self._changed.pop(log, None)
            self._checkpointed_bytes.pop(log, None)
        self._directories.pop(key, None)
        self._unopened.discard(key)
        if not self._files.exists(path):
            return None
        aside = name(key, topic_id)
        self._files.rename(path, aside)
        return aside

    def empty_trash(self) -> None:
        """Remove the bytes of deleted partitions. Blocks; a worker thread may call it."""
        while self._trash:
            self._files.rmtree(self._trash.pop())

    # -- copies that replace logs

    def is_copy_of(self, future: Future) -> bool:
        """Return True if a copy is one of the log that is here."""
        return self._is_known_to_be(future.key, future.topic_id)

    def is_finished(self, future: Future) -> bool:
        """Return True if a copy was complete and durable when its move broke off."""
        return self._checkpoints.get(future.key) != Offsets()

    def discard_future(self, future: Future) -> None:
        """Remove a copy that was never finished, and what a checkpoint may say of it."""
        self._files.rmtree(f"{self.data_dir}/{future.name}")
        if future.key not in self._directories:
            self._checkpoints.forget([future.key])

    def expect(self, key: Partition, offsets: Offsets) -> None:
        """Checkpoint a log that will be taken over. Raises StorageError."""
        self._checkpoints.update([(key, offsets)])

    def take_over(self, key: Partition, name: str) -> None:
        """Let the copy in directory `name` be the log of a partition, durably.

        Raises StorageError.
        """
        self._files.rename(f"{self.data_dir}/{name}", self.partition_directories.path(key))
        self._files.sync_dir(self.data_dir)
        self._directories[key] = None
        self._unopened.add(key)

    # -- checkpoints

    def checkpoint_due(self, now_ms: int) -> bool:
        """Whether something changed since the last checkpoint, and it is time for the next."""
        if not self._changed:
            return False
        waited_ms = now_ms - self._checkpointed_ms
        if waited_ms >= CHECKPOINT_EVERY_MS or waited_ms < 0:
            return True
        if waited_ms >= _ROLLED_EVERY_MS and any(
            log.pending.wants_checkpoint for log in self._changed
        ):
            return True
        return any(
            log.appended_bytes - self._checkpointed_bytes.get(log, 0) >= CHECKPOINT_EVERY_BYTES
            for log in self._changed
        )

    def checkpoint(self, now_ms: int) -> CheckpointJob:
        """Collect a checkpoint of all logs that changed; nothing is written before its `run`."""
        self._checkpointed_ms = now_ms
        if self._job is not None:
            self._job.put_back()
        collected = []
        for log in self._changed:
            self._checkpointed_bytes[log] = log.appended_bytes
            if log.log_end_offset or log.pending.wants_checkpoint:
                collected.append(_Collected(log, _offsets_of(log), *log.unsettled()))
        # In place, because the logs share it. What is not synced yet will change again.
        for log in [log for log in self._changed if not log.pending.dirty]:
            del self._changed[log]
        self._job = CheckpointJob(self._files, self._checkpoints, collected, self.fail)
        return self._job

    def _lower_recovery_point(self, log: Log) -> None:
        """A log is about to be cut: no checkpoint may name more than will be there.

        Nor may it name more than it does already, because what that rests on may not be durable. It
        is written even if it names less, so that a disk that takes nothing shows before the first cut.
        """
        offsets = _offsets_of(log)
        point = min(offsets.recovery_point, self._checkpoints.get(_key(log)).recovery_point)
        lowered = offsets._replace(recovery_point=point)
        self._checkpoints.update([(_key(log), lowered)], always_write=True)

    def note_compaction(self, log: Log) -> None:
        """Note for good that a log may have gaps from now on, before the first of them; blocks.

        A worker thread may call it. Raises StorageError.
        """
        known = self._checkpoints.get(_key(log))
        if known.first_dirty == NEVER_COMPACTED and not log.deleted:
            self._checkpoints.update([(_key(log), known._replace(first_dirty=0))])

    # -- end

    def close(self, *, clean: bool = True, now_ms: int = 0) -> None:
        """Close all logs and give the directory free; with `clean` everything is durable first.

        The clean marker is written only when it is true for every partition of the directory: none
        offline, and none left that was not opened since a crash.

        Raises StorageError; the directory is free then as well.
        """
        try:
            if clean:
                self._sync_all()
            sound = [log.close(clean=clean) for log in self._logs.values()]
            if clean:
                self.checkpoint(now_ms).run(max(len(self._logs), 1))  # nobody else wants the guard
                if all(sound) and (self.clean or not self._unopened):
                    marker = f"{self.data_dir}/{CLEAN_SHUTDOWN}"
                    self._files.write_atomic(marker, clean_marker(self._checkpoints.checksums()))
        finally:
            self._logs.clear()
            self._lock.release()

    def _sync_all(self) -> None:
        """Sync all logs in one pass, which leaves little for each."""
        dirty = [log for log in self._logs.values() if log.pending.dirty and log.offline is None]
        for log, end in sync_logs(self._files, dirty):
            log.synced(end)


def check_owner(data_dir: str, meta: MetaProperties, node_id: int) -> None:
    """Raise StorageError for the directory of another node."""
    if meta.node_id != node_id:
        raise StorageError(
            f"{data_dir} belongs to node {meta.node_id}, this is node {node_id}; start with "
            f"node.id={meta.node_id}, or choose another directory"
        )


def partitions_among(names: Iterable[str]) -> Iterator[Partition]:
    """The partitions whose directories are among what lies in a data directory."""
    for name in names:
        if parsed := parse_directory_name(name):
            yield parsed


def _make_directory(files: Files, path: str) -> None:
    """Make a directory and its parents, all of them durable."""
    if not path or files.exists(path):
        return
    parent = path.rpartition("/")[0]
    _make_directory(files, parent)
    files.mkdir(path)
    files.sync_dir(parent or ("/" if path.startswith("/") else "."))


def sync_logs(files: Files, logs: Iterable[Log]) -> list[tuple[Log, int]]:
    """One sync pass over many logs, several at a time where that is faster; blocks.

    A worker thread may call it while the owner appends, one pass at a time. Returns each log with
    its end offset from before the pass began, for `Log.synced`; logs whose sync failed are offline
    then, and left out.
    """
    passes = [(log, log.log_end_offset) for log in logs]
    items = [item for log, _ in passes for item in log.pending.take_dirty()]
    try:
        sync_together(files, items)
    except StorageError as error:
        # One failure of the disk under all logs of the directory: none of them can be trusted.
        for log, _ in passes:
            log.fail(str(error))
        return []
    return passes
