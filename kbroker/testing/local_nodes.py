"""The nodes of a broker under test, without async."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from .blocking import blocking
from .node_verbs import NodeVerbs

if TYPE_CHECKING:
    from .async_broker import RunningBroker

T = TypeVar("T")


def in_broker(handle: LocalNodes, call: Callable[[RunningBroker], Awaitable[T]]) -> T:
    """Call a verb, which may bring the broker to the point of a crash: that is an error then."""
    return handle.run_in_broker(call)


class LocalNodes:
    """What a test does to the nodes of its `LocalBroker`: the verbs of `NodeVerbs`, without async."""

    def run_in_broker(self, function: Callable[[RunningBroker], Awaitable[T]]) -> T:
        """Run an async function in the broker's thread, with the broker."""
        raise NotImplementedError

    nodes = blocking(NodeVerbs.nodes, in_broker)
    stop_node = blocking(NodeVerbs.stop_node, in_broker)
    crash_node = blocking(NodeVerbs.crash_node, in_broker)
    start_node = blocking(NodeVerbs.start_node, in_broker)
    add_node = blocking(NodeVerbs.add_node, in_broker)
    remove_node = blocking(NodeVerbs.remove_node, in_broker)
    cut_link = blocking(NodeVerbs.cut_link, in_broker)
    heal_links = blocking(NodeVerbs.heal_links, in_broker)
