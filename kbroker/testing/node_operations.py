"""Node failures on demand: stops, crashes and network partitions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

import trio

from kbroker.broker import Broker
from kbroker.broker.local_node import LocalNode
from kbroker.client.cluster import ClusterClient
from kbroker.client.errors import NotReachable
from kbroker.cluster import Cluster
from kbroker.protocol.errors import ErrorCode, KafkaError

T = TypeVar("T")

RETRY_TIMEOUT_SECONDS = 10
"""How long an election may take, with the time in which nobody misses the node that is gone."""
RETRY_BACKOFF_SECONDS = 0.02
GRACE_SECONDS = 5
RETRIABLE_ERRORS = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    }
)


class NodeView(NamedTuple):
    """A node as a test sees it.

    `state` is "running", "stopped" or "crashed"; `leads` counts partitions, `behind` those whose
    leader counts this node as not in sync.
    """

    id: int
    state: str
    address: str
    controller: bool
    leads: int
    behind: int


class NodeOperations:
    """Operations on the nodes of a broker under test: stop, crash, start, add, remove, partition."""

    broker: Broker
    _cluster: ClusterClient

    def record_action(self, action: str) -> None:
        """Keep an action of the test that concerns the whole cluster, for `explain`."""
        raise NotImplementedError

    def nodes(self) -> list[NodeView]:
        """All nodes, and what they do."""
        there = self.broker.nodes
        knows = next((each for each in there if each.is_running), there[0])
        return [_view(each, knows.node.cluster) for each in there]

    async def stop_node(self, node_id: int) -> None:
        """Stop a node in order: others take over what it leads, then it goes.

        Raises ValueError for a node that does not exist, with those that do.
        """
        local = self.broker.local_node(node_id)
        self.record_action(f"stopped node {node_id}")
        await local.stop(grace_seconds=GRACE_SECONDS)
        self._refresh_endpoints()

    async def crash_node(self, node_id: int) -> None:
        """Let a node end as a process that is killed: clients are reset, nothing more is written,
        and others take over when they have missed it for `broker.session.timeout.ms`.

        Raises ValueError.
        """
        local = self.broker.local_node(node_id)
        self.record_action(f"crashed node {node_id}")
        await local.crash()
        self._refresh_endpoints()

    async def start_node(self, node_id: int) -> None:
        """Start a node that is down, on its port and with its data. Raises ValueError."""
        local = self.broker.local_node(node_id)
        self.record_action(f"started node {node_id}")
        await local.start()
        self._refresh_endpoints()

    async def add_node(self, *, rack: str | None = None) -> int:
        """Start one more node; returns its id. It has no partitions until some are moved to it.

        Raises StorageError for a broker in a directory that has one node.
        """
        local = await self.broker.add_node(rack=rack)
        self.record_action(f"added node {local.id}")
        return local.id

    async def remove_node(self, node_id: int) -> None:
        """Move everything away from a node, stop it and forget it. Raises ValueError: it does not
        exist, or has what nobody else has and is down."""
        await self.broker.remove_node(node_id)
        self.record_action(f"removed node {node_id}")
        self._refresh_endpoints()

    def _refresh_endpoints(self) -> None:
        """Let the kit itself turn to the nodes that are there now."""
        there = [each for each in self.broker.nodes if each.is_running]
        self._cluster.reset_bootstrap([each.endpoint for each in there or self.broker.nodes])

    async def call_with_retries(self, call: Callable[[], Awaitable[T]]) -> T:
        """Do what a client does, and again while nodes take over from others.

        Raises what the last try did, after `RETRY_TIMEOUT_SECONDS`.
        """
        deadline = trio.current_time() + RETRY_TIMEOUT_SECONDS
        while True:
            try:
                return await call()
            except (NotReachable, KafkaError) as error:
                over = trio.current_time() >= deadline
                if over or len(self.broker.nodes) == 1 or not _is_retriable(error):
                    raise
            await trio.sleep(RETRY_BACKOFF_SECONDS)

    def cut_link(self, source: int, target: int, *, one_way: bool = False) -> None:
        """Let node `source` reach node `target` no more, and the other way round unless `one_way`.

        Followers ask their leaders: a follower that does not reach its leader falls behind. Clients
        and the metadata are not hit. Raises ValueError.
        """
        for node_id in (source, target):
            self.broker.local_node(node_id)
        if source == target:
            raise ValueError("a link is between two nodes")
        self.record_action(f"cut the link of nodes {source} and {target}")
        self.broker.links.cut(source, target)
        if not one_way:
            self.broker.links.cut(target, source)

    def heal_links(self, source: int | None = None, target: int | None = None) -> None:
        """Undo the cuts between two nodes; without any named, all. Raises ValueError."""
        links = self.broker.links
        if source is None and target is None:
            links.heal(links.cuts)
        elif source is not None and target is not None:
            links.heal([(source, target), (target, source)])
        else:
            raise ValueError("a link is between two nodes; name both, or none for all links")
        self.record_action("healed links")


def _is_retriable(error: Exception) -> bool:
    """Whether it is over when the nodes have agreed on who leads, and nothing was done."""
    return not isinstance(error, KafkaError) or error.code in RETRIABLE_ERRORS


def _view(local: LocalNode, cluster: Cluster) -> NodeView:
    partitions = [each for topic in cluster.topics.values() for each in topic.partitions]
    mine = [each for each in partitions if local.id in each.replicas]
    return NodeView(
        local.id,
        local.state.value,
        str(local.endpoint),
        local.is_running and cluster.controller_id == local.id,
        sum(each.leader == local.id for each in mine),
        sum(local.id not in each.isr for each in mine),
    )
