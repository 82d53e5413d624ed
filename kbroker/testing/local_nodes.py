"""Node operations of a broker under test, for synchronous code."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from .node_operations import NodeView

if TYPE_CHECKING:
    from .async_broker import RunningBroker

T = TypeVar("T")


class LocalNodes:
    """Operations of a test on the nodes of its `LocalBroker`."""

    def run_in_broker(self, function: Callable[[RunningBroker], Awaitable[T]]) -> T:
        """Run an async function in the thread of the broker."""
        raise NotImplementedError

    def nodes(self) -> list[NodeView]:
        """Return the state of all nodes."""

        async def observe(broker: RunningBroker) -> list[NodeView]:
            return broker.nodes()

        return self.run_in_broker(observe)

    def stop_node(self, node_id: int) -> None:
        """Stop a node gracefully: it hands over its leaderships first.

        Args:
            node_id: Node ID.

        Raises:
            ValueError: The node does not exist.
        """
        self.run_in_broker(lambda broker: broker.stop_node(node_id))

    def crash_node(self, node_id: int) -> None:
        """Crash a node, as if its process were killed.

        Connections are reset and nothing more is written. Other nodes take over when
        `broker.session.timeout.ms` has expired.

        Args:
            node_id: Node ID.

        Raises:
            ValueError: The node does not exist.
        """
        self.run_in_broker(lambda broker: broker.crash_node(node_id))

    def start_node(self, node_id: int) -> None:
        """Start a stopped or crashed node, with its port and data.

        Args:
            node_id: Node ID.

        Raises:
            ValueError: The node does not exist.
        """
        self.run_in_broker(lambda broker: broker.start_node(node_id))

    def add_node(self, *, rack: str | None = None) -> int:
        """Start an additional node. It has no partitions until some are reassigned to it.

        Args:
            rack: Rack of the node; None for that of the other nodes.

        Returns:
            ID of the new node.

        Raises:
            StorageError: The data directory was created for one node.
        """
        return self.run_in_broker(lambda broker: broker.add_node(rack=rack))

    def remove_node(self, node_id: int) -> None:
        """Move all partitions away from a node, stop it and unregister it.

        Args:
            node_id: Node ID.

        Raises:
            ValueError: The node does not exist, or it is down and has the only replica of a
                partition.
        """
        self.run_in_broker(lambda broker: broker.remove_node(node_id))

    def cut_link(self, source: int, target: int, *, one_way: bool = False) -> None:
        """Partition the network between two nodes. Clients and metadata are not affected.

        Args:
            source: ID of the node that cannot reach `target`.
            target: ID of the node that cannot reach `source`, unless `one_way` is set.
            one_way: Let `target` reach `source`.

        Raises:
            ValueError: A node does not exist, or both are the same.
        """

        async def cut(broker: RunningBroker) -> None:
            broker.cut_link(source, target, one_way=one_way)

        self.run_in_broker(cut)

    def heal_links(self, source: int | None = None, target: int | None = None) -> None:
        """Undo `cut_link` between two nodes, or between all nodes.

        Args:
            source: ID of one node; None for all links.
            target: ID of the other node; None for all links.

        Raises:
            ValueError: Only one node is given.
        """

        async def heal(broker: RunningBroker) -> None:
            broker.heal_links(source, target)

        self.run_in_broker(heal)
