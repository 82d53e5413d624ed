"""The truth that all nodes share: topics, ids, leaders, configs, producer-id blocks.

Reads are plain attribute access on a cache that is fed by the store's changes (`view`). Writes are
compare-and-set transactions on the store; the cache changes only when a change comes back
(`ClusterView.apply`), so a node that wrote and one that watched see the same.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import NamedTuple

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.schema import BrokerEpoch
from kbroker.runtime.ids import random_uuid
from kbroker.security.delegation import DelegationToken
from kbroker.storage.errors import StorageError

from .delegation_tokens import document_of
from .election import (
    after_isr_change,
    elect,
    elect_preferred,
    elect_unclean,
    leads_soundly,
    led_by,
    resign,
    without_leader,
)
from .features import INITIAL, check_levels
from .keys import (
    CONFIGS,
    DELEGATION_TOKENS,
    FEATURES,
    LEAVING,
    META,
    PRODUCER_IDS,
    SCRAM_SECRET,
    SCRAM_USERS,
    TOPICS,
    live_key,
    node_key,
    partition_key,
    ready_key,
)
from .model import (
    NO_LEADER,
    ConfigResource,
    Partition,
    Topic,
    check_topic_name,
    collision_key,
    placement,
    random_cluster_id,
)
from .placement import place
from .reassignment import begin, cancel, is_moving, target
from .registrations import KnownNode
from .scram_users import Credentials, new_secret, to_document
from .store import (
    ABSENT,
    OPERATIONS_MAX,
    Compacted,
    Document,
    Lease,
    MetadataStore,
    StoreTrouble,
    entry_at,
)
from .view import ClusterView, PartitionChange

logger = logging.getLogger(__name__)

METADATA_FORMAT = 2
"""What a store's entries are like: since 2 a topic says where its partitions were put."""
SCRAM_USERS_AT_ONCE = OPERATIONS_MAX - 1
"""Of one change: what is made with the first of them comes on top."""
MAX_NEW_PARTITIONS = 10_000
"""Of one request, as Kafka; bounds what it can make us allocate."""


async def check_cluster_id(store: MetadataStore, cluster_id: str) -> None:
    """Raise ValueError when a store belongs to another cluster; an empty one does to none."""
    meta = await entry_at(store, META)
    if meta is not None:
        _check_same(str(meta.value["cluster_id"]), cluster_id)


def _check_same(stored: str, cluster_id: str | None) -> None:
    if cluster_id is not None and cluster_id != stored:
        raise ValueError(
            f"the metadata belongs to cluster {stored}, the data directory to {cluster_id}; "
            "start the server on the directory that belongs to it"
        )


async def create_or_load_cluster(store: MetadataStore, cluster_id: str | None) -> str:
    """Return the cluster ID in a metadata store. If the store is empty, create a cluster there.

    Args:
        store: The metadata store.
        cluster_id: ID of a new cluster, or None for a random one.

    Raises:
        StorageError: The metadata is being migrated to another store, has a newer format, or has
            feature levels that this version does not support.
    """
    meta = await entry_at(store, META)
    if meta is None:
        if await entry_at(store, LEAVING) is not None:
            raise StorageError(
                "this cluster's metadata was being moved to a directory: finish it, with the same "
                "`kbroker cluster migrate-metadata --from` as before"
            )
        wanted = cluster_id or random_cluster_id()
        # Of several nodes that begin at once, one is first.
        await store.transact(
            {
                META: {"cluster_id": wanted, "format": METADATA_FORMAT},
                FEATURES: dict(INITIAL),
            },
            compares={META: ABSENT},
            cause="new cluster",
        )
        meta = await entry_at(store, META)
        assert meta is not None
    if meta.value.get("format", 1) > METADATA_FORMAT:
        raise StorageError("a newer kbroker made this cluster's metadata; start that one")
    features = await entry_at(store, FEATURES)
    if features is not None:
        check_levels(features.value)
    return str(meta.value["cluster_id"])


