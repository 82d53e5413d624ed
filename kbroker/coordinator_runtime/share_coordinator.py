"""The share coordinators of a node, whose state is in `__share_group_state` (KIP-932)."""

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

REWRITE_INTERVAL_MS = 300_000
"""Time between two looks for logs that are mostly of the past; Kafka's for the same."""
REWRITE_RATIO = 2
"""A log is rewritten when it has so many times as many records as there are states."""
REWRITE_RECORDS_MIN = 1_000
"""A shorter log is left alone: it is read in a moment."""

ShareStateShard: TypeAlias = Shard[ShareCoordinator]
Operation: TypeAlias = Callable[..., Result[Any]]
"""One of `ShareCoordinator`: a share partition, its row of the request, the time."""


class ShareCoordinatorService(SweepingShards[ShareCoordinator]):
    """All share coordinators of one node.

    Updates follow each other, so compaction, which keeps the last record of a key, cannot keep the log
    short. It is rewritten: a snapshot of each state at its end, and then what lies before them goes.
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

    def _note(self, event: Any) -> None:
        raise AssertionError(f"share states have no events: {event}")

    def perform(
        self, operation: Operation, share: SharePartitionKey, asked: Any
    ) -> list[Any] | ShardPending | None:
        """Do something with the state of a share partition; returns a list of its row, or what becomes
        it. None when the row was lost.

        Raises KafkaError, as `shard` does.
        """
        shard = self.shard(share.name)
        stored = self.store(shard, operation(shard.coordinator, share, asked, self.now()))
        return self.release(shard, [stored.response])

    def topics_changed(self, event: TopicsChanged) -> None:
        super().topics_changed(event)
        gone = {topic.id for topic in event.deleted}
        if gone:
            self._begin(
                self.sweep(shard, shard.coordinator.forget_topics(gone)) for shard in self.shards()
            )

    def _on_loaded(self, load: Load[ShareCoordinator]) -> None:
        """Topics may have been deleted while no node had the coordinator."""
        self._begin([self.sweep(load.shard, load.shard.coordinator.forget_missing_topics())])

    async def expire(self) -> None:
        """Rewrite the logs that are mostly of the past, beside clients."""
        duty_cycle = DutyCycle()
        for shard in self.shards():
            log = shard.replica.log
            past = log.log_end_offset
            records = past - log.log_start_offset
            needed = REWRITE_RATIO * len(shard.coordinator.states)
            if records < max(needed, REWRITE_RECORDS_MIN):
                continue
            for _ in self.sweep(shard, shard.coordinator.expire(self.now())):
                await duty_cycle.pause()
            if self.serves(shard) and await outcome_of(self.release(shard, True)):
                self._delete_before(shard.replica, past)

    def _delete_before(self, replica: LeaderReplica, past: int) -> None:
        with suppress(StorageError), self._partitions.storage_errors_reported(replica):
            replica.delete_records_before(past)
            logger.info("%s-%d was rewritten", self.topic, replica.index)
