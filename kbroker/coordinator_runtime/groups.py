"""Group coordinators of a node, whose state is stored in `__consumer_offsets`."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import trio

from kbroker.cluster import OFFSETS_TOPIC, ConfigResource, ResourceType, TopicsChanged
from kbroker.cluster.node_context import NodeContext
from kbroker.cluster.topics import NewTopic
from kbroker.config import BrokerConfig
from kbroker.coordinator import (
    ConsumerGroupSettings,
    Event,
    GroupCoordinator,
    GroupMemory,
    GroupSettings,
    Result,
    ShareGroupSettings,
    StreamsGroupSettings,
)
from kbroker.partitions.history import History
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.records import BatchHeader, Record, read_marker

from . import group_settings
from .causes import cause_of, cause_of_ended_rebalance, reason_of, with_short_ids
from .loading import Load
from .partition_writer import PartitionWriter
from .shard import Shard
from .share_persister import SharePersister
from .share_state_initializer import ShareStateInitializer
from .sweeping import SweepingShards
from .topics import ClusterTopics

logger = logging.getLogger(__name__)

GroupShard: TypeAlias = Shard[GroupCoordinator]
R = TypeVar("R")
S = TypeVar("S")


class GroupCoordinatorService(SweepingShards[GroupCoordinator]):
    """All group coordinators of one node.

    Attributes:
        share_state_initializer: Sends share-state requests of share groups to the share
            coordinators.
        history: Events of each group.
        memory: Memory limits of all group coordinators of the node.
        rebalances: Number of rebalances that began, by reason.
    """

    def __init__(
        self,
        context: NodeContext,
        partitions: PartitionWriter,
        persister: SharePersister,
    ) -> None:
        super().__init__(context, partitions, OFFSETS_TOPIC)
        self.share_state_initializer = ShareStateInitializer(
            self, persister, context.error_log.is_new
        )
        self.history: History[str, Event] = History()
        config = context.config
        self.memory = GroupMemory(
            members=self._memory_limit(
                "group.coordinator.members.max.bytes", config.group_coordinator_members_max_bytes
            ),
            offsets=self._memory_limit(
                "group.coordinator.offsets.max.bytes", config.group_coordinator_offsets_max_bytes
            ),
        )
        self.rebalances: Counter[str] = Counter()
        self._closed: Counter[str] = Counter()
        # Broker configs, and the settings of all groups without own configs, by the function that
        # reads the settings.
        self._shared_settings: tuple[BrokerConfig, dict[Any, Any]] = context.config, {}

    def _new_topic(self) -> NewTopic:
        config = self._context.config
        return self._internal_topic(
            "offsets.topic.num.partitions",
            config.offsets_topic_num_partitions,
            config.offsets_topic_replication_factor,
            {
                "compression.type": "producer",
                "segment.bytes": str(config.offsets_topic_segment_bytes),
            },
        )

    def _new_coordinator(self, index: int) -> GroupCoordinator:
        config = self._context.config
        settings = GroupSettings(
            session_timeout_min_ms=config.group_min_session_timeout_ms,
            session_timeout_max_ms=config.group_max_session_timeout_ms,
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            group_size_max=config.group_max_size,
            member_metadata_bytes_max=config.group_member_metadata_max_bytes,
            group_metadata_bytes_max=config.group_metadata_max_bytes,
            offset_metadata_length_max=config.offset_metadata_max_bytes,
            offsets_retention_ms=config.offsets_retention_minutes * 60_000,
        )
        topics = ClusterTopics(self._context.cluster)
        return GroupCoordinator(
            settings,
            topics,
            consumer_settings=self.consumer_settings,
            share_settings=self.share_settings,
            streams_settings=self.streams_settings,
            memory=self.memory,
        )

    def consumer_settings(self, group_id: str) -> ConsumerGroupSettings:
        """Return the current settings of a consumer group; group configs take precedence."""
        return self._settings(group_id, group_settings.consumer)

    def streams_settings(self, group_id: str) -> StreamsGroupSettings:
        """Return the current settings of a streams group; group configs take precedence."""
        return self._settings(group_id, group_settings.streams)

    def share_settings(self, group_id: str) -> ShareGroupSettings:
        """Return the current settings of a share group; group configs take precedence."""
        return self._settings(group_id, group_settings.share)

    def _settings(self, group_id: str, make: Callable[[BrokerConfig, Mapping[str, str]], S]) -> S:
        """Return the settings that `make` reads, cached for groups without own configs."""
        config, own = self._context.config, self._own_settings(group_id)
        if own:
            return make(config, own)
        if self._shared_settings[0] is not config:
            self._shared_settings = config, {}
        common = self._shared_settings[1]
        if make not in common:
            common[make] = make(config, own)
        found: S = common[make]
        return found

    def _own_settings(self, group_id: str) -> Mapping[str, str]:
        return self._context.cluster.own_configs(ConfigResource(ResourceType.GROUP, group_id))

    def store(self, shard: GroupShard, result: Result[R]) -> Result[R]:
        result = super().store(shard, result)
        if self.serves(shard):  # a loading shard schedules its states after the load
            for states in shard.coordinator.share_states.take():
                self.share_state_initializer.schedule(shard, states)
        return result

    async def work(self) -> None:
        """Run the base coordinator tasks and the share-state initializer, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(super().work)
            nursery.start_soon(self.share_state_initializer.run)

    def _expiry_interval_ms(self) -> int:
        return self._context.config.offsets_retention_check_interval_ms

    def _record_event(self, event: Event) -> None:
        past = self.history.of(event.group_id)
        begun = reason_of(past, event)
        if begun is not None:
            self.rebalances[begun] += 1
        reason = cause_of_ended_rebalance(past, event)
        self.history.add(event.group_id, event)
        if reason is None:
            text = "group %s: %s; now %s, generation %d"
            logger.debug(text, event.group_id, cause_of(event), event.state, event.generation)
            return
        logger.info(
            "group %s rebalanced because %s; %s (%s, generation %d)",
            event.group_id,
            with_short_ids(reason),
            with_short_ids(cause_of(event)),
            event.state,
            event.generation,
        )

    def end_transaction(self, index: int, producer_id: int, *, commit: bool) -> None:
        """Apply a transaction marker that was appended to partition `index` of the offsets topic.

        The pending offsets of the producer become visible or are dropped.
        """
        shard = self._shards.get(index)
        load = self._loader.get(index)
        if shard is not None:
            self._begin([self._apply_transaction_end(shard, producer_id, commit=commit)])
        elif load is not None:
            load.ended_transactions.append((producer_id, commit))

    def _apply_transaction_end(
        self, shard: GroupShard, producer_id: int, *, commit: bool
    ) -> Iterator[int]:
        """Apply the end of a transaction in pieces, while its groups are closed to requests."""
        groups = tuple(shard.coordinator.groups_in_transaction(producer_id))
        pieces = shard.coordinator.end_transaction(producer_id, commit=commit)
        with self.closed_to_requests(*groups):
            for offsets in pieces:
                yield offsets
                if not self.serves(shard):
                    return
        self._context.changes.notify()

    def _replay_markers(
        self, coordinator: GroupCoordinator, header: BatchHeader, records: Iterable[Record]
    ) -> Iterator[int]:
        for marker in filter(None, map(read_marker, records)):
            yield from coordinator.end_transaction(header.producer_id, commit=marker.commit)

    def topics_changed(self, event: TopicsChanged) -> None:
        super().topics_changed(event)
        names = [topic.name for topic in event.deleted]
        touched = [*names, *(topic.name for topic in (*event.created, *event.changed))]
        for shard in self.known_shards():
            shard.coordinator.topics_changed(touched)
        if names:
            deleted_ids = {topic.id for topic in event.deleted}
            for shard in self.shards():
                coordinator = shard.coordinator
                self._begin([self.sweep(shard, coordinator.forget_topics(names))])
                self._begin(
                    [self.sweep(shard, coordinator.share_offsets.forget_topics(deleted_ids))]
                )

    def _on_loaded(self, load: Load[GroupCoordinator]) -> None:
        """Process the ends of transactions and the deletions of topics that the load missed.

        If the load has read the marker of a transaction, its end has no effect here: the producer
        cannot write offsets while the coordinator is loading.
        """
        for producer_id, commit in load.ended_transactions:
            self._begin([self._apply_transaction_end(load.shard, producer_id, commit=commit)])
        # A single node without missed changes has already processed every deletion.
        if load.missed_topics or len(self._context.cluster.node_ids) > 1:
            pieces = load.shard.coordinator.forget_missing_topics()
            self._begin([self.sweep(load.shard, pieces)])

    # -- closed groups

    def shard(self, key: str) -> GroupShard:
        shard = super().shard(key)  # may load the coordinator and close the group
        if key in self._closed:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shard

    @contextmanager
    def closed_to_requests(self, *group_ids: str) -> Iterator[None]:
        """Reject requests for the groups with COORDINATOR_LOAD_IN_PROGRESS while the block runs."""
        self._closed.update(group_ids)
        try:
            yield
        finally:
            for group_id in group_ids:
                self._closed[group_id] -= 1
                if not self._closed[group_id]:
                    del self._closed[group_id]

    def renew_sessions(self) -> None:
        """Restart the sessions of all members."""
        for shard in self.shards():
            shard.coordinator.renew_sessions(self.now())
