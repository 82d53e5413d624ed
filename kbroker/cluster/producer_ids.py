"""Producer IDs that are unique in the cluster, allocated from reserved blocks (KIP-730)."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial

import trio

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.runtime.threads import InThread
from kbroker.storage.directories import LogDirectories
from kbroker.storage.errors import StorageError, SyncFailedError

from . import Cluster

logger = logging.getLogger(__name__)

# Producer IDs per reserved block.
BLOCK_SIZE = 1000
# Minimum seconds between two warnings that no IDs can be reserved.
WARN_SECONDS = 60.0


class ProducerIds:
    """The producer IDs of one node.

    A block is reserved in the cluster metadata before its first ID is used. After a restart, its
    remaining IDs are never used. The end of the newest block is also stored in the log directories:
    the metadata may be replaced by an older copy, while the logs contain IDs of later blocks.
    """

    def __init__(
        self,
        cluster: Cluster,
        logs: LogDirectories,
        *,
        in_thread: InThread,
        sync_failed: Callable[[SyncFailedError], None],
    ) -> None:
        """Initialize without reserving IDs.

        Args:
            cluster: Metadata of the cluster, which reserves blocks.
            logs: Log directories of the node.
            in_thread: Runs blocking file operations.
            sync_failed: Called if an fsync fails in a log directory.
        """
        self._cluster = cluster
        self._logs = logs
        self._in_thread = in_thread
        self._sync_failed = sync_failed
        self._block = iter(range(0))
        self._storing = trio.Lock()
        # First ID after the newest block of this node; None before the log directories were read.
        self._reserved_end: int | None = None
        # Time from which a failed reservation is logged again (`trio.current_time`).
        self._next_warning = -math.inf

    async def next(self) -> int:
        """Return an ID that was never used.

        Raises:
            KafkaError: COORDINATOR_LOAD_IN_PROGRESS, as in Kafka, if no block can be reserved.
        """
        while True:
            for producer_id in self._block:
                return producer_id
            try:
                self._block = iter(await self._reserve())
            except StorageError as error:
                self._warn(error)
                raise KafkaError(
                    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                    f"no producer ids can be reserved now: {error.message}",
                ) from error

    def _warn(self, error: StorageError) -> None:
        """Log why producers wait, and what the operator can do."""
        if trio.current_time() < self._next_warning:
            return
        self._next_warning = trio.current_time() + WARN_SECONDS
        problem = self._cluster.store_problem
        action = "run `kbroker cluster health`" if problem is None else problem.action
        logger.warning(
            "new idempotent and transactional producers wait, because no producer ids can be reserved: "
            "%s; %s. The clients try again by themselves",
            error.message if problem is None else problem.description,
            action,
        )

    async def _reserve(self) -> range:
        """Reserve a block. Raises StorageError."""
        await self._skip_reserved()
        block = await self._cluster.allocate_producer_ids(BLOCK_SIZE)
        async with self._storing:
            if self._reserved_end is None or block.stop > self._reserved_end:
                await self._store(block.stop)
        return block

    async def _skip_reserved(self) -> None:
        """Raise the next ID of the metadata above the IDs that this node has reserved."""
        async with self._storing:
            if self._reserved_end is None:
                self._reserved_end = await self._in_thread(self._logs.reserved_producer_ids_end)
        known = self._cluster.next_producer_id
        if self._reserved_end > known:
            logger.warning(
                "the cluster's metadata is older than the log directories: this node has reserved "
                "the producer ids below %d, and the metadata knows those below %d. Ids continue at "
                "the higher number; if a newer copy of the metadata exists, stop all nodes and "
                "restore that one",
                self._reserved_end,
                known,
            )
            await self._cluster.skip_producer_ids(self._reserved_end)

    async def _store(self, end: int) -> None:
        """Store the end of the newest block. If a disk rejects the write, issue IDs anyway."""
        self._reserved_end = end
        try:
            await self._in_thread(partial(self._logs.store_reserved_producer_ids_end, end))
        except SyncFailedError as error:
            self._sync_failed(error)
        except StorageError as error:
            logger.warning(
                "cannot store the end of the reserved producer ids: %s; do not replace the metadata "
                "by an older copy before this node has reserved more ids",
                error.message,
            )
