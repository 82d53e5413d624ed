"""A node's cache of the cluster metadata, updated by store changes, with listeners.

Reads are attribute accesses. This module writes nothing to the store; see `cluster`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import NamedTuple

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.security.acls import Acls

from .acls import read_acl
from .client_quotas import ClientQuotas
from .delegation_tokens import DelegationTokens
from .features import UNREGISTERED_RANGES
from .keys import (
    ACLS,
    CLIENT_QUOTAS,
    CONFIGS,
    DELEGATION_TOKENS,
    FEATURES,
    PARTITIONS,
    PRODUCER_IDS,
    SCRAM_SECRET,
    SCRAM_USERS,
    TOPICS,
    partition_key,
)
from .model import (
    ConfigResource,
    Partition,
    ResourceType,
    StoredConfigs,
    Topic,
    collision_key,
)
from .placement import Load
from .registrations import Registration, Registrations
from .scram_users import ScramUsers
from .store import ABSENT, Change, Entry


class PartitionChange(NamedTuple):
    """A change of a partition's state."""

    topic: Topic
    before: Partition
    after: Partition


class TopicsChanged(NamedTuple):
    """The topics that one store change concerns.

    Attributes:
        created: New topics.
        deleted: Deleted topics.
        changed: Topics that existed before and changed.
        altered: Topics of `changed` with other settings or more partitions.
        moved: Partitions with another leader, ISR or replicas.
        partitions: All changed partitions.
        strays: Keys of partition entries that were written after their topic was deleted.
        cause: Reason of the change.
    """

    created: list[Topic]
    deleted: list[Topic]
    changed: list[Topic]
    altered: list[Topic]
    moved: list[PartitionChange]
    partitions: list[PartitionChange]
    strays: list[str]
    cause: str


class NodesChanged(NamedTuple):
    """Nodes that started, stopped, or changed their readiness or controller role."""

    node_ids: frozenset[int]
    cause: str


Listener = Callable[[TopicsChanged], None]
ConfigsListener = Callable[[ConfigResource], None]
NodesListener = Callable[[NodesChanged], None]


