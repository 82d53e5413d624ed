"""Truncates or restarts the log of a follower if it diverges from the leader's log.

Nothing here runs concurrently with a sync or a checkpoint of the same logs. The truncated records
were not committed, unless there was an unclean election or a disk was lost. In that case the module
logs an error.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from kbroker.client.errors import error_code
from kbroker.cluster.node_context import NodeContext
from kbroker.partitions.partitions import Partitions
from kbroker.partitions.replica import Replica
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.protocol.messages.list_offsets import (
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)

from .followed import FollowedPartition
from .truncation import truncation_offset

logger = logging.getLogger(__name__)

# Timestamp of ListOffsets for the log start offset.
EARLIEST = -2

Ask = Callable[[Any], Awaitable[Any]]


class LogReconciler:
    """Truncates and restarts logs of one node so that they match their leaders."""

    def __init__(self, context: NodeContext, partitions: Partitions) -> None:
        self._context = context
        self._partitions = partitions

    async def truncate_diverging(
        self, followed: FollowedPartition, diverging: FetchResponse.EpochEnd
    ) -> None:
        """Truncate records that the leader does not have.

        Raises StorageError, or KafkaError if there is nothing to truncate.
        """
        log = followed.replica.log
        offset = truncation_offset(
            log.epochs, log.log_end_offset, diverging.epoch, diverging.end_offset
        )
        if offset >= log.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"the leader's epoch {diverging.epoch} ends at {diverging.end_offset}, which matches "
                f"the local epochs ({log.epochs.entries[-3:]} up to {log.log_end_offset})",
            )
        reason = f"its leader's epoch {diverging.epoch} ends at {diverging.end_offset}"
        await self._truncate_to(followed, offset, reason)

    async def align_with_leader(self, followed: FollowedPartition, ask: Ask) -> bool:
        """Restart or truncate a log whose end is out of the leader's range.

        Args:
            followed: The partition.
            ask: Sends a request to the leader.

        Returns:
            False if the local log end is within the leader's range by now.

        Raises:
            StorageError: The log cannot be changed.
            Unreachable: The leader cannot be reached.
            KafkaError: The leader responds with an error.
        """
        start = await self._leader_start(followed, ask)
        end = await self._leader_end(followed, ask)
        own_end = followed.replica.log.log_end_offset
        if own_end < start:
            await self._restart_at(followed, start)
        elif own_end > end:
            await self._truncate_to(followed, end, f"its leader's log ends at {end}")
        else:
            return False
        return True

    async def restart_within_batch(
        self, followed: FollowedPartition, records: memoryview, first_offset: int
    ) -> None:
        """Restart an empty log at the base offset of a batch that contains its start offset."""
        async with self._syncs_prevented(followed) as replica:
            if replica is not None:
                self._restart(replica, first_offset)
                replica.append_replicated(records, self._context.clock.log_ms())

    async def _restart_at(self, followed: FollowedPartition, start: int) -> None:
        async with self._syncs_prevented(followed) as replica:
            if replica is not None:
                self._restart(replica, start)
                self._record_event(
                    replica, f"restarted at {start} because the leader's log starts there"
                )

    async def _truncate_to(self, followed: FollowedPartition, offset: int, reason: str) -> None:
        async with self._syncs_prevented(followed) as replica:
            if replica is None:
                return
            end, committed = replica.log.log_end_offset, replica.log.high_watermark
            replica.truncate_to(offset, self._context.clock.log_ms())
            self._restart_move(replica)
            now = replica.log.log_end_offset
        self._record_event(followed.replica, f"truncated from {end} to {now} because {reason}")
        if now < committed:
            logger.error(
                "%s: records %d to %d were committed and are lost on this node: compare with the other "
                "replicas, and look for an unclean election or a replaced disk",
                followed,
                now,
                committed - 1,
            )

    def _record_event(self, replica: Replica, text: str) -> None:
        self._partitions.record_event(replica.topic.name, replica.index, text)
        logger.debug("%s-%d: %s", replica.topic.name, replica.index, text)

    def _restart(self, replica: Replica, offset: int) -> None:
        replica.restart_at(offset, self._context.clock.log_ms())
        self._restart_move(replica)

    def _restart_move(self, replica: Replica) -> None:
        """Restart a running move to another directory, as the copy may have truncated records."""
        future = self._partitions.logs.future(replica.topic.name, replica.index)
        if future is not None:
            future.restart_copy()

    @asynccontextmanager
    async def _syncs_prevented(self, followed: FollowedPartition) -> AsyncIterator[Replica | None]:
        """Prevent syncs and checkpoints; yields None if this leader is no longer followed."""
        async with self._partitions.flusher.sync_lock, self._partitions.checkpoint_lock:
            yield followed.replica if followed.is_current else None

    async def _leader_start(self, followed: FollowedPartition, ask: Ask) -> int:
        cls = ListOffsetsRequest
        row = cls.Partition(
            partition_index=followed.replica.index,
            current_leader_epoch=followed.leader_epoch,
            timestamp=EARLIEST,
        )
        topic = cls.Topic(name=followed.replica.topic.name, partitions=[row])
        answer = await ask(cls(replica_id=self._context.node_id, topics=[topic]))
        return int(_only_row(answer).offset)

    async def _leader_end(self, followed: FollowedPartition, ask: Ask) -> int:
        cls = OffsetForLeaderEpochRequest
        row = cls.Partition(
            partition=followed.replica.index,
            current_leader_epoch=followed.leader_epoch,
            leader_epoch=followed.leader_epoch,
        )
        topic = cls.Topic(topic=followed.replica.topic.name, partitions=[row])
        answer = await ask(cls(replica_id=self._context.node_id, topics=[topic]))
        return int(_only_row(answer).end_offset)


def _only_row(answer: Any) -> Any:
    """Return the row of the requested partition. Raises KafkaError."""
    for topic in answer.topics:
        for row in topic.partitions:
            if row.error_code:
                raise KafkaError(error_code(row.error_code))
            return row
    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
