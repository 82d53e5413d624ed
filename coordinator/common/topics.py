"""Topics of the cluster, as groups see them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from typing import NamedTuple, Protocol
from uuid import UUID

from .assignor import TopicShape


class TopicNames(Protocol):
    """Topic lookups that committed offsets need."""

    def name_of(self, topic_id: UUID) -> str | None:
        """Return the name of a topic, or None if the topic does not exist."""
        ...

    def id_of(self, name: str) -> UUID | None:
        """Return the ID of a topic, or None if the topic does not exist."""
        ...

    def exists(self, name: str, partition: int) -> bool:
        """Return True if a topic has this partition."""
        ...


class Topics(TopicNames, Protocol):
    """Source of topic metadata."""

    def shape_of(self, name: str) -> TopicShape:
        """Return the partition count and the racks of an existing topic."""
        ...

    def names(self) -> Collection[str]:
        """Return the names of all topics."""
        ...


class _CachedTopic(NamedTuple):
    id: UUID
    shape: TopicShape
    hash: int


class KnownTopics:
    """Topics of the cluster as the groups of one shard see them.

    Topic metadata is cached until the topic changes.

    Attributes:
        version: Rises with each change of a topic. A group that has processed the current version
            has nothing to update.
    """

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._cached: dict[str, _CachedTopic] = {}
        self.version = 0

    def invalidate(self, names: Iterable[str]) -> None:
        """Drop the cached metadata of topics that were created, deleted or changed."""
        self.version += 1
        for name in names:
            self._cached.pop(name, None)

    def all_names(self) -> Collection[str]:
        return self._topics.names()

    def name_of(self, topic_id: UUID) -> str | None:
        return self._topics.name_of(topic_id)

    def ids_of(self, names: AbstractSet[str]) -> frozenset[UUID]:
        """Return the IDs of the topics that exist."""
        return frozenset(topic.id for topic in map(self._topic, names) if topic is not None)

    def shapes_of(self, names: AbstractSet[str]) -> dict[UUID, TopicShape]:
        """Return the shapes of the topics that exist, by topic ID."""
        return {topic.id: topic.shape for topic in map(self._topic, names) if topic is not None}

    def count_of(self, name: str) -> int | None:
        """Return the partition count of a topic, or None if the topic does not exist."""
        topic = self._topic(name)
        return None if topic is None else topic.shape.partitions

    def hash_of(self, names: AbstractSet[str]) -> int:
        """Return a hash (int64) that changes when any of the topics changes; 0 for no topics.

        The hash function differs from Kafka's. A broker that reads a stored hash of the other
        implementation recomputes the target assignment once.
        """
        total = sum(topic.hash for topic in map(self._topic, names) if topic is not None)
        return (total + (1 << 63)) % (1 << 64) - (1 << 63)

    def _topic(self, name: str) -> _CachedTopic | None:
        topic = self._cached.get(name)
        if topic is None:
            topic_id = self._topics.id_of(name)
            if topic_id is None:
                return None
            shape = self._topics.shape_of(name)
            topic = self._cached[name] = _CachedTopic(topic_id, shape, _hash(name, topic_id, shape))
        return topic


def _hash(name: str, topic_id: UUID, shape: TopicShape) -> int:
    racks = [sorted(each) for each in shape.racks]
    text = f"{name} {topic_id} {shape.partitions} {racks}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
