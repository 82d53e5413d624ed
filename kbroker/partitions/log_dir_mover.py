"""Moves replicas between log directories of this node while clients use them (AlterReplicaLogDirs).

A move copies the log in slices and syncs the copy in a worker thread. Then, between two sync passes
and two checkpoints, it copies the records that were appended in the meantime and replaces the log
with the copy. That last step blocks the event loop for a few syncs.
"""

from __future__ import annotations

import contextlib
import logging
from functools import partial

import trio

from kbroker.cluster.node_context import NodeContext
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.runtime.time_slices import DutyCycle
from kbroker.storage.cached import Reading
from kbroker.storage.errors import LostBytesError, StorageError, SyncFailedError
from kbroker.storage.future import FutureLog

from .log_settings import log_config
from .partitions import Partitions

logger = logging.getLogger(__name__)

# Bytes to copy per time slice.
COPY_BYTES = 256 * 1024


class LogDirMover:
    """The moves of one node, which run one at a time in the order of their requests."""

    def __init__(self, context: NodeContext, partitions: Partitions) -> None:
        self._context = context
        self._partitions = partitions
        self._more = trio.Event()

    def begin(self, name: str, index: int, path: str) -> None:
        """Move a replica to the log directory at `path`. If it is there already, cancel its move.

        Args:
            name: Topic name.
            index: Partition number.
            path: Path of the target directory.

        Raises:
            KafkaError: LOG_DIR_NOT_FOUND, KAFKA_STORAGE_ERROR for an offline directory,
                INVALID_REPLICA_ASSIGNMENT for a cordoned directory, and errors of
                `Partitions.named_hosted`.
        """
        logs = self._partitions.logs
        directory = logs.manager_at(path)
        if directory is None:
            raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND)
        if directory.failed is not None:
            raise StorageError(directory.failed)
        if path in logs.cordoned:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{path} is in cordoned.log.dirs"
            )
        replica = self._partitions.named_hosted(name, index)
        future = logs.future(name, index)
        if logs.where(name, index) is directory:
            logs.drop_future((name, index))
        elif future is None or future.data_dir != path:
            logs.start_move(replica.log, path)
            self._more.set()

    def resume(self) -> None:
        """Restart the moves that the last shutdown interrupted."""
        for (name, index), path in self._partitions.logs.interrupted:
            with contextlib.suppress(KafkaError):  # the topic may be deleted
                self.begin(name, index, path)

    async def run(self) -> None:
        """Run the moves until cancelled."""
        while True:
            future = self._partitions.logs.next_future()
            if future is None:
                self._more = trio.Event()
                await self._more.wait()
                continue
            try:
                await self._move(future)
            except SyncFailedError as error:
                self._partitions.sync_failed(error)
                self._give_up(future, error.message or str(error))
            except LostBytesError as error:
                self._partitions.report_lost_bytes(error)
                self._give_up(future, error.cause)
            except KafkaError as error:
                self._give_up(future, error.message or str(error))
            except FileNotFoundError as error:
                self._give_up(future, f"{error.filename} is missing")

    async def _move(self, future: FutureLog) -> None:
        """Copy the log, then swap, unless the move is cancelled in the meantime."""
        duty_cycle = DutyCycle()
        while self._is_wanted(future):
            if await self._context.disk_reads.read(partial(self._copy_some, future)):
                future.log.synced(await self._context.in_thread(future.log.sync))
                if self._is_wanted(future) and await self._swap(future):
                    return
            await duty_cycle.pause()

    def _copy_some(self, future: FutureLog, reading: Reading) -> bool:
        """Copy a slice, unless the move was cancelled; return True if the copy has caught up."""
        now_ms = self._context.clock.log_ms()
        return self._is_wanted(future) and future.copy(COPY_BYTES, reading, now_ms=now_ms)

    def _is_wanted(self, future: FutureLog) -> bool:
        source = future.source
        return self._partitions.logs.future(source.topic, source.partition) is future

    async def _swap(self, future: FutureLog) -> bool:
        """Replace the log with the copy; return False if the move was cancelled while waiting."""
        partitions, source = self._partitions, future.source
        async with partitions.flusher.sync_lock, partitions.checkpoint_lock:
            if not self._is_wanted(future):
                return False
            now_ms = self._context.clock.log_ms()
            while not future.copy(COPY_BYTES, now_ms=now_ms):
                pass
            replica = partitions.named_hosted(source.topic, source.partition)
            log = partitions.logs.swap(future, log_config(replica.config), now_ms=now_ms)
            partitions.record_offline_events(log)
            replica.move_to(log)
        partitions.empty_trash_soon()
        logger.info("%s-%d moved to %s", source.topic, source.partition, future.data_dir)
        return True

    def _give_up(self, future: FutureLog, reason: str) -> None:
        """Remove the copy of a failed move, unless it already replaced the log."""
        source = future.source
        name = f"{source.topic}-{source.partition}"
        if self._is_wanted(future):
            if source.offline is None:
                logger.error("%s: cannot move to %s and stays: %s", name, future.data_dir, reason)
            else:  # the reason is logged already
                logger.info("%s is offline and does not move to %s", name, future.data_dir)
            with contextlib.suppress(StorageError):
                self._partitions.logs.drop_future((source.topic, source.partition))
        elif self._context.cluster.partition(source.topic, source.partition) is not None:
            logger.error(
                "%s: offline until the node restarts, because its move to %s was interrupted: %s",
                name,
                future.data_dir,
                reason,
            )