async def known_node(store: MetadataStore, node_id: int) -> KnownNode:
    """What a store remembers of a node, before anybody is a part of the cluster."""
    entry = await entry_at(store, node_key(node_id))
    return KnownNode() if entry is None else KnownNode.from_entry(entry)


class Leaving(NamedTuple):
    """A partition that a node can append nothing to; `eligible` when it has all that is committed."""

    topic: Topic
    partition: int
    eligible: bool


class IsrChange(NamedTuple):
    """Who is in sync from now on, as the leader of a partition finds.

    `partition` is its state as the leader knows it; `registrations` has the broker epoch of the last
    Fetch of each node that is added (KIP-903).
    """

    topic: Topic
    partition: Partition
    isr: Sequence[int]
    registrations: Mapping[int, BrokerEpoch]


class Cluster(ClusterView):
    """What is true for all nodes, and how it is changed; see the module's text."""

    def __init__(self, store: MetadataStore, cluster_id: str) -> None:
        super().__init__()
        self.id = cluster_id
        self._store = store

    @classmethod
    async def open(cls, store: MetadataStore, *, cluster_id: str | None = None) -> Cluster:
        """Load the cluster from its store; a store that is empty becomes a new cluster.

        `cluster_id` is the id that a node's data directory names. Raises ValueError when the store
        belongs to another cluster.
        """
        stored = await create_or_load_cluster(store, cluster_id)
        _check_same(stored, cluster_id)
        while True:
            cluster = cls(store, stored)
            try:
                await cluster._load()
            except Compacted:
                continue
            return cluster

    async def _load(self) -> None:
        revision, entries = await self._store.range("")
        self.fill(entries)
        self._store.watch(self.apply, after=revision)

    async def aclose(self) -> None:
        """Hear of no more changes; the store stays open."""
        self._store.unwatch(self.apply)

    @property
    def revision(self) -> int:
        """How many changes the metadata has seen."""
        return self._store.revision

    @property
    def store_trouble(self) -> StoreTrouble | None:
        """Problem that prevents changes of the metadata, None if this node knows none."""
        return self._store.trouble

    # -- changes

    async def transact(
        self,
        puts: Mapping[str, Document | None],
        *,
        compares: Mapping[str, int],
        cause: str,
        lease: Lease | None = None,
    ) -> int | None:
        """As `MetadataStore.transact`: returns the new revision, None when a compare failed."""
        return await self._store.transact(puts, compares=compares, cause=cause, lease=lease)

    async def grant(self, ttl_seconds: float, *, holder: str) -> Lease:
        """As `MetadataStore.grant`."""
        return await self._store.grant(ttl_seconds, holder=holder)

    async def create_topic(
        self,
        name: str,
        assignments: Sequence[Sequence[int]],
        configs: dict[str, str],
        *,
        cause: str,
    ) -> Topic:
        """Create a topic whose partition i lives on the nodes `assignments[i]`, leader first.

        Raises KafkaError with TOPIC_ALREADY_EXISTS or INVALID_TOPIC_EXCEPTION.
        """
        self.check_new_topic(name)
        topic = Topic(name=name, id=random_uuid(), configs=dict(configs))
        document = topic.to_document() | self._placing(topic, assignments)
        return await self._add_topic(topic, {TOPICS + name: document}, cause=cause)

    def _placing(self, topic: Topic, assignments: Sequence[Sequence[int]]) -> Document:
        """What becomes of a topic's document with further partitions.

        They have no entries of their own before something changes: so one put makes them, however
        many they are.
        """
        first, ready = len(topic.partitions), self.registrations.ready
        return {
            "partitions": first + len(assignments),
            "placed": [*topic.placed, placement(first, assignments, ready)],
        }

    async def import_topic(self, topic: Topic, *, cause: str) -> Topic:
        """Take in a topic as it is, with its id and its partitions. Raises TOPIC_ALREADY_EXISTS."""
        puts: dict[str, Document | None] = {TOPICS + topic.name: topic.to_document()}
        for partition in topic.partitions:
            puts[partition_key(topic.id, partition.index)] = partition.to_document()
        return await self._add_topic(topic, puts, cause=cause)

    async def _add_topic(self, topic: Topic, puts: dict[str, Document | None], cause: str) -> Topic:
        name = topic.name
        if not await self._transact(puts, compares={TOPICS + name: ABSENT}, cause=cause):
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        return self.topics[name]

    def check_new_topic(self, name: str) -> None:
        """Raise what creating a topic of this name would raise."""
        check_topic_name(name)
        if name in self.topics:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        other = self._collisions.get(collision_key(name))
        if other is not None:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"topic '{name}' collides with '{other}': '.' and '_' count as the same",
            )

    def place_partitions(
        self, count: int, replication_factor: int, topic: Topic | None = None
    ) -> Iterator[list[int]]:
        """Spread `count` new partitions over the nodes, of `topic` if there is one already.

        Nodes that are down are taken only when there are too few others, and do not lead. Raises
        INVALID_REPLICATION_FACTOR, at once; the nodes are chosen as they are asked for.
        """
        nodes = self.open_ids
        if not nodes:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                "all data directories are cordoned; take one out of cordoned.log.dirs",
            )
        down = set(nodes) - set(self.ready_ids)
        if not 1 <= replication_factor <= len(nodes):
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"replication factor {replication_factor} needs as many nodes, this cluster has "
                f"{len(nodes)}; replication.factor.clamp=true lowers it instead",
            )
        if len(down) == len(nodes):
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"none of the nodes {nodes} is ready; start one of them",
            )
        racks = {each: self.registrations.known[each].rack for each in nodes}
        if len(nodes) == 1:
            return place(racks, count, replication_factor)
        own = [each.replicas for each in topic.partitions] if topic else []
        return place(racks, count, replication_factor, load=self.load, last=down, topic=own)

    async def delete_topic(self, name: str, *, cause: str) -> None:
        """Delete a topic; its name is free again when this returns.

        Of one with very many partitions the controller removes the rest.
        """
        topic = self.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        stored = (each for each in topic.partitions if each.revision != ABSENT)
        puts: dict[str, Document | None] = {TOPICS + name: None}
        for partition in islice(stored, OPERATIONS_MAX - 1):
            puts[partition_key(topic.id, partition.index)] = None
        await self._transact(puts, compares={TOPICS + name: topic.revision}, cause=cause)

    async def sweep(self) -> None:
        """Remove what is left of topics that are deleted: of large ones, or by who did not end it.

        Their ids do not come back, so nothing is compared. Raises StorageError.
        """
        while self.strays:
            keys = [*islice(self.strays, OPERATIONS_MAX)]
            await self._transact(dict.fromkeys(keys), compares={}, cause="topics were deleted")
            self.strays.difference_update(keys)

    async def add_partitions(
        self, name: str, assignments: Sequence[Sequence[int]], *, cause: str
    ) -> None:
        """Add a partition to a topic for each entry of `assignments`."""
        topic = self.topics[name]
        document = topic.to_document() | self._placing(topic, assignments)
        puts: dict[str, Document | None] = {TOPICS + name: document}
        if not await self._transact(puts, compares={TOPICS + name: topic.revision}, cause=cause):
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)

    async def alter_topic_configs(
        self, topic: Topic, configs: dict[str, str], *, cause: str
    ) -> bool:
        """Replace a topic's own settings; False when the topic changed in between.

        Raises UNKNOWN_TOPIC_OR_PARTITION when it is gone, also when another one has its name.
        """
        if self.topics_by_id.get(topic.id) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        document = topic.to_document() | {"configs": configs}
        return await self._transact(
            {TOPICS + topic.name: document},
            compares={TOPICS + topic.name: topic.revision},
            cause=cause,
        )

    async def alter_configs(
        self, resource: ConfigResource, values: dict[str, str], *, cause: str
    ) -> bool:
        """Replace the own settings of a resource other than a topic; without any it is forgotten.

        Returns False when they changed in between.
        """
        key = _configs_key(resource)
        stored = self.configs.get(resource)
        return await self._transact(
            {key: {"values": values} if values else None},
            compares={key: stored.revision if stored else ABSENT},
            cause=cause,
        )

    async def put_scram_users(self, users: Mapping[str, Credentials], *, cause: str) -> bool:
        """Give SCRAM users these credentials in place of theirs; who gets none is forgotten.

        All of them or none: False when one of them changed in between. Parameters: `users` are
        `SCRAM_USERS_AT_ONCE` at most.
        """
        known = self.scram_users
        puts: dict[str, Document | None] = {}
        compares = {}
        for name, credentials in users.items():
            key = SCRAM_USERS + name
            puts[key] = to_document(credentials) if credentials else None
            compares[key] = known.revision(name)
        return await self._transact(puts, compares=compares, cause=cause)

    async def make_scram_secret(self) -> None:
        """Make the secret of the cluster for salts, unless there is one. Raises StorageError."""
        if not self.scram_users.secret:
            await self._transact(
                {SCRAM_SECRET: new_secret()},
                compares={SCRAM_SECRET: ABSENT},
                cause="users log in",
            )

    async def put_delegation_token(self, token: DelegationToken, *, cause: str) -> bool:
        """Make a delegation token, or put it in the place of itself; False when it changed in between."""
        key = DELEGATION_TOKENS + token.id
        revision = self.delegation_tokens.revision(token.id)
        return await self._transact(
            {key: document_of(token)}, compares={key: revision}, cause=cause
        )

    async def remove_delegation_tokens(self, revisions: Mapping[str, int], *, cause: str) -> bool:
        """Remove delegation tokens; False, and none is gone, when one of them changed in between.

        Parameters: `revisions` are those of their entries, by id, of `OPERATIONS_MAX` at most.
        """
        compares = {DELEGATION_TOKENS + each: known for each, known in revisions.items()}
        return await self._transact(dict.fromkeys(compares), compares=compares, cause=cause)

    async def elect_leaders(
        self, places: Sequence[tuple[str, int]], *, unclean: bool, cause: str
    ) -> list[KafkaError | None]:
        """Hand partitions to their preferred leaders; with `unclean` only those that have none at all.

        An unclean election may take a replica that is not in sync, and loses what only others have
        (KIP-460). All in one transaction, or, where something has changed, each in one of its own.

        Parameters: `places` are topics and partitions, `OPERATIONS_MAX` at most. Returns what is wrong
        with each of them: UNKNOWN_TOPIC_OR_PARTITION, ELECTION_NOT_NEEDED,
        PREFERRED_LEADER_NOT_AVAILABLE, ELIGIBLE_LEADERS_NOT_AVAILABLE, CONCURRENT_TRANSACTIONS, or that
        of the store.
        """
        changes = []
        outcomes: list[KafkaError | None] = []
        for name, index in places:
            try:
                changes.append(self._elected(name, index, unclean=unclean))
                outcomes.append(None)
            except KafkaError as error:
                outcomes.append(error.with_traceback(None))  # or it would hold this list
        if not changes:
            return outcomes
        try:
            if await self.put_partitions(changes, fences={}, cause=cause) is not None:
                return outcomes
        except KafkaError as error:
            refused = error.with_traceback(None)
            return [refused if each is None else each for each in outcomes]
        if len(places) == 1:
            return [_changed_meanwhile(*places[0])]
        alone = [await self.elect_leaders([each], unclean=unclean, cause=cause) for each in places]
        return [*chain.from_iterable(alone)]

    def _elected(self, name: str, index: int, *, unclean: bool) -> PartitionChange:
        topic, partition = self.existing(name, index)
        ready, live = self.registrations.ready, self.registrations.live_epochs
        preferred = partition.replicas[0]
        if leads_soundly(partition, live) and (unclean or partition.leader == preferred):
            raise KafkaError(
                ErrorCode.ELECTION_NOT_NEEDED, f"node {partition.leader} leads {name}-{index}"
            )
        if unclean:
            after = self._elect_any(topic, partition)
            if after is None:
                raise KafkaError(
                    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
                    f"no node of {name}-{index} runs; start one of {partition.replicas}",
                )
        else:
            after = elect_preferred(partition, ready=ready, live=live)
            if after is None:
                raise KafkaError(
                    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                    f"node {preferred} is down or not in sync with {name}-{index}",
                )
        return PartitionChange(topic, partition, after)

    def _elect_any(self, topic: Topic, partition: Partition) -> Partition | None:
        """The state with a leader that loses nothing if there is one, else with any."""
        ready, live = self.registrations.ready, self.registrations.live_epochs
        clean = elect(partition, ready=ready, live=live, min_in_sync=self.min_in_sync(topic))
        if clean is not None and clean.leader != NO_LEADER:
            return clean
        after = elect_unclean(partition, ready=ready)
        if after is not None:
            self.unclean_elections += 1
            logger.error(
                "unclean election: node %d leads %s-%d, and committed records that only %s may "
                "have are lost",
                after.leader,
                topic.name,
                partition.index,
                [*partition.isr, *partition.elr] or "other nodes",
            )
        return after

    async def hand_over(
        self, name: str, index: int, *, to: int | None = None, cause: str
    ) -> int | None:
        """Let another node that is in sync lead a partition; returns which one.

        Parameters: `to` None is the next one of its replicas; None is returned when no other one
        can lead. Raises KafkaError: UNKNOWN_TOPIC_OR_PARTITION, CONCURRENT_TRANSACTIONS.
        """
        topic, partition = self.existing(name, index)
        ready = self.registrations.ready
        able = [each for each in partition.replicas if each in partition.isr and each in ready]
        others = [each for each in able if each != partition.leader]
        if not others or (to is not None and to not in others):
            return None
        after = led_by(partition, others[0] if to is None else to, ready)
        await self._put_changed(topic, partition, after, cause=cause)
        return after.leader

    async def renew_leader(
        self, name: str, index: int, *, after_epoch: int = 0, cause: str
    ) -> None:
        """Let a partition's leader begin a new epoch, as one that lost it and was elected again.

        Args:
            name: Topic name.
            index: Partition number.
            after_epoch: The new leader epoch is above this one as well.
            cause: Why, for the log.

        Raises:
            KafkaError: UNKNOWN_TOPIC_OR_PARTITION.
        """
        topic, partition = self.existing(name, index)
        epoch = max(partition.leader_epoch, after_epoch) + 1
        after = replace(partition, leader_epoch=epoch)
        await self._put_changed(topic, partition, after, cause=cause)

    async def raise_leader_epochs(
        self, least: Mapping[tuple[uuid.UUID, int], int], *, cause: str
    ) -> None:
        """Let no leader epoch be below `least`, by topic id and partition: clients saw that one.

        For metadata that was put back to an earlier state.
        """
        puts: dict[str, Document | None] = {}
        for topic in self.topics.values():
            for partition in topic.partitions:
                epoch = least.get((topic.id, partition.index), 0)
                if epoch > partition.leader_epoch:
                    document = partition.to_document() | {"leader_epoch": epoch}
                    puts[partition_key(topic.id, partition.index)] = document
        if puts:
            await self._transact(puts, compares={}, cause=cause)

    async def reassign(
        self,
        name: str,
        index: int,
        nodes: Sequence[int],
        *,
        factor_may_change: bool,
        cause: str,
    ) -> None:
        """Begin to move a partition to `nodes`, the preferred leader first (KIP-455).

        The controller ends the move when all of them are in sync. Raises KafkaError:
        UNKNOWN_TOPIC_OR_PARTITION, INVALID_REPLICA_ASSIGNMENT, INVALID_REPLICATION_FACTOR.
        """
        topic, partition = self.existing(name, index)
        if not nodes or len(set(nodes)) != len(nodes):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{list(nodes)} does not name each node once; give at least one node",
            )
        if not set(nodes) <= set(self.node_ids):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"unknown node in {list(nodes)}; there are {self.node_ids}",
            )
        factor = len(target(partition))
        if len(nodes) != factor and not factor_may_change:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"{name}-{index} has {factor} replicas, not {len(nodes)}",
            )
        await self._move(topic, partition, begin(partition, nodes), cause=cause)

    async def cancel_reassignment(self, name: str, index: int, *, cause: str) -> None:
        """Let a partition stay where it was before its move began.

        Raises KafkaError: UNKNOWN_TOPIC_OR_PARTITION, NO_REASSIGNMENT_IN_PROGRESS, or
        INVALID_REPLICA_ASSIGNMENT when none of the nodes where it was is in sync.
        """
        topic, partition = self.existing(name, index)
        if not is_moving(partition):
            raise KafkaError(
                ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{name}-{index} is not being moved"
            )
        await self._move(topic, partition, cancel(partition), cause=cause)

    async def _move(self, topic: Topic, before: Partition, after: Partition, *, cause: str) -> None:
        if not after.isr and not after.elr:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"only {before.isr} have all records of {topic.name}-{before.index}: wait until "
                "one of the nodes that stay is in sync",
            )
        if after.leader not in (*after.replicas, NO_LEADER):
            elected = elect(
                after,
                ready=self.registrations.ready,
                live=self.registrations.live_epochs,
                min_in_sync=self.min_in_sync(topic),
            )
            after = without_leader(after) if elected is None else elected
        if after != before:
            await self._put_changed(topic, before, after, cause=cause)

    async def put_partitions(
        self, changes: Iterable[PartitionChange], *, fences: Mapping[str, int], cause: str
    ) -> int | None:
        """Store the next states of partitions, all or none; returns the new revision.

        Each is compared with the revision of the state before it, and `fences` with what gives the
        writer the right to it. None when a compare failed. Raises OutcomeUnknown.
        """
        puts: dict[str, Document | None] = {}
        compares = dict(fences)
        for topic, before, after in changes:
            key = partition_key(topic.id, before.index)
            puts[key] = after.to_document()
            compares[key] = before.revision
        return await self._store.transact(puts, compares=compares, cause=cause)

    async def _put_changed(
        self, topic: Topic, before: Partition, after: Partition, *, cause: str
    ) -> None:
        change = PartitionChange(topic, before, after)
        if await self.put_partitions([change], fences={}, cause=cause) is None:
            raise _changed_meanwhile(topic.name, before.index)

    async def unregister(self, node_id: int, *, cause: str) -> None:
        """Forget a node that is gone for good.

        Raises KafkaError: BROKER_ID_NOT_REGISTERED; INVALID_REQUEST when it runs, or when
        partitions are to be on it.
        """
        known = self.registrations.known.get(node_id)
        if known is None:
            raise KafkaError(
                ErrorCode.BROKER_ID_NOT_REGISTERED,
                f"there is no broker {node_id}; there are {self.node_ids}",
            )
        if node_id in self.nodes:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"broker {node_id} runs; stop it first")
        held = sum(
            node_id in each.replicas for topic in self.topics.values() for each in topic.partitions
        )
        if held:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{held} partitions have a replica on broker {node_id}; move them away with "
                f"`kbroker cluster drain {node_id}`",
            )
        await self._transact(
            {node_key(node_id): None},
            compares={node_key(node_id): known.revision, live_key(node_id): ABSENT},
            cause=cause,
        )

    async def change_isr(
        self,
        changes: Sequence[IsrChange],
        *,
        self_id: int,
        self_epoch: BrokerEpoch,
        cause: str,
    ) -> int | None:
        """Let the leader of partitions say who is in sync, all of it or nothing; returns the new
        revision.

        Parameters: `self_id` and `self_epoch` are the leader and its broker epoch. None when any of
        what the changes rest on is not so any more, or when an added node is not ready (KIP-841):
        look at the state that is now, and decide again. Raises OutcomeUnknown.
        """
        fences: dict[str, int] = {live_key(self_id): self_epoch}
        stored = []
        for topic, partition, isr, registrations in changes:
            if (partition.leader, partition.leader_registration) != (self_id, self_epoch):
                return None
            for node_id in set(isr) - set(partition.isr):
                revision = self.registrations.ready_revisions.get(node_id)
                epoch = registrations[node_id]
                if revision is None or fences.setdefault(live_key(node_id), epoch) != epoch:
                    return None
                fences[ready_key(node_id)] = revision
            after = after_isr_change(partition, isr, self.min_in_sync(topic))
            stored.append(PartitionChange(topic, partition, after))
        return await self.put_partitions(stored, fences=fences, cause=cause)

    async def resign(
        self, leavings: Sequence[Leaving], node_id: int, *, epoch: BrokerEpoch, cause: str
    ) -> Sequence[Leaving]:
        """Let others lead and be in sync in place of a node that can append nothing.

        All in one transaction, or, where something has changed, each in one of its own. `epoch` is
        the node's broker epoch. Returns those that are not settled because something changed in
        between; where there is nobody else nothing is to be done. Raises OutcomeUnknown.
        """
        registrations = self.registrations
        changes = []
        for topic, index, eligible in leavings:
            before = topic.partitions[index]
            after = resign(
                before,
                node_id,
                ready=registrations.ready,
                live=registrations.live_epochs,
                min_in_sync=self.min_in_sync(topic),
                eligible=eligible,
            )
            if after is not None:
                changes.append(PartitionChange(topic, before, after))
        fences = {live_key(node_id): epoch}
        if not changes:
            return []
        if await self.put_partitions(changes, fences=fences, cause=cause) is not None:
            return []
        if len(leavings) == 1:
            return leavings
        alone = [await self.resign([each], node_id, epoch=epoch, cause=cause) for each in leavings]
        return [*chain.from_iterable(alone)]

    async def finalize_features(self, levels: dict[str, int], *, revision: int, cause: str) -> bool:
        """Let the cluster run these features at these levels, all others not at all.

        Returns False when since `revision` they have changed, or a node has come that supports others.
        """
        running = {name: level for name, level in levels.items() if level}
        compares = {FEATURES: revision}
        return await self._transact({FEATURES: running}, compares=compares, cause=cause)

    @property
    def next_producer_id(self) -> int:
        """The first producer id that was never reserved."""
        return self._next_producer_id

    async def allocate_producer_ids(self, count: int) -> range:
        """Reserve `count` producer ids that nobody ever had or will have again."""
        while True:
            first = self._next_producer_id
            revision = await self._store.transact(
                {PRODUCER_IDS: {"next": first + count}},
                compares={PRODUCER_IDS: self._producer_ids_revision},
                cause="producer ids reserved",
            )
            if revision is not None:
                return range(first, first + count)

    async def skip_producer_ids(self, first: int) -> None:
        """Give out no producer id below `first`: others have those."""
        if first > self._next_producer_id:
            await self.allocate_producer_ids(first - self._next_producer_id)

    async def _transact(
        self, puts: dict[str, Document | None], *, compares: dict[str, int], cause: str
    ) -> bool:
        return await self._store.transact(puts, compares=compares, cause=cause) is not None


def _changed_meanwhile(name: str, index: int) -> KafkaError:
    return KafkaError(
        ErrorCode.CONCURRENT_TRANSACTIONS, f"{name}-{index} changed at the same time; try again"
    )


def _configs_key(resource: ConfigResource) -> str:
    return f"{CONFIGS}{resource.type.name}/{resource.name}"
