"""One member of the cluster: the logs it hosts, the coordinators it leads, its background work."""

from __future__ import annotations

import logging
import uuid

import trio

from kbroker.cluster import OFFSETS_TOPIC, Cluster, Topic, TopicsChanged
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.storage.manager import LogManager

from .clock import Clock
from .config import BrokerConfig, TopicConfig
from .fetch_sessions import FetchSessions
from .flusher import Flusher
from .groups import GroupService
from .log_settings import log_config
from .producer_ids import ProducerIds
from .replica import Replica
from .request_memory import RequestMemory
from .topics import NewTopic, create_topic

logger = logging.getLogger(__name__)

CHECKPOINT_SECONDS = 5


class Node:
    """What one node owns. Handlers reach everything through it.

    Resource handling: `start` recovers the logs and loads the coordinators, `run` does the
    background work until cancelled, `stop` syncs and writes the clean-shutdown marker.
    """

    def __init__(
        self, node_id: int, cluster: Cluster, logs: LogManager, config: BrokerConfig, clock: Clock
    ) -> None:
        self.id = node_id
        self.cluster = cluster
        self.config = config
        self.clock = clock
        self.logs = logs
        self.flusher = Flusher(
            "os" if logs.in_memory else config.flush_policy,
            interval_ms=config.flush_interval_ms,
        )
        self.groups = GroupService(self)
        self.producer_ids = ProducerIds(cluster)
        self.fetch_sessions = FetchSessions(sessions_max=config.fetch_sessions_max)
        self.request_memory = RequestMemory(config.queued_max_request_bytes)
        self.stopping = False
        self.unhandled_errors = 0
        self._replicas: dict[tuple[uuid.UUID, int], Replica] = {}
        cluster.subscribe(self._on_topics_changed)

    # -- life

    async def start(self) -> None:
        """Recover what is on disk, take leadership, load the coordinators."""
        await self.cluster.register_node(self.id)
        for topic_id, index in self.logs.existing():
            topic = self.cluster.topics_by_id.get(topic_id)
            if topic is None or index >= len(topic.partitions):
                self.logs.delete(topic_id, index)
            elif not self.logs.was_clean:
                self._open_replica(topic, index)
        await self.groups.load()

    async def run(self) -> None:
        """Background work, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.flusher.run)
            nursery.start_soon(self.groups.run_timers)
            nursery.start_soon(self._checkpoint_regularly)
            nursery.start_soon(self._apply_retention_regularly)

    async def stop(self) -> None:
        """Answer what is parked, sync, write the clean-shutdown marker."""
        self.stopping = True
        self.wake_fetches()
        await self.flusher.sync_now()
        for replica in self._replicas.values():
            replica.close(deleted=False)
        self.logs.close(clean=self.flusher.failed is None)
        await self.cluster.aclose()

    def wake_fetches(self) -> None:
        for replica in self._replicas.values():
            replica.wake()

    async def _checkpoint_regularly(self) -> None:
        while True:
            await trio.sleep(CHECKPOINT_SECONDS)
            self.logs.checkpoint()

    async def _apply_retention_regularly(self) -> None:
        while True:
            await trio.sleep(self.config.retention_check_interval_ms / 1000)
            self.apply_retention()

    def apply_retention(self) -> None:
        """Delete what each topic's limits let go."""
        now_ms = self.clock.log_ms()
        for replica in list(self._replicas.values()):
            for line in replica.log.apply_retention(now_ms):
                logger.info("%s", line)

    # -- replicas

    def replica(self, topic: Topic, index: int) -> Replica:
        """Return the replica of a partition that this node leads, opening its log if need be.

        Raises KafkaError: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, or
        KAFKA_STORAGE_ERROR when the partition is offline.
        """
        replica = self._replicas.get((topic.id, index))
        if replica is not None:
            return replica
        if not 0 <= index < len(topic.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if topic.partitions[index].leader != self.id:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self._open_replica(topic, index)

    def named_replica(self, name: str, index: int) -> Replica:
        """As `replica`, by topic name."""
        topic = self.cluster.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return self.replica(topic, index)

    def topic_config(self, topic: Topic) -> TopicConfig:
        """The settings of a topic over those of this node."""
        return TopicConfig(topic.configs, self.config)

    async def auto_create_topic(self, name: str) -> Topic:
        """Create a topic that a client named, with the defaults; internal ones as they must be."""
        if name == OFFSETS_TOPIC:
            return await self.groups.create_offsets_topic()
        return await create_topic(
            self.cluster, self.config, NewTopic(name), cause="first use by a client"
        )

    def _open_replica(self, topic: Topic, index: int) -> Replica:
        config = self.topic_config(topic)
        log = self.logs.open_log(
            topic.name, topic.id, index, log_config(config), self.clock.log_ms()
        )
        replica = Replica(topic, topic.partitions[index], log, config, self.flusher)
        self._replicas[topic.id, index] = replica
        return replica

    def _on_topics_changed(self, event: TopicsChanged) -> None:
        for topic in event.deleted:
            self._drop_topic(topic)
        for topic in event.changed:
            for partition in topic.partitions:
                replica = self._replicas.get((topic.id, partition.index))
                if replica is not None:
                    replica.follow_cluster(partition)
                    replica.configure(self.topic_config(topic))
        for topic in event.created:
            logger.info("topic %s created: %s", topic.name, event.cause)

    def _drop_topic(self, topic: Topic) -> None:
        for partition in topic.partitions:
            replica = self._replicas.pop((topic.id, partition.index), None)
            if replica is not None:
                self.flusher.forget(replica)
                replica.close(deleted=True)
            self.logs.delete(topic.id, partition.index)
        self.groups.topic_deleted(topic.name)
        logger.info("topic %s deleted", topic.name)
