"""The cluster metadata and its changes: topics, leaders, settings, producer ID blocks.

Reads are attribute accesses on a cache, which the store's changes update (`view`). Writes are
compare-and-set transactions on the store. The cache changes only when the store notifies it
(`ClusterView.apply`), so the writing node and all other nodes see the same.
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
    StoreProblem,
    entry_at,
)
from .view import ClusterView, PartitionChange

logger = logging.getLogger(__name__)

# Format of the store's entries. Since format 2, a topic entry contains its partition placements.
METADATA_FORMAT = 2
# Maximum number of users per transaction. The first write also creates the secret for fake
# credentials.
SCRAM_USERS_AT_ONCE = OPERATIONS_MAX - 1
# Maximum number of new partitions per request, as in Kafka. It bounds the memory of a request.
MAX_NEW_PARTITIONS = 10_000


async def check_cluster_id(store: MetadataStore, cluster_id: str) -> None:
    """Raise ValueError if a store belongs to another cluster; an empty store matches."""
    meta = await entry_at(store, META)
    if meta is not None:
        _check_same(str(meta.value["cluster_id"]), cluster_id)


def _check_same(stored: str, cluster_id: str | None) -> None:
    if cluster_id is not None and cluster_id != stored:
        raise ValueError(
            f"the metadata belongs to cluster {stored}, the data directory to {cluster_id}; "
            "start the server with the matching directory"
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
                "this cluster's metadata is being migrated to a directory: finish the migration with the "
                "same `kbroker cluster migrate-metadata --from` as before"
            )
        wanted = cluster_id or random_cluster_id()
        # If several nodes start at once, the first transaction succeeds.
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
        raise StorageError(
            "the cluster metadata has a newer format than this kbroker supports; start a newer version"
        )
    features = await entry_at(store, FEATURES)
    if features is not None:
        check_levels(features.value)
    return str(meta.value["cluster_id"])


async def known_node(store: MetadataStore, node_id: int) -> KnownNode:
    """Return the stored data of a node, without opening the cluster."""
    entry = await entry_at(store, node_key(node_id))
    return KnownNode() if entry is None else KnownNode.from_entry(entry)


class Resignation(NamedTuple):
    """A partition whose log a node cannot append to.

    `eligible` is True if the log has all committed records.
    """

    topic: Topic
    partition: int
    eligible: bool


class IsrChange(NamedTuple):
    """A new ISR, as the leader of a partition determined it.

    `partition` is the state that the leader knows. `registrations` contains, for each added node,
    the broker epoch of its last Fetch (KIP-903).
    """

    topic: Topic
    partition: Partition
    isr: Sequence[int]
    registrations: Mapping[int, BrokerEpoch]


class Cluster(ClusterView):
    """The cluster metadata with all its changes; see the module docstring."""

    def __init__(self, store: MetadataStore, cluster_id: str) -> None:
        super().__init__()
        self.id = cluster_id
        self._store = store

    @classmethod
    async def open(cls, store: MetadataStore, *, cluster_id: str | None = None) -> Cluster:
        """Load the cluster from its store, or create it in an empty store.

        Args:
            store: The metadata store.
            cluster_id: Cluster ID in the node's log directories, if any.

        Raises:
            ValueError: The store belongs to another cluster.
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
        """Stop watching the store; the store stays open."""
        self._store.unwatch(self.apply)

    @property
    def revision(self) -> int:
        """Revision of the newest change that this node knows."""
        return self._store.revision

    @property
    def store_problem(self) -> StoreProblem | None:
        """Problem that prevents changes of the metadata, None if this node knows none."""
        return self._store.problem

    # -- changes

    async def transact(
        self,
        puts: Mapping[str, Document | None],
        *,
        compares: Mapping[str, int],
        cause: str,
        lease: Lease | None = None,
    ) -> int | None:
        """Run a transaction; see `MetadataStore.transact`."""
        return await self._store.transact(puts, compares=compares, cause=cause, lease=lease)

    async def grant(self, ttl_seconds: float, *, holder: str) -> Lease:
        """Grant a lease; see `MetadataStore.grant`."""
        return await self._store.grant(ttl_seconds, holder=holder)

    async def create_topic(
        self,
        name: str,
        assignments: Sequence[Sequence[int]],
        configs: dict[str, str],
        *,
        cause: str,
    ) -> Topic:
        """Create a topic.

        Args:
            name: Topic name.
            assignments: Replicas of each partition, the preferred leader first.
            configs: Topic settings.
            cause: Reason for the log.

        Raises:
            KafkaError: TOPIC_ALREADY_EXISTS or INVALID_TOPIC_EXCEPTION.
        """
        self.check_new_topic(name)
        topic = Topic(name=name, id=random_uuid(), configs=dict(configs))
        document = topic.to_document() | self._with_placement(topic, assignments)
        return await self._add_topic(topic, {TOPICS + name: document}, cause=cause)

    def _with_placement(self, topic: Topic, assignments: Sequence[Sequence[int]]) -> Document:
        """Return the changed fields of a topic entry when partitions are added.

        New partitions have no entries of their own until they change, so one put creates any number.
        """
        first, ready = len(topic.partitions), self.registrations.ready
        return {
            "partitions": first + len(assignments),
            "placed": [*topic.placed, placement(first, assignments, ready)],
        }

    async def import_topic(self, topic: Topic, *, cause: str) -> Topic:
        """Import a topic with its ID and partitions. Raises TOPIC_ALREADY_EXISTS."""
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
        """Raise KafkaError if a topic with this name cannot be created."""
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
        """Choose nodes for `count` new partitions, of `topic` if it exists already.

        Nodes that are down are chosen only if there are too few others, and never as leader. Nodes are
        chosen lazily, while the caller iterates.

        Raises:
            KafkaError: INVALID_REPLICATION_FACTOR, before the first iteration.
        """
        nodes = self.open_ids
        if not nodes:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                "all log directories are cordoned; remove one from cordoned.log.dirs",
            )
        down = set(nodes) - set(self.ready_ids)
        if not 1 <= replication_factor <= len(nodes):
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"replication factor {replication_factor} exceeds the number of nodes, {len(nodes)}; "
                "add nodes, or set replication.factor.clamp=true to lower it automatically",
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
        """Delete a topic; its name can be reused when this returns.

        If it has more partitions than fit into a transaction, the controller removes the rest.

        Raises:
            KafkaError: UNKNOWN_TOPIC_OR_PARTITION.
        """
        topic = deleted = self.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        # If the topic changes concurrently, delete the changed one.
        while deleted is not None and deleted.id == topic.id:
            stored = (each for each in deleted.partitions if each.revision != ABSENT)
            puts: dict[str, Document | None] = {TOPICS + name: None}
            for partition in islice(stored, OPERATIONS_MAX - 1):
                puts[partition_key(topic.id, partition.index)] = None
            if await self._transact(puts, compares={TOPICS + name: deleted.revision}, cause=cause):
                return
            deleted = self.topics.get(name)

    async def remove_strays(self) -> None:
        """Remove the remaining partition entries of deleted topics.

        Topic IDs are never reused, so no compares are needed. Raises StorageError.
        """
        while self.strays:
            keys = [*islice(self.strays, OPERATIONS_MAX)]
            # Before the transaction: an entry that is written again after it must stay listed.
            self.strays.difference_update(keys)
            try:
                await self._transact(dict.fromkeys(keys), compares={}, cause="topics were deleted")
            except StorageError:
                self.strays.update(keys)
                raise

    async def add_partitions(
        self, name: str, assignments: Sequence[Sequence[int]], *, cause: str
    ) -> None:
        """Add one partition per entry of `assignments` to a topic."""
        topic = self.topics[name]
        document = topic.to_document() | self._with_placement(topic, assignments)
        puts: dict[str, Document | None] = {TOPICS + name: document}
        if not await self._transact(puts, compares={TOPICS + name: topic.revision}, cause=cause):
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)

    async def alter_topic_configs(
        self, topic: Topic, configs: dict[str, str], *, cause: str
    ) -> bool:
        """Replace a topic's settings; return False if the topic changed concurrently.

        Raises:
            KafkaError: UNKNOWN_TOPIC_OR_PARTITION if the topic was deleted, even if its name was
                reused.
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
        """Replace the settings of a resource other than a topic; an empty dict removes its entry.

        Returns:
            False if the settings changed concurrently.
        """
        key = _configs_key(resource)
        stored = self.configs.get(resource)
        return await self._transact(
            {key: {"values": values} if values else None},
            compares={key: stored.revision if stored else ABSENT},
            cause=cause,
        )

    async def put_scram_users(self, users: Mapping[str, Credentials], *, cause: str) -> bool:
        """Replace the credentials of SCRAM users in one transaction; empty ones remove the user.

        Args:
            users: Credentials by name, at most `SCRAM_USERS_AT_ONCE`.
            cause: Reason for the log.

        Returns:
            False, without any change, if one of them changed concurrently.
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
        """Create the cluster's secret for fake SCRAM credentials if it is missing. Raises StorageError."""
        if not self.scram_users.secret:
            await self._transact(
                {SCRAM_SECRET: new_secret()},
                compares={SCRAM_SECRET: ABSENT},
                cause="first start with a SASL listener",
            )

    async def put_delegation_token(self, token: DelegationToken, *, cause: str) -> bool:
        """Create or update a delegation token; return False if the token changed concurrently."""
        key = DELEGATION_TOKENS + token.id
        revision = self.delegation_tokens.revision(token.id)
        return await self._transact(
            {key: document_of(token)}, compares={key: revision}, cause=cause
        )

    async def remove_delegation_tokens(self, revisions: Mapping[str, int], *, cause: str) -> bool:
        """Remove delegation tokens in one transaction.

        Args:
            revisions: Revisions of their entries by token ID, at most `OPERATIONS_MAX`.
            cause: Reason for the log.

        Returns:
            False, without any change, if one of them changed concurrently.
        """
        compares = {DELEGATION_TOKENS + each: known for each, known in revisions.items()}
        return await self._transact(dict.fromkeys(compares), compares=compares, cause=cause)

    async def elect_leaders(
        self, places: Sequence[tuple[str, int]], *, unclean: bool, cause: str
    ) -> list[KafkaError | None]:
        """Elect the preferred leaders of partitions, or any leader where there is none.

        The partitions change in one transaction. If it conflicts with another change, each partition
        gets its own transaction.

        Args:
            places: Topics and partitions, at most `OPERATIONS_MAX`.
            unclean: Elect only for partitions without a leader, and allow replicas out of sync. Records
                that only other replicas have are lost (KIP-460).
            cause: Reason for the log.

        Returns:
            For each partition None or its error: UNKNOWN_TOPIC_OR_PARTITION, ELECTION_NOT_NEEDED,
            PREFERRED_LEADER_NOT_AVAILABLE, ELIGIBLE_LEADERS_NOT_AVAILABLE, CONCURRENT_TRANSACTIONS
            or an error of the store.
        """
        changes = []
        outcomes: list[KafkaError | None] = []
        for name, index in places:
            try:
                changes.append(self._elect_one(name, index, unclean=unclean))
                outcomes.append(None)
            except KafkaError as error:
                outcomes.append(error.with_traceback(None))  # the traceback references this list
        if not changes:
            return outcomes
        try:
            if await self.put_partitions(changes, fences={}, cause=cause) is not None:
                return outcomes
        except KafkaError as error:
            failure = error.with_traceback(None)
            return [failure if each is None else each for each in outcomes]
        if len(places) == 1:
            return [_concurrent_change(*places[0])]
        alone = [await self.elect_leaders([each], unclean=unclean, cause=cause) for each in places]
        return [*chain.from_iterable(alone)]

    def _elect_one(self, name: str, index: int, *, unclean: bool) -> PartitionChange:
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
                    f"no replica of {name}-{index} runs; start one of the nodes {partition.replicas}",
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
        """Return the state after a clean election if one is possible, else after an unclean one."""
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
        """Move the leadership of a partition to another in-sync node.

        Args:
            name: Topic name.
            index: Partition number.
            to: New leader; None selects the next in-sync replica.
            cause: Reason for the log.

        Returns:
            The new leader, or None if no other node can lead.

        Raises:
            KafkaError: UNKNOWN_TOPIC_OR_PARTITION or CONCURRENT_TRANSACTIONS.
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
        """Start a new leader epoch with the same leader, as after its re-election.

        Args:
            name: Topic name.
            index: Partition number.
            after_epoch: The new leader epoch is also higher than this epoch.
            cause: Reason for the log.

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
        """Raise leader epochs to at least the epochs that clients have seen.

        Needed after the metadata was restored from an older copy.

        Args:
            least: Minimum leader epoch by topic ID and partition.
            cause: Reason for the log.
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
        """Start a reassignment of a partition to `nodes`, the preferred leader first (KIP-455).

        The controller completes it when all nodes are in sync.

        Raises:
            KafkaError: UNKNOWN_TOPIC_OR_PARTITION, INVALID_REPLICA_ASSIGNMENT or
                INVALID_REPLICATION_FACTOR.
        """
        topic, partition = self.existing(name, index)
        if not nodes or len(set(nodes)) != len(nodes):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"replicas {list(nodes)}: list each node once and at least one node",
            )
        if not set(nodes) <= set(self.node_ids):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"unknown node in replicas {list(nodes)} (valid: {self.node_ids})",
            )
        factor = len(target(partition))
        if len(nodes) != factor and not factor_may_change:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"{name}-{index} has {factor} replicas, the request {len(nodes)}; list {factor} nodes",
            )
        await self._move(topic, partition, begin(partition, nodes), cause=cause)

    async def cancel_reassignment(self, name: str, index: int, *, cause: str) -> None:
        """Cancel a reassignment and restore the original replicas.

        Raises:
            KafkaError: UNKNOWN_TOPIC_OR_PARTITION, NO_REASSIGNMENT_IN_PROGRESS, or
                INVALID_REPLICA_ASSIGNMENT if no original replica is in sync.
        """
        topic, partition = self.existing(name, index)
        if not is_moving(partition):
            raise KafkaError(
                ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{name}-{index} is not being reassigned"
            )
        await self._move(topic, partition, cancel(partition), cause=cause)

    async def _move(self, topic: Topic, before: Partition, after: Partition, *, cause: str) -> None:
        if not after.isr and not after.elr:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"only {before.isr} have all records of {topic.name}-{before.index}; wait until "
                "one of the remaining nodes is in sync",
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
        """Store new partition states in one transaction.

        Args:
            changes: Each `before` is compared with its store revision.
            fences: Further compares: revisions by key that authorize the writer.
            cause: Reason for the log.

        Returns:
            The new revision, or None if a compare failed.

        Raises:
            OutcomeUnknown: The transaction may or may not have been applied.
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
            raise _concurrent_change(topic.name, before.index)

    async def unregister(self, node_id: int, *, cause: str) -> None:
        """Remove a node from the cluster.

        Raises:
            KafkaError: BROKER_ID_NOT_REGISTERED, or INVALID_REQUEST if the node runs or has replicas.
        """
        while True:
            known = self._removable_node(node_id)
            if await self._transact(
                {node_key(node_id): None},
                compares={node_key(node_id): known.revision, live_key(node_id): ABSENT},
                cause=cause,
            ):
                return

    def _removable_node(self, node_id: int) -> KnownNode:
        """Return a node that can be removed. Raises the errors of `unregister`."""
        known = self.registrations.known.get(node_id)
        if known is None:
            raise KafkaError(
                ErrorCode.BROKER_ID_NOT_REGISTERED,
                f"broker {node_id} is not registered (valid: {self.node_ids})",
            )
        if node_id in self.nodes:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"broker {node_id} is running; stop it first"
            )
        held = sum(
            node_id in each.replicas for topic in self.topics.values() for each in topic.partitions
        )
        if held:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"broker {node_id} has {held} replicas; move them to other brokers with "
                f"`kbroker cluster drain {node_id}`",
            )
        return known

    async def change_isr(
        self,
        changes: Sequence[IsrChange],
        *,
        self_id: int,
        self_epoch: BrokerEpoch,
        cause: str,
    ) -> int | None:
        """Store ISR changes of partitions that a node leads, in one transaction.

        Args:
            changes: The new ISRs.
            self_id: The leader.
            self_epoch: Broker epoch of the leader.
            cause: Reason for the log.

        Returns:
            The new revision. None if the state of a partition changed, or if an added node is not ready
            (KIP-841): the caller must decide again on the current state.

        Raises:
            OutcomeUnknown: The transaction may or may not have been applied.
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
        self, resignations: Sequence[Resignation], node_id: int, *, epoch: BrokerEpoch, cause: str
    ) -> Sequence[Resignation]:
        """Replace a node that cannot append to its logs as leader and ISR member.

        The partitions change in one transaction. If it conflicts with another change, each partition
        gets its own transaction.

        Args:
            resignations: The partitions.
            node_id: The node.
            epoch: Broker epoch of the node.
            cause: Reason for the log.

        Returns:
            The partitions that changed concurrently and must be tried again. Partitions without
            another candidate are not among them.

        Raises:
            OutcomeUnknown: The transaction may or may not have been applied.
        """
        registrations = self.registrations
        changes = []
        for topic, index, eligible in resignations:
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
        if len(resignations) == 1:
            return resignations
        alone = [
            await self.resign([each], node_id, epoch=epoch, cause=cause) for each in resignations
        ]
        return [*chain.from_iterable(alone)]

    async def finalize_features(self, levels: dict[str, int], *, revision: int, cause: str) -> bool:
        """Finalize feature levels; all other features are disabled.

        Returns:
            False if the levels or the supported levels of a node have changed since `revision`.
        """
        running = {name: level for name, level in levels.items() if level}
        compares = {FEATURES: revision}
        return await self._transact({FEATURES: running}, compares=compares, cause=cause)

    @property
    def next_producer_id(self) -> int:
        """First producer ID that was never reserved."""
        return self._next_producer_id

    async def allocate_producer_ids(self, count: int) -> range:
        """Reserve `count` producer IDs, which are never reserved again."""
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
        """Raise the next producer ID to at least `first`."""
        if first > self._next_producer_id:
            await self.allocate_producer_ids(first - self._next_producer_id)

    async def _transact(
        self, puts: dict[str, Document | None], *, compares: dict[str, int], cause: str
    ) -> bool:
        return await self._store.transact(puts, compares=compares, cause=cause) is not None


def _concurrent_change(name: str, index: int) -> KafkaError:
    return KafkaError(
        ErrorCode.CONCURRENT_TRANSACTIONS, f"{name}-{index} changed concurrently; try again"
    )


def _configs_key(resource: ConfigResource) -> str:
    return f"{CONFIGS}{resource.type.name}/{resource.name}"
