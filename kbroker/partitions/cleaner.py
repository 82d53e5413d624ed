"""Background compaction of the logs of one node, the dirtiest log first."""

from __future__ import annotations

import logging
import math
from collections import deque
from contextlib import suppress
from functools import partial

import trio

from kbroker.cluster.node_context import NodeContext
from kbroker.runtime.time_slices import DutyCycle
from kbroker.storage.cleaning import (
    discard,
    finish,
    install,
    is_due,
    measure,
    plan,
    prepare,
    remove_leftovers,
)
from kbroker.storage.compaction import CompactionResult, CompactionTask
from kbroker.storage.errors import LostBytesError, StorageError
from kbroker.storage.files import OsFiles
from kbroker.storage.log import Log
from kbroker.storage.sync import DirectorySync

from .compactor import CompactionFailed, Compactor, InlineCompactor, ProcessCompactor
from .log_manager_tasks import LogManagerTasks
from .partitions import Partitions
from .replica import Replica

logger = logging.getLogger(__name__)

# Minimum pause between two passes.
BACKOFF_SECONDS_MIN = 0.1


class Cleaner:
    """Selects logs that are dirty enough, has them compacted, and installs the results."""

    def __init__(
        self, context: NodeContext, partitions: Partitions, log_manager_tasks: LogManagerTasks
    ) -> None:
        self._context = context
        self._partitions = partitions
        self._log_manager_tasks = log_manager_tasks
        self._work_requested = trio.Event()
        self._backoff_seconds = math.inf  # infinite while `run` is not running
        self._one_at_a_time = trio.Lock()
        files = partitions.logs.files
        # Another process can access files of the operating system only.
        self._compactor: Compactor = (
            ProcessCompactor()
            if isinstance(files, OsFiles)
            else InlineCompactor(files, context.in_thread)
        )

    async def run(self) -> None:
        """Compact logs periodically until cancelled."""
        try:
            while True:
                self._work_requested = trio.Event()
                backoff_seconds = self._context.config.log_cleaner_backoff_ms / 1000
                self._backoff_seconds = max(backoff_seconds, BACKOFF_SECONDS_MIN)
                with trio.move_on_after(self._backoff_seconds):
                    await self._work_requested.wait()
                await self.clean_all()
        finally:
            self._backoff_seconds = math.inf
            await self._compactor.release_if_idle(self._backoff_seconds)

    def wake(self) -> None:
        """Check for logs to compact now, because settings changed."""
        self._work_requested.set()

    async def clean_all(self) -> int:
        """Compact until no log is dirty enough; return the number of successful runs."""
        runs = 0
        async with self._one_at_a_time:
            try:
                while cleaned := await self._clean_due():
                    runs += cleaned
            finally:
                await self._compactor.release_if_idle(self._backoff_seconds)
        return runs

    async def _clean_due(self) -> int:
        """Compact the logs that are due now; return how many made progress."""
        now_ms = self._context.clock.log_ms()
        duty_cycle = DutyCycle()
        due = []
        for replica in self._partitions.opened():
            log = replica.log
            if log.config.compacted and log.offline is None:
                with suppress(StorageError), self._partitions.storage_errors_reported(replica):
                    dirtiness = measure(log, now_ms)
                    if is_due(log, dirtiness):
                        due.append((dirtiness.ratio, replica))
                await duty_cycle.pause()
        due.sort(key=lambda item: item[0], reverse=True)
        return sum([await self._clean(replica) for _, replica in due])

    async def _clean(self, replica: Replica) -> bool:
        """Compact one log; return True if the log made progress."""
        log, truncations = replica.log, replica.log.truncations
        try:
            if log.pending.needs_checkpoint:
                await self._log_manager_tasks.checkpoint()
            with self._partitions.storage_errors_reported(replica):
                task = self._plan(log)
            if task is None:
                return False
            began = trio.current_time()
            files = self._partitions.logs.files
            await self._context.in_thread(partial(remove_leftovers, files, log.directory))
            result = await self._compactor.compact(task)
            if not await self._install(log, truncations, task, result):
                return False
        except CompactionFailed as failure:
            # Otherwise its files changed during the run, or moved to another log directory.
            if log.truncations == truncations and not log.deleted:
                self._handle_failure(replica, failure)
            return False
        except LostBytesError as error:
            if log.offline is None:  # a new segment is unreadable, but the log itself is not
                self._report(replica, error.cause)
            return False
        except StorageError as error:
            self._report(replica, error.message or str(error))
            return False
        await self._log_manager_tasks.checkpoint()
        _report_success(log, task, result, trio.current_time() - began)
        return result.end_offset > task.first_dirty_offset

    def _plan(self, log: Log) -> CompactionTask | None:
        if log.offline is not None:
            return None
        config = self._context.config
        return plan(
            log,
            self._context.clock.log_ms(),
            key_map_bytes=config.log_cleaner_dedupe_buffer_bytes,
            decompressed_max=config.decompressed_batch_max_bytes,
        )

    async def _install(
        self, log: Log, truncations: int, task: CompactionTask, result: CompactionResult
    ) -> bool:
        """Install the new segments of a run in order; return True if all are installed.

        Nothing more is installed after a truncation, because other records may have filled segments
        of the same sizes.

        Args:
            log: The log.
            truncations: Number of truncations of the log when the run began.
            task: Task of the run.
            result: Result of the run.

        Raises:
            StorageError: A file cannot be written or renamed.
        """
        files, logs, in_thread = (
            self._partitions.logs.files,
            self._partitions.logs,
            self._context.in_thread,
        )
        left = deque(result.segments)
        try:
            await in_thread(partial(logs.note_compaction, log, task.end_offset))
            for segment in await in_thread(partial(prepare, files, task, result)):
                if log.truncations != truncations or not install(log, left[0], segment):
                    return False
                left.popleft()
                await in_thread(DirectorySync(files, log.directory).sync)
        finally:
            if left:
                await in_thread(partial(discard, files, task, left))
        finish(log, result)
        return True

    def _handle_failure(self, replica: Replica, failure: CompactionFailed) -> None:
        if not failure.has_lost_bytes:
            self._report(replica, str(failure))
        elif not replica.closed:
            replica.log.fail(str(failure))
            error = StorageError(str(failure))
            self._partitions.report_storage_error(replica.topic, replica.index, error)

    def _report(self, replica: Replica, message: str) -> None:
        text = f"{replica.log.directory}: compaction failed, will retry: {message}"
        if not replica.log.deleted and self._context.error_log.is_new(text):
            logger.warning("%s", text)


def _report_success(
    log: Log, task: CompactionTask, result: CompactionResult, seconds: float
) -> None:
    if result.unreadable:
        logger.warning(
            "%s: %d batches could not be parsed and were kept uncompacted",
            log.directory,
            result.unreadable,
        )
    logger.debug(
        "%s: compacted up to offset %d in %.1f s, kept %d of %d records and %.1f of %.1f MB",
        log.directory,
        result.end_offset,
        seconds,
        result.records_kept,
        result.records_read,
        result.bytes_kept / 1e6,
        task.size / 1e6,
    )
