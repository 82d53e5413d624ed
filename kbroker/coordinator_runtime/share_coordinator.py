"""Share coordinators of a node, whose state is stored in `__share_group_state` (KIP-932)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

from kbroker.cluster import SHARE_STATE_TOPIC, TopicsChanged
from kbroker.cluster.node_context import NodeContext
from kbroker.cluster.topics import NewTopic
from kbroker.coordinator import Result, ShareCoordinator
from kbroker.protocol.share_state_log import SharePartitionKey
from kbroker.runtime.time_slices import DutyCycle
from kbroker.storage.errors import StorageError

from .loading import Load
from .partition_writer import LeaderReplica, PartitionWriter
from .shard import Shard
from .shards import ShardPending, outcome_of
from .sweeping import SweepingShards
from .topics import ClusterTopics

logger = logging.getLogger(__name__)

# Interval in ms at which logs are checked for rewriting. Kafka uses the same value.
REWRITE_INTERVAL_MS = 300_000
# A log is rewritten if it has at least this many records per state.
REWRITE_RATIO = 2
# Logs with fewer records are not rewritten, because they load fast.
REWRITE_RECORDS_MIN = 1_000

ShareStateShard: TypeAlias = Shard[ShareCoordinator]
# Method of `ShareCoordinator` that takes a share partition, its request row and the time.
Operation: TypeAlias = Callable[..., Result[Any]]


class ShareCoordinatorService(SweepingShards[ShareCoordinator]):
    """All share coordinators of one node.

    Compaction keeps the last record of each key. It cannot shorten these logs, because updates
    depend on each other. Instead, logs are rewritten: a snapshot of each state is appended, and all
    earlier records are deleted.
    """

    def __init__(self, context: NodeContext, partitions: PartitionWriter) -> None:
        super().__init__(context, partitions, SHARE_STATE_TOPIC)

    def _new_topic(self) -> NewTopic:
        config = self._context.config
        return self._internal_topic(
            "share.coordinator.state.topic.num.partitions",
            config.share_state_num_partitions,
            config.share_state_replication_factor,
            {
                "cleanup.policy": "delete",
                "retention.ms": "-1",
                "compression.type": "producer",
                "segment.bytes": str(config.share_state_segment_bytes),
                "min.insync.replicas": str(config.share_state_min_isr),
            },
        )

    def _new_coordinator(self, index: int) -> ShareCoordinator:
        context = self._context
        topics = ClusterTopics(context.cluster)
        return ShareCoordinator(topics, lambda: context.config.share_state_updates_max)

    def _expiry_interval_ms(self) -> int:
        return REWRITE_INTERVAL_MS

    def _record_event(self, event: Any) -> None:
        raise AssertionError(f"share coordinators have no events: {event}")

    def perform(
        self, operation: Operation, share: SharePartitionKey, asked: Any
    ) -> list[Any] | ShardPending | None:
        """Perform an operation on the state of a share partition.

        Returns:
            A list with the response row, possibly pending, or None if the shard was lost.

        Raises:
            KafkaError: The errors of `shard`.
        """
        shard = self.shard(share.name)
        stored = self.store(shard, operation(shard.coordinator, share, asked, self.now()))
        return self.release(shard, [stored.response])

    def topics_changed(self, event: TopicsChanged) -> None:
        super().topics_changed(event)
        deleted_ids = {topic.id for topic in event.deleted}
        if deleted_ids:
            self._begin(
                self.sweep(shard, shard.coordinator.forget_topics(deleted_ids))
                for shard in self.shards()
            )

    def _on_loaded(self, load: Load[ShareCoordinator]) -> None:
        """Delete the states of topics that were deleted while no node had the coordinator."""
        self._begin([self.sweep(load.shard, load.shard.coordinator.forget_missing_topics())])

    async def expire(self) -> None:
        """Rewrite logs that contain mostly outdated records, in the background."""
        duty_cycle = DutyCycle()
        for shard in self.shards():
            log = shard.replica.log
            past = log.log_end_offset
            records = past - log.log_start_offset
            needed = REWRITE_RATIO * len(shard.coordinator.states)
            if records < max(needed, REWRITE_RECORDS_MIN):
                continue
            are_written = await self._write_snapshots(shard, duty_cycle)
            if are_written and await outcome_of(self.release(shard, True)):
                self._delete_before(shard.replica, past)

    async def _write_snapshots(self, shard: ShareStateShard, duty_cycle: DutyCycle) -> bool:
        """Write a snapshot of each state, and return True if all of them are stored."""
        for piece in shard.coordinator.expire(self.now()):
            if not self.serves(shard) or piece is None or self.store(shard, piece) is not piece:
                return False
            await duty_cycle.pause()
        return self.serves(shard)

    def _delete_before(self, replica: LeaderReplica, past: int) -> None:
        with suppress(StorageError), self._partitions.storage_errors_reported(replica):
            replica.delete_records_before(past)
            logger.info("%s-%d: rewrote the log as snapshots", self.topic, replica.index)
