"""What coordinators ask about topics."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from kbroker.cluster import Cluster
from kbroker.coordinator import TopicShape


class ClusterTopics:
    """The topics of a cluster, as coordinators see them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def name_of(self, topic_id: UUID) -> str | None:
        """The name of a topic, None if there is no such topic."""
        topic = self._cluster.topics_by_id.get(topic_id)
        return topic.name if topic else None

    def id_of(self, name: str) -> UUID | None:
        """The id of a topic, None if there is no such topic."""
        topic = self._cluster.topics.get(name)
        return topic.id if topic else None

    def exists(self, name: str, partition: int) -> bool:
        """Whether a topic has this partition."""
        return self._cluster.partition(name, partition) is not None

    def shape_of(self, name: str) -> TopicShape:
        """How many partitions a topic has, and in which racks they are where nodes have racks."""
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
        """Of all topics."""
        return self._cluster.topics
