"""The group coordinators of a node, whose state is in `__consumer_offsets`."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

from kbroker.cluster import OFFSETS_TOPIC, Cluster, TopicsChanged
from kbroker.coordinator import (
    ClientInfo,
    Event,
    GroupCoordinator,
    GroupSettings,
)
from kbroker.protocol.records import BatchHeader, Record, read_marker
from kbroker.protocol.transaction_log import NO_PRODUCER_ID

from .explain import cause_of, rebalance_ended_by
from .history import History
from .shards import Load, Shard, Shards
from .topics import NewTopic

if TYPE_CHECKING:
    from .context import Context
    from .node import Node

logger = logging.getLogger(__name__)

GroupShard: TypeAlias = Shard[GroupCoordinator]


class GroupService(Shards[GroupCoordinator]):
    """All group coordinators of one node."""

    def __init__(self, node: Node) -> None:
        super().__init__(node, OFFSETS_TOPIC)
        self.history: History[str, Event] = History()
        """What changed in each group and why."""

    def _new_topic(self) -> NewTopic:
        config = self._node.config
        return self._compacted_topic(
            "offsets.topic.num.partitions",
            config.offsets_topic_num_partitions,
            config.offsets_topic_replication_factor,
            {
                "compression.type": "producer",
                "segment.bytes": str(config.offsets_topic_segment_bytes),
            },
        )

    def _new_coordinator(self, index: int) -> GroupCoordinator:
        config = self._node.config
        settings = GroupSettings(
            session_timeout_min_ms=config.group_min_session_timeout_ms,
            session_timeout_max_ms=config.group_max_session_timeout_ms,
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            group_size_max=config.group_max_size,
            offset_metadata_length_max=config.offset_metadata_max_bytes,
            offsets_retention_ms=config.offsets_retention_minutes * 60_000,
        )
        return GroupCoordinator(settings, _ClusterTopics(self._node.cluster))

    def _expiry_interval_ms(self) -> int:
        return self._node.config.offsets_retention_check_interval_ms

    def _note(self, event: Event) -> None:
        reason = rebalance_ended_by(self.history.of(event.group_id), event)
        self.history.note(event.group_id, event)
        logger.log(
            logging.DEBUG if reason is None else logging.INFO,
            "group %s: %s%s; now %s, generation %d",
            event.group_id,
            "" if reason is None else f"rebalanced because {reason}: ",
            cause_of(event),
            event.state,
            event.generation,
        )

    def end_transaction(self, index: int, producer_id: int, *, commit: bool) -> None:
        """A marker was appended to partition `index` of the offsets topic: the offsets that were
        pending there for its producer count from now on, or vanish."""
        shard = self._shards.get(index)
        if shard is not None:
            shard.coordinator.end_transaction(producer_id, commit=commit)
            self._node.changes.happened()

    def _replay(
        self, coordinator: GroupCoordinator, header: BatchHeader, records: Iterable[Record]
    ) -> None:
        if header.is_control:
            for marker in filter(None, map(read_marker, records)):
                coordinator.end_transaction(header.producer_id, commit=marker.commit)
            return
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
        for record in records:
            if record.key is not None:
                coordinator.replay(record.key, record.value, producer_id)

    def topics_changed(self, event: TopicsChanged) -> None:
        super().topics_changed(event)
        names = [topic.name for topic in event.deleted]
        if names:
            for shard in self.shards():
                self.run_all(shard, shard.coordinator.forget_topics(names))

    def _on_loaded(self, load: Load[GroupCoordinator]) -> None:
        """Topics may have been deleted while no node had the coordinator."""
        # Else this one heard of all that were.
        if load.missed_topics or len(self._node.cluster.node_ids) > 1:
            self.run_all(load.shard, load.shard.coordinator.forget_missing_topics())

    def renew_sessions(self) -> None:
        """All members count as just heard of."""
        for shard in self.shards():
            shard.coordinator.renew_sessions(self.now())


class _ClusterTopics:
    """What a coordinator asks about topics."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def name_of(self, topic_id: UUID) -> str | None:
        topic = self._cluster.topics_by_id.get(topic_id)
        return topic.name if topic else None

    def id_of(self, name: str) -> UUID | None:
        topic = self._cluster.topics.get(name)
        return topic.id if topic else None

    def exists(self, name: str, partition: int) -> bool:
        return self._cluster.partition(name, partition) is not None


def client_info(ctx: Context) -> ClientInfo:
    """Who sent a request, as groups show their members."""
    return ClientInfo(ctx.client_id or "", "/" + ctx.peer.host)
