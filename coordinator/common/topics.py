"""Topics of the cluster, as far as groups need to know them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from typing import NamedTuple, Protocol
from uuid import UUID

from .assignor import TopicShape


class TopicNames(Protocol):
    """What committed offsets need to know of the cluster's topics."""

    def name_of(self, topic_id: UUID) -> str | None:
        """The name of a topic, None if there is no such topic."""
        ...

    def id_of(self, name: str) -> UUID | None:
        """The id of a topic, None if there is no such topic."""
        ...

    def exists(self, name: str, partition: int) -> bool:
        """Whether a topic has this partition."""
        ...


class Topics(TopicNames, Protocol):
    """Where to ask about the topics of the cluster."""

    def shape_of(self, name: str) -> TopicShape:
        """Partitions and racks of a topic that there is."""
        ...

    def names(self) -> Collection[str]:
        """All topics."""
        ...


class _Fact(NamedTuple):
    id: UUID
    shape: TopicShape
    hash: int


class KnownTopics:
    """The topics of the cluster as the groups of one shard see them.

    What was found out of a topic is kept until the topic changes. `version` rises with each change:
    a group that has seen the present one need not look again.
    """

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._facts: dict[str, _Fact] = {}
        self.version = 0

    def changed(self, names: Iterable[str]) -> None:
        """These topics are new, gone or different."""
        self.version += 1
        for name in names:
            self._facts.pop(name, None)

    def all_names(self) -> Collection[str]:
        return self._topics.names()

    def name_of(self, topic_id: UUID) -> str | None:
        return self._topics.name_of(topic_id)

    def ids_of(self, names: AbstractSet[str]) -> frozenset[UUID]:
        """The ids of those topics that there are."""
        return frozenset(fact.id for fact in map(self._fact, names) if fact is not None)

    def shapes_of(self, names: AbstractSet[str]) -> dict[UUID, TopicShape]:
        """Those topics that there are, by id."""
        return {fact.id: fact.shape for fact in map(self._fact, names) if fact is not None}

    def count_of(self, name: str) -> int | None:
        """How many partitions a topic has; None when there is no such topic."""
        fact = self._fact(name)
        return None if fact is None else fact.shape.partitions

    def hash_of(self, names: AbstractSet[str]) -> int:
        """A number (int64) that is another one when any of the topics is; 0 for none.

        It need not be the one of Kafka, which takes another function: whoever finds another number
        than its own shares the partitions anew, once.
        """
        total = sum(fact.hash for fact in map(self._fact, names) if fact is not None)
        return (total + (1 << 63)) % (1 << 64) - (1 << 63)

    def _fact(self, name: str) -> _Fact | None:
        fact = self._facts.get(name)
        if fact is None:
            topic_id = self._topics.id_of(name)
            if topic_id is None:
                return None
            shape = self._topics.shape_of(name)
            fact = self._facts[name] = _Fact(topic_id, shape, _hash(name, topic_id, shape))
        return fact


def _hash(name: str, topic_id: UUID, shape: TopicShape) -> int:
    racks = [sorted(each) for each in shape.racks]
    text = f"{name} {topic_id} {shape.partitions} {racks}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
