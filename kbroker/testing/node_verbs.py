"""What happens to the nodes of a cluster in production once in a while, on demand."""

from __future__ import annotations

from typing import NamedTuple

from kbroker.broker import Broker
from kbroker.cluster import Cluster
from kbroker.local_node import LocalNode


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


class NodeVerbs:
    """Stops, crashes and cuts between the nodes of a broker under test."""

    broker: Broker

    def did(self, deed: str) -> None:
        """Remember what the test does to everything, for `explain`."""
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
        self.did(f"stopped node {node_id}")
        await local.stop()

    async def crash_node(self, node_id: int) -> None:
        """Let a node end as a process that is killed: clients are reset, nothing more is written,
        and others take over when they have missed it for `broker.session.timeout.ms`.

        Raises ValueError.
        """
        local = self.broker.local_node(node_id)
        self.did(f"crashed node {node_id}")
        await local.crash()

    async def start_node(self, node_id: int) -> None:
        """Start a node that is down, on its port and with its data. Raises ValueError."""
        local = self.broker.local_node(node_id)
        self.did(f"started node {node_id}")
        await local.start()

    async def add_node(self, *, rack: str | None = None) -> int:
        """Start one more node; returns its id. It has no partitions until some are moved to it.

        Raises StorageError for a broker in a folder that has one node.
        """
        local = await self.broker.add_node(rack=rack)
        self.did(f"added node {local.id}")
        return local.id

    async def remove_node(self, node_id: int) -> None:
        """Move everything away from a node, stop it and forget it. Raises ValueError: it does not
        exist, or has what nobody else has and is down."""
        await self.broker.remove_node(node_id)
        self.did(f"removed node {node_id}")

    def cut_link(self, source: int, target: int, *, one_way: bool = False) -> None:
        """Let node `source` reach node `target` no more, and the other way round unless `one_way`.

        Followers ask their leaders: a follower that does not reach its leader falls behind. Clients
        and the metadata are not hit. Raises ValueError.
        """
        for node_id in (source, target):
            self.broker.local_node(node_id)
        if source == target:
            raise ValueError("a link is between two nodes")
        self.did(f"cut the link of nodes {source} and {target}")
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
        self.did("healed links")


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
