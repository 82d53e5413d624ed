"""Background tasks for the logs of a node, as in Kafka's LogManager.

The tasks are checkpoints, retention, deletion of files, and recovery after a crash.
"""

from __future__ import annotations

import logging

import trio

from kbroker.cluster.node_context import NodeContext
from kbroker.runtime.time_slices import DutyCycle
from kbroker.storage.directories import DirectoryJobs
from kbroker.storage.errors import StorageError, SyncFailedError
from kbroker.storage.log import Log

from .partitions import Partitions
from .replica import Replica

logger = logging.getLogger(__name__)

CHECKPOINT_SECONDS = 0.5


class LogManagerTasks:
    """The background tasks for the logs of one node. Start `run` in a task."""

    def __init__(self, context: NodeContext, partitions: Partitions) -> None:
        self._context = context
        self._partitions = partitions

    async def run(self) -> None:
        """Run all tasks until cancelled."""
        partitions = self._partitions
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._checkpoint_regularly)
            nursery.start_soon(self._apply_retention_regularly)
            if self._context.in_memory:
                partitions.logs.empty_trash()
            else:
                nursery.start_soon(self._empty_trash)
            if partitions.logs.crashed and partitions.logs.directories():
                nursery.start_soon(self._recover)

    async def _recover(self) -> None:
        """Sync and open all logs after a crash."""
        partitions = self._partitions
        began = trio.current_time()
        try:
            with partitions.flusher.during_other_sync():
                await self._context.in_thread(partitions.logs.sync_recovered)
        except StorageError as error:
            logger.error(
                "could not sync all logs after the crash: %s; check the disk", error.message
            )
        await partitions.open_all()
        logger.info(
            "opened all %d partitions after the crash in %.1f s",
            len(partitions.opened()),
            trio.current_time() - began,
        )

    async def _checkpoint_regularly(self) -> None:
        partitions = self._partitions
        while True:
            await trio.sleep(CHECKPOINT_SECONDS)
            if partitions.logs.checkpoint_due(self._context.clock.log_ms()):
                await self.checkpoint()

    async def checkpoint(self) -> list[Log]:
        """Write a checkpoint of the synced offsets and log start offsets.

        Returns:
            The logs whose log start offset is not durable, because the checkpoint failed.
        """
        partitions = self._partitions
        async with partitions.checkpoint_lock:
            job = partitions.logs.checkpoint(self._context.clock.log_ms())
            try:
                with partitions.flusher.during_other_sync():
                    await self._run(job)
            except SyncFailedError as error:
                partitions.sync_failed(error)
            except StorageError as error:
                text = f"checkpoint failed: {error.message}"
                is_known = partitions.logs.has_read_only or not self._context.error_log.is_new(text)
                logger.log(logging.DEBUG if is_known else logging.ERROR, "%s", text)
            return job.unrecorded

    async def _run(self, job: DirectoryJobs) -> None:
        """Run a checkpoint. Raises StorageError after requeuing the unfinished work."""
        try:
            await self._context.in_thread(job.run)
        except StorageError:
            job.requeue()
            raise

    async def _empty_trash(self) -> None:
        """Remove the files of deleted partitions, off the event loop."""
        partitions = self._partitions
        while True:
            partitions.trash = trio.Event()  # reset first, so that no deletion is missed
            await self._context.in_thread(partitions.logs.empty_trash)
            await partitions.trash.wait()

    async def _apply_retention_regularly(self) -> None:
        while True:
            await trio.sleep(self._context.config.retention_check_interval_ms / 1000)
            await self.apply_retention_now()

    async def apply_retention_now(self) -> None:
        """Apply retention to all partitions on disk, including unopened ones."""
        await self._partitions.open_all()
        if await self.apply_retention():
            # Without a checkpoint, a crash could restore records that clients saw deleted.
            await self.checkpoint()

    async def apply_retention(self) -> bool:
        """Apply retention to the open logs; return True if a log start moved."""
        now_ms = self._context.clock.log_ms()
        duty_cycle = DutyCycle()
        moved = 0
        for replica in self._partitions.opened():
            moved += self._retain(replica, now_ms)
            await duty_cycle.pause()
        if moved:
            logger.info("retention moved the start of %d partitions", moved)
        return moved > 0

    def _retain(self, replica: Replica, now_ms: int) -> bool:
        """Apply retention to one partition, unless it is offline.

        Followers take the log start of their leader, so that it is the same on all replicas.
        """
        log = replica.log
        if not replica.is_leader:
            log.expire_producers(now_ms)
            return False
        if log.offline is not None:
            return False
        try:
            with self._partitions.storage_errors_reported(replica):
                moved = log.apply_retention(now_ms) > 0
        except StorageError:
            return False
        if moved:
            logger.debug(
                "%s-%d: retention moved the log start to %d",
                replica.topic.name,
                replica.index,
                log.log_start_offset,
            )
        return moved
