"""The nodes of a broker under test, without async."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from .node_operations import NodeView

if TYPE_CHECKING:
    from .async_broker import RunningBroker

T = TypeVar("T")


class LocalNodes:
    """What a test does to the nodes of its `LocalBroker`; see `NodeOperations` for each."""

    def run_in_broker(self, function: Callable[[RunningBroker], Awaitable[T]]) -> T:
        """Run an async function in the broker's thread, with the broker."""
        raise NotImplementedError

    def nodes(self) -> list[NodeView]:
        """All nodes, and what they do."""

        async def look(broker: RunningBroker) -> list[NodeView]:
            return broker.nodes()

        return self.run_in_broker(look)

    def stop_node(self, node_id: int) -> None:
        """Stop a node in order; others take over what it leads, then it goes. Raises ValueError."""
        self.run_in_broker(lambda broker: broker.stop_node(node_id))

    def crash_node(self, node_id: int) -> None:
        """Let a node end as a process that is killed; others take over when they miss it.

        Raises ValueError.
        """
        self.run_in_broker(lambda broker: broker.crash_node(node_id))

    def start_node(self, node_id: int) -> None:
        """Start a node that is down, on its port and with its data. Raises ValueError."""
        self.run_in_broker(lambda broker: broker.start_node(node_id))

    def add_node(self, *, rack: str | None = None) -> int:
        """Start one more node; returns its id. It has no partitions until some are moved to it.

        Raises StorageError for a broker in a directory that has one node.
        """
        return self.run_in_broker(lambda broker: broker.add_node(rack=rack))

    def remove_node(self, node_id: int) -> None:
        """Move everything away from a node, stop it and forget it. Raises ValueError: it does not
        exist, or has what nobody else has and is down."""
        self.run_in_broker(lambda broker: broker.remove_node(node_id))

    def cut_link(self, source: int, target: int, *, one_way: bool = False) -> None:
        """Let two nodes reach each other no more; with `one_way` the first one the second.

        Raises ValueError.
        """

        async def cut(broker: RunningBroker) -> None:
            broker.cut_link(source, target, one_way=one_way)

        self.run_in_broker(cut)

    def heal_links(self, source: int | None = None, target: int | None = None) -> None:
        """Undo the cuts between two nodes; without any named, all. Raises ValueError."""

        async def heal(broker: RunningBroker) -> None:
            broker.heal_links(source, target)

        self.run_in_broker(heal)
