"""Creation and deletion of share-partition states at the share coordinators (KIP-932)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeAlias
from uuid import UUID

import trio

from kbroker.coordinator import GroupCoordinator, StatesToInitialize
from kbroker.coordinator.common.modern_group import Target
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.share_state import (
    DeleteShareGroupStateRequest,
    InitializeShareGroupStateRequest,
)
from kbroker.protocol.share_state_log import SharePartitionKey

from .shard import Shard
from .shards import Shards, outcome_of
from .share_persister import SharePersister

logger = logging.getLogger(__name__)

# Maximum number of groups whose states are initialized at the same time.
AT_ONCE = 20
# Maximum number of partitions of one group per request.
PARTITIONS_AT_ONCE = 1_000

GroupShard: TypeAlias = Shard[GroupCoordinator]
GroupShards: TypeAlias = Shards[GroupCoordinator]
Failures: TypeAlias = dict[SharePartitionKey, KafkaError]


class ShareStateInitializer:
    """Background task that initializes the states of share partitions.

    A request is sent once the records of the group are committed. If a request fails, the next
    heartbeat of a member repeats it.

    Args:
        groups: Shards of the group coordinators.
        persister: Client of the share coordinators.
        is_new: Returns True if an error must be logged, False if it was logged before.
    """

    def __init__(
        self, groups: GroupShards, persister: SharePersister, is_new: Callable[[str], bool]
    ) -> None:
        self._groups = groups
        self._persister = persister
        self._is_new = is_new
        self._due: list[tuple[GroupShard, StatesToInitialize]] = []
        self._more = trio.Event()
        self._limit = trio.CapacityLimiter(AT_ONCE)

    def schedule(self, shard: GroupShard, states: StatesToInitialize) -> None:
        """Schedule the initialization of the states of a group."""
        self._due.append((shard, states))
        self._more.set()

    async def run(self) -> None:
        """Send scheduled requests until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                await self._more.wait()
                self._more = trio.Event()
                due, self._due = self._due, []
                for shard, states in due:
                    nursery.start_soon(self._initialize_committed, shard, states)

    async def _initialize_committed(self, shard: GroupShard, states: StatesToInitialize) -> None:
        async with self._limit:
            if self._groups.serves(shard) and await outcome_of(self._groups.release(shard, True)):
                await self.initialize(shard, states, states.start_of)

    async def initialize(
        self,
        shard: GroupShard,
        states: StatesToInitialize,
        start_of: Callable[[SharePartitionKey], int],
    ) -> Failures:
        """Initialize states of a group, record the outcome of each, and return the failures.

        Args:
            shard: Shard of the group.
            states: States to initialize.
            start_of: Returns the start offset of a share partition.
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
            initialized, not_initialized = _by_outcome(answers, failed)
            for partitions, succeeded in ((initialized, True), (not_initialized, False)):
                if partitions and self._groups.serves(shard):
                    coordinator = shard.coordinator
                    result = coordinator.share_states.record_outcome(
                        states.group_id, partitions, succeeded=succeeded
                    )
                    self._groups.run(shard, result)
        for share, error in islice(failed.items(), 1):
            text = f"share-partition states could not be initialized, for example {share.name}: {error}"
            level = logging.WARNING if self._is_new(text) else logging.DEBUG
            logger.log(level, "share group %s: %d %s", states.group_id, len(failed), text)
        return failed

    async def delete(self, group_id: str, partitions: Target) -> Failures:
        """Delete the states of share partitions, and return the failures."""
        failed: Failures = {}
        for shares in _pieces(group_id, partitions):
            rows = {
                share: DeleteShareGroupStateRequest.Partition(partition=share.partition)
                for share in shares
            }
            _by_outcome(await self._persister.delete(rows), failed)
        return failed


def _pieces(group_id: str, partitions: Target) -> Iterator[list[SharePartitionKey]]:
    shares = (
        SharePartitionKey(group_id, topic_id, index)
        for topic_id, indexes in partitions.items()
        for index in sorted(indexes)
    )
    while some := list(islice(shares, PARTITIONS_AT_ONCE)):
        yield some


def _by_outcome(
    answers: Mapping[SharePartitionKey, Any], failed: Failures
) -> tuple[dict[UUID, set[int]], dict[UUID, set[int]]]:
    """Return the successful and the failed partitions, by topic ID. Add errors to `failed`."""
    done: dict[UUID, set[int]] = {}
    not_done: dict[UUID, set[int]] = {}
    for share, row in answers.items():
        if row.error_code:
            failed[share] = KafkaError(ErrorCode(row.error_code), row.error_message)
        place = not_done if row.error_code else done
        place.setdefault(share.topic_id, set()).add(share.partition)
    return done, not_done
