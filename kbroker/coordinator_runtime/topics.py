"""Topic lookups for coordinators."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from kbroker.cluster import Cluster
from kbroker.coordinator import TopicShape


class ClusterTopics:
    """Topics of a cluster, as coordinators see them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def name_of(self, topic_id: UUID) -> str | None:
        """Return the name of a topic, or None if the topic does not exist."""
        topic = self._cluster.topics_by_id.get(topic_id)
        return topic.name if topic else None

    def id_of(self, name: str) -> UUID | None:
        """Return the ID of a topic, or None if the topic does not exist."""
        topic = self._cluster.topics.get(name)
        return topic.id if topic else None

    def exists(self, name: str, partition: int) -> bool:
        """Return True if a topic has this partition."""
        return self._cluster.partition(name, partition) is not None

    def shape_of(self, name: str) -> TopicShape:
        """Return the partition count of a topic, and the partitions' racks if nodes have racks."""
        partitions = self._cluster.topics[name].partitions
        nodes = {node for each in partitions for node in each.replicas}
        racks = {node: rack for node in nodes if (rack := self._rack_of(node)) is not None}
        if not racks:
            return TopicShape(len(partitions))
        places = [{racks[n] for n in each.replicas if n in racks} for each in partitions]
        return TopicShape(len(partitions), places)

    def _rack_of(self, node: int) -> str | None:
        known = self._cluster.registrations.known.get(node)  # a node that is down keeps its rack
        return None if known is None else known.rack

    def names(self) -> Collection[str]:
        """Return the names of all topics."""
        return self._cluster.topics