class ClusterView:
    """The cluster metadata as far as this node knows it.

    Attributes:
        default_min_in_sync: min.insync.replicas of topics without the setting.
        features: Finalized feature levels (KIP-584).
        unclean_elections: Unclean elections by this node.
        load: Number of partitions per node.
        strays: Keys of partition entries whose topics are deleted.
        changes_seen: Number of changes since the metadata was loaded.
    """

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: dict[uuid.UUID, Topic] = {}
        self.configs: dict[ConfigResource, StoredConfigs] = {}
        self.acls = Acls()
        self.registrations = Registrations()
        self.scram_users = ScramUsers()
        self.delegation_tokens = DelegationTokens()
        self.client_quotas = ClientQuotas()
        self.default_min_in_sync = 1
        self.features = {name: levels[-1] for name, levels in UNREGISTERED_RANGES.items()}
        self.features_revision = ABSENT
        self.unclean_elections = 0
        self.load = Load()
        self.strays: set[str] = set()
        self.changes_seen = 0
        self._collisions: dict[str, str] = {}
        self._producer_ids_revision = ABSENT
        self._next_producer_id = 0
        self._listeners: list[Listener] = []
        self._configs_listeners: list[ConfigsListener] = []
        self._nodes_listeners: list[NodesListener] = []

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` after each change of topics, in order."""
        self._listeners.append(listener)

    def subscribe_configs(self, listener: ConfigsListener) -> None:
        """Call `listener` after each change of settings of other resources than topics."""
        self._configs_listeners.append(listener)

    def subscribe_nodes(self, listener: NodesListener) -> None:
        """Call `listener` after each change of nodes, before the topic listeners."""
        self._nodes_listeners.append(listener)

    # -- lookups

    @property
    def nodes(self) -> dict[int, Registration]:
        """Running nodes by ID; do not modify."""
        return self.registrations.live

    @property
    def node_ids(self) -> list[int]:
        """IDs of all nodes of the cluster, including those that are down."""
        return sorted(self.registrations.known)

    @property
    def ready_ids(self) -> list[int]:
        """IDs of the nodes that may lead partitions."""
        return sorted(self.registrations.ready)

    @property
    def controller_id(self) -> int:
        """ID of the active controller; -1 if there is none."""
        return self.registrations.controller_id

    @property
    def controller_epoch(self) -> int:
        """Number of controller takeovers; a single node takes over at each start."""
        return self.registrations.controller_epoch

    @property
    def open_ids(self) -> list[int]:
        """IDs of the nodes that accept new partitions, without cordoned nodes (KIP-1066)."""
        known = self.registrations.known
        return sorted(node_id for node_id, each in known.items() if not each.cordoned)

    def registration(self, node_id: int) -> Registration | None:
        """Return the registration of a running node."""
        return self.registrations.live.get(node_id)

    def is_ready(self, node_id: int) -> bool:
        """Return True if a node runs and may lead partitions."""
        registration = self.registrations.live.get(node_id)
        return registration is not None and registration.ready

    def directories(self, node_id: int) -> Mapping[str, str]:
        """Return the paths of a node's log directories at its last start, by directory ID."""
        known = self.registrations.known.get(node_id)
        return known.directories if known else {}

    def topic(self, name: str) -> Topic | None:
        return self.topics.get(name)

    def min_in_sync(self, topic: Topic) -> int:
        """Return min.insync.replicas of a topic."""
        own = topic.configs.get("min.insync.replicas")
        return self.default_min_in_sync if own is None else int(own)

    def partition(self, name: str, index: int) -> Partition | None:
        topic = self.topics.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    def count_partitions(self) -> int:
        """Return the number of partitions of all topics."""
        return sum(len(topic.partitions) for topic in self.topics.values())

    def own_configs(self, resource: ConfigResource) -> dict[str, str]:
        """Return the dynamic settings of a resource other than a topic; do not modify."""
        stored = self.configs.get(resource)
        return stored.values if stored else {}

    def existing(self, name: str, index: int) -> tuple[Topic, Partition]:
        """Return a topic and one of its partitions. Raises UNKNOWN_TOPIC_OR_PARTITION."""
        topic, partition = self.topics.get(name), self.partition(name, index)
        if topic is None or partition is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}-{index}"
            )
        return topic, partition

    # -- the cache

    def fill(self, entries: Mapping[str, Entry]) -> None:
        """Load all entries of a store, without calling listeners."""
        topics = {key: entry for key, entry in entries.items() if key.startswith(TOPICS)}
        for key, entry in topics.items():
            self._put_topic(key.removeprefix(TOPICS), entry)
        for key, entry in entries.items():
            if key.startswith(PARTITIONS):
                self._put_partition(key, entry)
            elif key.startswith(CONFIGS):
                self._put_configs(key, entry)
            elif key not in topics:
                self._put_single(key, entry)

    def apply(self, change: Change) -> None:
        """Apply a change of the store and call the listeners."""
        self.changes_seen += 1
        created: list[Topic] = []
        deleted: list[Topic] = []
        touched: dict[uuid.UUID, Topic] = {}
        altered: list[Topic] = []
        moved: list[PartitionChange] = []
        partitions: list[PartitionChange] = []
        strays: list[str] = []
        nodes: set[int] = set()
        resources: list[ConfigResource] = []
        for key, entry in _topics_first(change.entries):
            if key.startswith(TOPICS):
                name = key.removeprefix(TOPICS)
                known = self.topics.get(name)
                if entry is None:
                    deleted += self._remove_topic(name)
                else:
                    topic, new = self._put_topic(name, entry)
                    partitions += new
                    if known is None:
                        created.append(topic)
                    else:
                        touched[topic.id] = topic
                        altered.append(topic)
            elif key.startswith(PARTITIONS) and entry is None:
                self.strays.discard(key)
            elif key.startswith(PARTITIONS) and entry is not None:
                placed = self._put_partition(key, entry)
                if placed is None:
                    strays.append(key)
                else:
                    touched[placed.topic.id] = placed.topic
                    partitions.append(placed)
                    if _has_moved(placed):
                        moved.append(placed)
            elif key.startswith(CONFIGS):
                resources.append(self._put_configs(key, entry))
            else:
                node_id = self._put_single(key, entry)
                if node_id is not None:
                    nodes.add(node_id)
        if nodes:
            self._notify_nodes(NodesChanged(frozenset(nodes), change.cause))
        changed = [topic for topic in touched.values() if topic not in created]
        if created or deleted or changed or strays:
            event = TopicsChanged(
                created, deleted, changed, altered, moved, partitions, strays, change.cause
            )
            for listener in self._listeners:
                listener(event)
        for resource in resources:
            for listen in self._configs_listeners:
                listen(resource)

    def _put_topic(self, name: str, entry: Entry) -> tuple[Topic, list[PartitionChange]]:
        """Apply a topic entry; return the topic and its new placed partitions."""
        topic_id = uuid.UUID(entry.value["id"])
        topic = self.topics_by_id.get(topic_id)
        if topic is None:
            topic = Topic(name=name, id=topic_id)
            self.topics[name] = topic
            self.topics_by_id[topic_id] = topic
            self._collisions[collision_key(name)] = name
        topic.revision = entry.revision
        new = [each for each in topic.apply_document(entry.value) if each.replicas]
        for each in new:
            self.load.add(each.replicas)
        return topic, [PartitionChange(topic, Partition.unplaced(each.index), each) for each in new]

    def _put_partition(self, key: str, entry: Entry) -> PartitionChange | None:
        """Apply a partition entry; return None, and list the key as stray, if its topic is deleted.

        A node that does not yet know of the deletion can write such an entry: a partition without an
        entry of its own is compared with `ABSENT`, which also holds after the deletion.
        """
        _, topic_id, index = key.split("/")
        topic = self.topics_by_id.get(uuid.UUID(topic_id))
        if topic is None:
            self.strays.add(key)
            return None
        position = int(index)
        before = topic.partitions[position]
        after = Partition.from_document(position, entry.value, entry.revision)
        topic.partitions[position] = after
        if before.replicas != after.replicas:
            self._uncount(before)
            self.load.add(after.replicas)
        return PartitionChange(topic, before, after)

    def _uncount(self, partition: Partition) -> None:
        if partition.replicas:  # unplaced partitions are not counted
            self.load.remove(partition.replicas)

    def _remove_topic(self, name: str) -> list[Topic]:
        topic = self.topics.pop(name, None)
        if topic is None:
            return []
        del self.topics_by_id[topic.id]
        for partition in topic.partitions:
            self._uncount(partition)
        stored = (each for each in topic.partitions if each.revision != ABSENT)
        self.strays.update(partition_key(topic.id, each.index) for each in stored)
        self._collisions.pop(collision_key(name), None)
        return [topic]

    def _put_configs(self, key: str, entry: Entry | None) -> ConfigResource:
        _, kind, name = key.split("/", 2)
        resource = ConfigResource(ResourceType[kind], name)
        if entry is None:
            self.configs.pop(resource, None)
        else:
            self.configs[resource] = StoredConfigs(dict(entry.value["values"]), entry.revision)
        return resource

    def _put_single(self, key: str, entry: Entry | None) -> int | None:
        """Apply an entry of another type; return the ID of the node that the entry concerns."""
        if key.startswith(SCRAM_USERS):
            self.scram_users.put(key.removeprefix(SCRAM_USERS), entry)
        elif entry is not None and key == SCRAM_SECRET:
            self.scram_users.put_secret(entry)
        elif key.startswith(DELEGATION_TOKENS):
            self.delegation_tokens.put(key.removeprefix(DELEGATION_TOKENS), entry)
        elif key.startswith(ACLS):
            self._put_acl(key, entry)
        elif key.startswith(CLIENT_QUOTAS):
            self.client_quotas.put(key, entry)
        elif entry is not None and key == PRODUCER_IDS:
            self._next_producer_id = int(entry.value["next"])
            self._producer_ids_revision = entry.revision
        elif entry is not None and key == FEATURES:
            self.features, self.features_revision = dict(entry.value), entry.revision
        else:
            return self.registrations.put(key, entry)
        return None

    def _put_acl(self, key: str, entry: Entry | None) -> None:
        if entry is None:
            self.acls.drop(key)
        else:
            self.acls.put(key, read_acl(entry.value))

    def _notify_nodes(self, event: NodesChanged) -> None:
        for listener in self._nodes_listeners:
            listener(event)


def _topics_first(entries: Mapping[str, Entry | None]) -> list[tuple[str, Entry | None]]:
    """Order topics first, because partitions need their topic."""
    return sorted(entries.items(), key=lambda item: not item[0].startswith(TOPICS))


def _has_moved(change: PartitionChange) -> bool:
    """Return True if a placed partition got another leader, ISR or replicas."""
    before, after = change.before, change.after
    return bool(before.replicas) and (before.leader, before.replicas, before.isr) != (
        after.leader,
        after.replicas,
        after.isr,
    )
