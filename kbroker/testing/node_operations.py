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

# Maximum seconds of retries: an election, including the session timeout of a crashed node.
RETRY_TIMEOUT_SECONDS = 10
RETRY_BACKOFF_SECONDS = 0.02
# Maximum seconds of each phase of a graceful stop.
GRACE_SECONDS = 5
# Errors that end when the nodes agree on leaders and coordinators.
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
    """State of a node.

    Attributes:
        id: Node ID.
        state: "running", "stopped" or "crashed".
        address: HOST:PORT.
        controller: True if the node is the controller.
        leads: Number of partitions that the node leads.
        behind: Number of partitions of which the node has a replica that is not in the ISR.
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
        """Record an action of the test that concerns the whole cluster, for `explain`."""
        raise NotImplementedError

    def nodes(self) -> list[NodeView]:
        """Return the state of all nodes."""
        nodes = self.broker.nodes
        observer = next((each for each in nodes if each.is_running), nodes[0])
        return [_view_node(each, observer.node.cluster) for each in nodes]

    async def stop_node(self, node_id: int) -> None:
        """Stop a node gracefully: it hands over its leaderships first.

        Raises:
            ValueError: The node does not exist; the message lists the nodes.
        """
        local = self.broker.local_node(node_id)
        self.record_action(f"stopped node {node_id}")
        await local.stop(grace_seconds=GRACE_SECONDS)
        self._refresh_endpoints()

    async def crash_node(self, node_id: int) -> None:
        """Crash a node, as if its process were killed.

        Connections are reset and nothing more is written. Other nodes take over when
        `broker.session.timeout.ms` has expired.

        Raises:
            ValueError: The node does not exist; the message lists the nodes.
        """
        local = self.broker.local_node(node_id)
        self.record_action(f"crashed node {node_id}")
        await local.crash()
        self._refresh_endpoints()

    async def start_node(self, node_id: int) -> None:
        """Start a stopped or crashed node, with its port and data.

        Raises:
            ValueError: The node does not exist; the message lists the nodes.
        """
        local = self.broker.local_node(node_id)
        self.record_action(f"started node {node_id}")
        await local.start()
        self._refresh_endpoints()

    async def add_node(self, *, rack: str | None = None) -> int:
        """Start an additional node, and return its ID.

        The node has no partitions until some are reassigned to it.

        Raises:
            StorageError: The data directory was created for one node.
        """
        local = await self.broker.add_node(rack=rack)
        self.record_action(f"added node {local.id}")
        return local.id

    async def remove_node(self, node_id: int) -> None:
        """Move all partitions away from a node, stop it and unregister it.

        Raises:
            ValueError: The node does not exist, or it is down and has the only replica of a
                partition.
        """
        await self.broker.remove_node(node_id)
        self.record_action(f"removed node {node_id}")
        self._refresh_endpoints()

    def _refresh_endpoints(self) -> None:
        """Use the running nodes as bootstrap servers of the kit's client."""
        nodes = [each for each in self.broker.nodes if each.is_running]
        self._cluster.reset_bootstrap([each.endpoint for each in nodes or self.broker.nodes])

    async def call_with_retries(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call a function, and retry it while other nodes take over.

        Raises:
            Exception: The exception of the last call, after `RETRY_TIMEOUT_SECONDS`.
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
        """Partition the network between two nodes.

        Followers fetch from leaders, so a follower that cannot reach its leader falls behind.
        Clients and metadata are not affected.

        Args:
            source: ID of the node that cannot reach `target`.
            target: ID of the node that cannot reach `source`, unless `one_way` is set.
            one_way: Let `target` reach `source`.

        Raises:
            ValueError: A node does not exist, or both are the same.
        """
        for node_id in (source, target):
            self.broker.local_node(node_id)
        if source == target:
            raise ValueError(f"cannot cut a link: both nodes are {source}; name two nodes")
        self.record_action(f"cut the link of nodes {source} and {target}")
        self.broker.links.cut(source, target)
        if not one_way:
            self.broker.links.cut(target, source)

    def heal_links(self, source: int | None = None, target: int | None = None) -> None:
        """Undo `cut_link` between two nodes, or between all nodes.

        Raises:
            ValueError: Only one node is given.
        """
        links = self.broker.links
        if source is None and target is None:
            links.heal(links.cuts)
        elif source is not None and target is not None:
            links.heal([(source, target), (target, source)])
        else:
            raise ValueError(
                "cannot heal a link of one node; name both nodes, or none for all links"
            )
        self.record_action("healed links")


def _is_retriable(error: Exception) -> bool:
    """Return True if the error ends after an election, and the request had no effect."""
    return not isinstance(error, KafkaError) or error.code in RETRIABLE_ERRORS


def _view_node(local: LocalNode, cluster: Cluster) -> NodeView:
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
