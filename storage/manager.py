"""A data folder and the logs in it: who it belongs to, what is known about each log, which exist.

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
from collections.abc import Iterable, Iterator, Mapping
from uuid import UUID

from .checkpoints import (
    MetaProperties,
    Partition,
    clean_marker,
    offsets_from_bytes,
    offsets_to_bytes,
    partition_metadata_from_bytes,
)
from .errors import StorageError
from .files import Files, Lock
from .log import Log, LogConfig
from .naming import (
    CLEAN_SHUTDOWN,
    DELETED_FOLDER,
    HIGH_WATERMARKS,
    LOCK,
    LOG_STARTS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    deleted_folder_name,
    folder_name,
    parse_folder_name,
)
from .recovery import Known, load_log
from .segment import Segment
from .sync import SyncItem, sync_in_order, sync_together

logger = logging.getLogger(__name__)

CHECKPOINT_EVERY_MS = 5_000
_ROLLED_EVERY_MS = 1_000
CHECKPOINT_EVERY_BYTES = 64 * 1024 * 1024
_NO_ID = UUID(int=0)


class CheckpointJob:
    """What one checkpoint writes, collected at one moment.

    `run` blocks and may run in a worker thread, one job at a time. It first makes durable what the
    offsets rely on, then writes the offsets, then removes segments that nobody needs any more.
    """

    def __init__(
        self,
        files: Files,
        logs: list[tuple[Log, list[SyncItem], list[Segment]]],
        checkpoints: dict[str, bytes],
    ) -> None:
        self._files = files
        self._logs = logs
        self._checkpoints = checkpoints

    def run(self) -> None:
        """Raises StorageError; then the checkpoints are the old ones, which are true still, and
        the owner calls `put_back`."""
        for _, items, _ in self._logs:
            while items:
                sync_in_order(items[:1])
                del items[0]
        for path, data in self._checkpoints.items():
            self._files.write_atomic(path, data)
        for _, _, doomed in self._logs:
            while doomed:
                doomed[0].remove()
                del doomed[0]

    def put_back(self) -> None:
        """After a failed `run`: let the next checkpoint do what is left."""
        for log, items, doomed in self._logs:
            log.put_back(items, doomed)


class LogManager:
    """The logs of one data folder, which is locked while the manager is open.

    `meta` says whose data it is. `clean` says that the last owner closed it properly.
    """

    def __init__(self, files: Files, data_dir: str, fresh: MetaProperties) -> None:
        """Claim a folder, and mark it as in use.

        Args:
            files: where the folder is.
            data_dir: its path; made when it does not exist.
            fresh: written when the folder is new. In one that is not, `node_id` must be the same;
                cluster and directory id come from the folder.

        Raises:
            StorageError: another broker uses the folder, it belongs to another node, or it is of a
                newer version.
        """
        self._files = files
        self.data_dir = data_dir
        files.mkdir(data_dir)
        self._lock: Lock = files.lock(f"{data_dir}/{LOCK}")
        try:
            self.meta = self._read_meta(fresh)
            self._logs: dict[Partition, Log] = {}
            self._changed: set[Log] = set()
            self._recovery_points = self._read_offsets(RECOVERY_POINTS)
            self._log_starts = self._read_offsets(LOG_STARTS)
            self._high_watermarks = self._read_offsets(HIGH_WATERMARKS)
            self._checkpointed_ms = 0
            self._checkpointed_bytes: dict[Log, int] = {}
            self._find_folders()
            self.clean = self._take_clean_marker()
        except BaseException:
            self._lock.release()
            raise

    # --- start ----------------------------------------------------------------------------------

    def _read_meta(self, fresh: MetaProperties) -> MetaProperties:
        path = f"{self.data_dir}/{META_PROPERTIES}"
        try:
            meta = MetaProperties.from_bytes(self._files.read_bytes(path), path)
        except FileNotFoundError:
            self._files.write_atomic(path, fresh.to_bytes())
            return fresh
        if meta.node_id != fresh.node_id:
            raise StorageError(
                f"{self.data_dir} belongs to node {meta.node_id}, this is node {fresh.node_id}"
            )
        return meta

    def _read_offsets(self, name: str) -> dict[Partition, int]:
        path = f"{self.data_dir}/{name}"
        try:
            offsets = offsets_from_bytes(self._files.read_bytes(path))
        except FileNotFoundError:
            return {}
        if offsets is None:
            logger.warning("%s is damaged; all logs are checked from their beginning", path)
            return {}
        return offsets

    def _find_folders(self) -> None:
        self._folders: set[Partition] = set()  # partitions that are on disk
        self._trash: list[str] = []
        for name in self._files.listdir(self.data_dir):
            if name.endswith(DELETED_FOLDER):
                self._trash.append(f"{self.data_dir}/{name}")
            elif parsed := parse_folder_name(name):
                self._folders.add(parsed)
        self._unopened = set(self._folders)

    def _take_clean_marker(self) -> bool:
        """Whether the marker is there; it is gone for good before anything is changed."""
        path = f"{self.data_dir}/{CLEAN_SHUTDOWN}"
        clean = self._files.exists(path)
        if clean:
            self._files.remove(path)
            self._files.sync_dir(self.data_dir)
        return clean

    # --- logs -----------------------------------------------------------------------------------

    def get(self, topic: str, partition: int) -> Log | None:
        """The log, if it is open."""
        return self._logs.get((topic, partition))

    def __iter__(self) -> Iterator[Log]:
        """All open logs."""
        return iter(list(self._logs.values()))

    def partitions(self) -> list[tuple[str, int, UUID | None]]:
        """Topic, partition and topic id of everything on disk, open or not.

        The id is None when the file that holds it is missing or damaged.
        """
        return [(*partition, self._topic_id(partition)) for partition in sorted(self._folders)]

    def _topic_id(self, partition: Partition) -> UUID | None:
        log = self._logs.get(partition)
        if log is not None:
            return log.topic_id
        path = f"{self.data_dir}/{folder_name(*partition)}/{PARTITION_METADATA}"
        try:
            return partition_metadata_from_bytes(self._files.read_bytes(path))
        except FileNotFoundError:
            return None

    def open_log(
        self, topic: str, topic_id: UUID, partition: int, config: LogConfig, *, now_ms: int
    ) -> Log:
        """The log of a partition: the open one, or from disk, or a new one.

        A folder that belongs to an earlier topic of that name is put aside for removal. A new log
        has no folder until its first append.

        Raises:
            CorruptLogError: bytes that were durable are damaged; other logs are not affected.
            StorageError: the system refuses.
        """
        key = (topic, partition)
        log = self._logs.get(key)
        if log is not None and log.topic_id == topic_id:
            return log
        if key in self._folders:
            found = self._topic_id(key)
            if found is not None and found != topic_id:
                self.delete_logs([key])
        log = self._load(key, topic_id, config, now_ms)
        self._logs[key] = log
        self._folders.add(key)
        self._unopened.discard(key)
        return log

    def _load(self, key: Partition, topic_id: UUID, config: LogConfig, now_ms: int) -> Log:
        topic, partition = key
        known = Known(
            self._recovery_points.get(key, 0),
            self._log_starts.get(key, 0),
            self._high_watermarks.get(key, 0),
            self.clean,
        )
        if key not in self._folders and not known.recovery_point:
            return Log(
                self._files,
                self.data_dir,
                topic,
                partition,
                topic_id,
                config,
                changed=self._changed,
                lower_recovery_point=self._lower_recovery_point,
            )
        return load_log(
            self._files,
            self.data_dir,
            topic,
            partition,
            topic_id,
            config,
            known,
            now_ms=now_ms,
            changed=self._changed,
            lower_recovery_point=self._lower_recovery_point,
        )

    def delete_logs(self, partitions: Iterable[Partition]) -> None:
        """Remove partitions: gone at once under their names, their bytes with `empty_trash`.

        Ranges that are being sent stay readable. Raises StorageError.
        """
        gone = [key for key in partitions if key in self._folders]
        for key in gone:
            self._forget(key)
        # Before the names go: a later topic of this name must not be measured by these offsets.
        self._write_checkpoints()
        for topic, partition in gone:
            old = f"{self.data_dir}/{folder_name(topic, partition)}"
            topic_id = self._topic_id((topic, partition)) or _NO_ID
            log = self._logs.pop((topic, partition), None)
            if log is not None:
                topic_id = log.topic_id
                log.close(clean=False)
            if self._files.exists(old):
                new = f"{self.data_dir}/{deleted_folder_name(topic, partition, topic_id)}"
                self._files.rmtree(new)
                self._files.rename(old, new)
                self._trash.append(new)
            self._folders.discard((topic, partition))
            self._unopened.discard((topic, partition))
        self._files.sync_dir(self.data_dir)

    def _forget(self, key: Partition) -> None:
        for offsets in (self._recovery_points, self._log_starts, self._high_watermarks):
            offsets.pop(key, None)
        log = self._logs.get(key)
        if log is not None:
            self._changed.discard(log)
            self._checkpointed_bytes.pop(log, None)

    def empty_trash(self) -> None:
        """Remove the bytes of deleted partitions. Blocks; a worker thread may call it."""
        while self._trash:
            self._files.rmtree(self._trash.pop())

    # --- checkpoints ----------------------------------------------------------------------------

    def checkpoint_due(self, now_ms: int) -> bool:
        """Whether something changed since the last checkpoint, and it is time for the next."""
        if not self._changed:
            return False
        waited_ms = now_ms - self._checkpointed_ms
        if waited_ms >= CHECKPOINT_EVERY_MS or waited_ms < 0:
            return True
        if waited_ms >= _ROLLED_EVERY_MS and any(log.wants_checkpoint for log in self._changed):
            return True
        return any(
            log.appended_bytes - self._checkpointed_bytes.get(log, 0) >= CHECKPOINT_EVERY_BYTES
            for log in self._changed
        )

    def checkpoint(self, now_ms: int) -> CheckpointJob:
        """Collect a checkpoint of all logs that changed; nothing is written before its `run`."""
        self._checkpointed_ms = now_ms
        collected = []
        for log in self._changed:
            collected.append((log, *log.unsettled()))
            self._checkpointed_bytes[log] = log.appended_bytes
            self._note(log)
        self._changed.clear()
        return CheckpointJob(self._files, collected, self._checkpoint_files())

    def _note(self, log: Log) -> None:
        key = (log.topic, log.partition)
        if not log.log_end_offset:
            return
        self._recovery_points[key] = log.synced_offset
        self._high_watermarks[key] = log.high_watermark
        if log.log_start_offset:
            self._log_starts[key] = log.log_start_offset

    def _checkpoint_files(self) -> dict[str, bytes]:
        # Log starts first: a segment may go as soon as they are durable.
        offsets: Mapping[str, dict[Partition, int]] = {
            LOG_STARTS: self._log_starts,
            RECOVERY_POINTS: self._recovery_points,
            HIGH_WATERMARKS: self._high_watermarks,
        }
        return {f"{self.data_dir}/{name}": offsets_to_bytes(it) for name, it in offsets.items()}

    def _write_checkpoints(self) -> None:
        for path, data in self._checkpoint_files().items():
            self._files.write_atomic(path, data)

    def _lower_recovery_point(self, log: Log) -> None:
        """A log is about to be cut: no checkpoint may name more than will be there."""
        self._recovery_points[log.topic, log.partition] = log.synced_offset
        self._high_watermarks[log.topic, log.partition] = log.high_watermark
        self._log_starts[log.topic, log.partition] = log.log_start_offset
        self._write_checkpoints()

    # --- end ------------------------------------------------------------------------------------

    def close(self, *, clean: bool = True, now_ms: int = 0) -> None:
        """Close all logs and give the folder free; with `clean` everything is durable first.

        The clean marker is written only when it is true for every partition of the folder: none
        offline, and none left that was not opened since a crash.

        Raises StorageError; the folder is free then as well.
        """
        try:
            sound = [log.close(clean=clean) for log in self._logs.values()]
            if clean:
                self.checkpoint(now_ms).run()
                if all(sound) and (self.clean or not self._unopened):
                    marker = f"{self.data_dir}/{CLEAN_SHUTDOWN}"
                    self._files.write_atomic(marker, clean_marker())
        finally:
            self._logs.clear()
            self._lock.release()


def sync_logs(files: Files, data_dir: str, logs: Iterable[Log]) -> list[tuple[Log, int]]:
    """One sync pass over many logs, whichever way is cheapest; blocks.

    A worker thread may call it while the owner appends, one pass at a time. Returns each log with
    its end offset from before the pass began, for `Log.synced`; logs whose sync failed are offline
    then, and left out.
    """
    passes = [(log, log.log_end_offset) for log in logs]
    items = [item for log, _ in passes for item in log.take_dirty()]
    try:
        sync_together(files, data_dir, items)
    except StorageError as error:
        # One failure of the disk under all logs of the folder: none of them can be trusted.
        for log, _ in passes:
            log.fail(str(error))
        return []
    return passes
