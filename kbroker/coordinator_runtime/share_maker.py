"""What share groups of a node have share coordinators do, piece by piece (KIP-932)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeAlias
from uuid import UUID

import trio

from kbroker.coordinator import GroupCoordinator, ToMake
from kbroker.coordinator.common.modern_group import Target
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.share_state import (
    DeleteShareGroupStateRequest,
    InitializeShareGroupStateRequest,
)
from kbroker.protocol.share_state_log import SharePartition

from .shard import Shard
from .shards import Shards, outcome_of
from .share_persister import SharePersister

logger = logging.getLogger(__name__)

AT_ONCE = 20
"""Groups for which share coordinators are asked at the same time."""
PARTITIONS_AT_ONCE = 1_000
"""Of one group."""
NO_OFFSET = -1
"""Where a share partition begins is for its leader to find out."""

GroupShard: TypeAlias = Shard[GroupCoordinator]
GroupShards: TypeAlias = Shards[GroupCoordinator]
Failures: TypeAlias = dict[SharePartition, KafkaError]


class ShareMaker:
    """Asks share coordinators for what share groups of this node are to have, once that is committed.

    What fails is asked for again when a member sends its next heartbeat.

    Parameters: `is_news` says whether a trouble is to be logged, as the same one comes again and again.
    """

    def __init__(
        self, groups: GroupShards, persister: SharePersister, is_news: Callable[[str], bool]
    ) -> None:
        self._groups = groups
        self._persister = persister
        self._is_news = is_news
        self._due: list[tuple[GroupShard, ToMake]] = []
        self._more = trio.Event()
        self._limit = trio.CapacityLimiter(AT_ONCE)

    def make(self, shard: GroupShard, states: ToMake) -> None:
        """Have states made for a group."""
        self._due.append((shard, states))
        self._more.set()

    async def run(self) -> None:
        """Do it, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                await self._more.wait()
                self._more = trio.Event()
                due, self._due = self._due, []
                for shard, states in due:
                    nursery.start_soon(self._make, shard, states)

    async def _make(self, shard: GroupShard, states: ToMake) -> None:
        async with self._limit:
            if self._groups.serves(shard) and await outcome_of(self._groups.release(shard, True)):
                await self.initialize(shard, states, lambda share: NO_OFFSET)

    async def initialize(
        self, shard: GroupShard, states: ToMake, start_of: Callable[[SharePartition], int]
    ) -> Failures:
        """Have states made for a group, and write down which are there; returns what went wrong.

        Parameters: `start_of` says where a share partition begins.
        """
        failed: Failures = {}
        for shares in _pieces(states.group_id, states.partitions):
            rows = {
                share: InitializeShareGroupStateRequest.Partition(
                    partition=share.partition,
                    state_epoch=states.epoch,
                    start_offset=start_of(share),
                )
                for share in shares
            }
            answers = await self._persister.initialize(rows)
            made, not_made = _told_apart(answers, failed)
            for partitions, well in ((made, True), (not_made, False)):
                if partitions and self._groups.serves(shard):
                    coordinator = shard.coordinator
                    result = coordinator.share_states.made(states.group_id, partitions, well=well)
                    self._groups.run(shard, result)
        for share, error in islice(failed.items(), 1):
            text = f"states were not made, as that of {share.name}: {error}"
            level = logging.WARNING if self._is_news(text) else logging.DEBUG
            logger.log(level, "share group %s: %d %s", states.group_id, len(failed), text)
        return failed

    async def delete(self, group_id: str, partitions: Target) -> Failures:
        """Have the states of share partitions deleted; returns what went wrong."""
        failed: Failures = {}
        for shares in _pieces(group_id, partitions):
            rows = {
                share: DeleteShareGroupStateRequest.Partition(partition=share.partition)
                for share in shares
            }
            _told_apart(await self._persister.delete(rows), failed)
        return failed


def _pieces(group_id: str, partitions: Target) -> Iterator[list[SharePartition]]:
    shares = (
        SharePartition(group_id, topic_id, index)
        for topic_id, indexes in partitions.items()
        for index in sorted(indexes)
    )
    while some := list(islice(shares, PARTITIONS_AT_ONCE)):
        yield some


def _told_apart(
    answers: Mapping[SharePartition, Any], failed: Failures
) -> tuple[dict[UUID, set[int]], dict[UUID, set[int]]]:
    """What was done and what was not, by topic; the latter is added to what failed."""
    done: dict[UUID, set[int]] = {}
    not_done: dict[UUID, set[int]] = {}
    for share, row in answers.items():
        if row.error_code:
            failed[share] = KafkaError(ErrorCode(row.error_code), row.error_message)
        place = not_done if row.error_code else done
        place.setdefault(share.topic_id, set()).add(share.partition)
    return done, not_done
