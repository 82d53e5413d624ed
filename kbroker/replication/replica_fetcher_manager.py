"""Starts and stops the fetchers of a node: one fetch loop per leader."""

from __future__ import annotations

from typing import NamedTuple

import trio

from kbroker.cluster import NO_LEADER, NodesChanged, Partition, Topic, TopicsChanged
from kbroker.cluster.node_context import NodeContext
from kbroker.cluster.peers import Peers
from kbroker.partitions.partitions import Partitions
from kbroker.protocol.errors import KafkaError

from .fetcher import Fetcher
from .follower_session import PartitionKey
from .quota import Quota, Side

# Logs that are opened in one event-loop iteration.
LOGS_PER_ITERATION = 50


class LeaderAndEpoch(NamedTuple):
    """A leader in one leader epoch."""

    leader: int
    epoch: int


class ReplicaFetcherManager:
    """The follower side of one node.

    It copies each hosted partition from the leader in the metadata, until this node leads the
    partition or no longer hosts it. The metadata cache calls `topics_changed` and
    `nodes_changed`. The owner starts `run`, and calls `stop` before it closes the logs.
    """

    def __init__(self, context: NodeContext, partitions: Partitions, peers: Peers) -> None:
        self._context = context
        self._partitions = partitions
        self._peers = peers
        self._fetchers: dict[int, Fetcher] = {}
        # Leader and leader epoch from which each partition is fetched.
        self._leaders_and_epochs: dict[PartitionKey, LeaderAndEpoch] = {}
        # Partitions with a new leader or leader epoch that is not processed yet.
        self._to_begin: dict[PartitionKey, Topic] = {}
        # Partitions whose logs could not be opened.
        self._unopened: dict[PartitionKey, Topic] = {}
        self._more = trio.Event()
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._ended.set()  # not started yet
        self._quota = Quota(context, Side.FOLLOWER)

    async def run(self) -> None:
        """Fetch until cancelled or stopped."""
        self._ended = trio.Event()
        try:
            with self._scope:
                await self._run()
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """Stop fetching; when this returns, no more records are appended."""
        self._scope.cancel()
        await self._ended.wait()

    async def _run(self) -> None:
        for topic in self._context.cluster.topics.values():
            for partition in topic.partitions:
                self._update_leader(topic, partition)
        async with trio.open_nursery() as nursery:
            while True:
                self._more = trio.Event()
                await self._begin_all(nursery)
                await self._more.wait()

    def is_leader_unreachable(self, node_id: int) -> bool:
        """Return True if this node has just lost its fetch connection to a leader."""
        fetcher = self._fetchers.get(node_id)
        return fetcher is not None and fetcher.is_leader_unreachable

    def pause_read_only(self) -> None:
        """Stop fetching partitions whose logs cannot be appended to, and notify their leaders."""
        for fetcher in self._fetchers.values():
            fetcher.pause_read_only()

    # -- metadata changes

    def topics_changed(self, event: TopicsChanged) -> None:
        """Fetch from the current leaders."""
        unopened, self._unopened = self._unopened, {}
        for (_, index), topic in unopened.items():
            self._update_leader(topic, topic.partitions[index])
        for change in event.partitions:
            self._update_leader(change.topic, change.after)
        for topic in event.deleted:
            for partition in topic.partitions:
                self._stop((topic.id, partition.index))

    def nodes_changed(self, event: NodesChanged) -> None:
        """Wake the fetchers of changed nodes, which may be reachable again or have moved."""
        for node_id in event.node_ids & self._fetchers.keys():
            self._fetchers[node_id].wake()

    def _update_leader(self, topic: Topic, partition: Partition) -> None:
        key = (topic.id, partition.index)
        leader_and_epoch = LeaderAndEpoch(self._leader_to_copy(partition), partition.leader_epoch)
        known = self._leaders_and_epochs.get(key)
        if known is not None and known.leader != leader_and_epoch.leader:
            self._stop(key)
        if leader_and_epoch.leader == NO_LEADER:
            self._to_begin.pop(key, None)
        elif leader_and_epoch != known:
            self._to_begin[key] = topic
            self._more.set()

    def _leader_to_copy(self, partition: Partition) -> int:
        me = self._context.node_id
        if me not in partition.replicas or partition.leader == me:
            return NO_LEADER
        return partition.leader

    def _stop(self, key: PartitionKey) -> None:
        self._to_begin.pop(key, None)
        self._unopened.pop(key, None)
        leader_and_epoch = self._leaders_and_epochs.pop(key, None)
        if leader_and_epoch is not None:
            self._fetchers[leader_and_epoch.leader].stop(key)

    # -- starting fetches

    async def _begin_all(self, nursery: trio.Nursery) -> None:
        opened = 0
        while self._to_begin:
            key = next(iter(self._to_begin))
            self._begin(key, self._to_begin.pop(key), nursery)
            opened += 1
            if not opened % LOGS_PER_ITERATION:
                await trio.lowlevel.checkpoint()

    def _begin(self, key: PartitionKey, topic: Topic, nursery: trio.Nursery) -> None:
        partition = topic.partitions[key[1]]
        try:
            replica = self._partitions.hosted(topic, partition.index)
        except KafkaError:  # `Partitions` logs the reason
            self._unopened[key] = topic
            return
        leader = partition.leader
        self._leaders_and_epochs[key] = LeaderAndEpoch(leader, partition.leader_epoch)
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            fetcher = self._fetchers[leader] = Fetcher(
                self._context, self._partitions, self._peers, leader, self._quota
            )
            nursery.start_soon(fetcher.run)
        fetcher.follow(replica, partition.leader_epoch)
