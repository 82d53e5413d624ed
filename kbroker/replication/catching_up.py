"""What a follower does when its log does not go on where its leader's does.

Nothing here runs beside a sync or a checkpoint of the same logs. What is cut away had not been
committed; when it was all the same (after an unclean election, or because a disk was lost) an error
says so.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.protocol.messages.list_offsets import (
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)

from .truncation import cut_at

if TYPE_CHECKING:
    from kbroker.node import Node
    from kbroker.replica import Replica

    from .fetcher import Followed

logger = logging.getLogger(__name__)

EARLIEST = -2
"""A timestamp of ListOffsets: where the log begins."""

Ask = Callable[[Any], Awaitable[Any]]


class CatchingUp:
    """Cuts the logs of one node, or begins them anew."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def cut(self, followed: Followed, diverging: FetchResponse.EpochEnd) -> None:
        """Cut what the leader does not have. Raises StorageError, or KafkaError when there is
        nothing that could be cut."""
        log = followed.replica.log
        offset = cut_at(log.epochs, log.log_end_offset, diverging.epoch, diverging.end_offset)
        if offset >= log.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"its epoch {diverging.epoch} ends at {diverging.end_offset}, ours "
                f"({log.epochs.entries[-3:]} up to {log.log_end_offset}) agrees with that",
            )
        reason = f"its leader's epoch {diverging.epoch} ends at {diverging.end_offset}"
        await self._cut_to(followed.replica, offset, reason)

    async def find_place(self, followed: Followed, ask: Ask) -> bool:
        """The leader does not have our end: begin anew behind it, or cut what is above.

        Returns False when it has our end by now. Raises StorageError, KafkaError for what the leader refuses, Unreachable.
        """
        replica = followed.replica
        start = await self._leader_start(followed, ask)
        end = await self._leader_end(followed, ask)
        own_end = replica.log.log_end_offset
        if own_end < start:
            await self._begin_at(replica, start)
        elif own_end > end:
            await self._cut_to(replica, end, f"its leader's log ends at {end}")
        else:
            return False
        return True

    async def begin_within(self, replica: Replica, records: memoryview, first_offset: int) -> None:
        """Let an empty log begin with a batch that holds its offset, not first."""
        async with self._alone():
            replica.restart_at(first_offset, self._node.clock.log_ms())
            replica.append_replicated(records, self._node.clock.log_ms())

    async def _begin_at(self, replica: Replica, start: int) -> None:
        name = f"{replica.topic.name}-{replica.index}"
        end = replica.log.log_end_offset
        async with self._alone():
            replica.restart_at(start, self._node.clock.log_ms())
        logger.info("%s begins anew at %d: its leader has nothing from %d on", name, start, end)

    async def _cut_to(self, replica: Replica, offset: int, reason: str) -> None:
        log, name = replica.log, f"{replica.topic.name}-{replica.index}"
        end, committed = log.log_end_offset, log.high_watermark
        async with self._alone():
            replica.truncate_to(offset, self._node.clock.log_ms())
        text = f"cut from {end} to {log.log_end_offset} because {reason}"
        if log.log_end_offset < committed:
            logger.error(
                "%s: %s; records up to %d were committed and are lost here: compare with the other "
                "replicas, and look for an unclean election or a disk that was replaced",
                name,
                text,
                committed,
            )
        else:
            logger.info("%s: %s", name, text)

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        async with self._node.flusher.no_pass, self._node.no_checkpoint:
            yield

    async def _leader_start(self, followed: Followed, ask: Ask) -> int:
        cls = ListOffsetsRequest
        row = cls.Partition(
            partition_index=followed.replica.index,
            current_leader_epoch=followed.leader_epoch,
            timestamp=EARLIEST,
        )
        topic = cls.Topic(name=followed.replica.topic.name, partitions=[row])
        answer = await ask(cls(replica_id=self._node.id, topics=[topic]))
        return int(_only_row(answer).offset)

    async def _leader_end(self, followed: Followed, ask: Ask) -> int:
        cls = OffsetForLeaderEpochRequest
        row = cls.Partition(
            partition=followed.replica.index,
            current_leader_epoch=followed.leader_epoch,
            leader_epoch=followed.leader_epoch,
        )
        topic = cls.Topic(topic=followed.replica.topic.name, partitions=[row])
        answer = await ask(cls(replica_id=self._node.id, topics=[topic]))
        return int(_only_row(answer).end_offset)


def _only_row(answer: Any) -> Any:
    """The row of the one partition that was asked for. Raises KafkaError."""
    for topic in answer.topics:
        for row in topic.partitions:
            if row.error_code:
                raise KafkaError(ErrorCode(row.error_code))
            return row
    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
