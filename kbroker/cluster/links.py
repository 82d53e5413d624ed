"""Connections between the nodes of one process, and simulated network partitions."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable
from typing import NamedTuple
from weakref import WeakSet

import trio

from kbroker.client.endpoint import Endpoint


class NodeAddress(NamedTuple):
    """A node and its address within this process."""

    node_id: int
    endpoint: Endpoint


class Links:
    """Connections between nodes of one process; each direction can be cut and healed.

    A cut closes the connections in that direction and rejects new ones. It affects requests between
    nodes (replication, requests of coordinators to leaders), but neither clients nor metadata.
    """

    def __init__(self) -> None:
        self._addresses: dict[Endpoint, NodeAddress] = {}
        self._cut: set[tuple[int, int]] = set()
        self._streams: dict[tuple[int, int], WeakSet[trio.SocketStream]] = {}

    def register(self, node_id: int, advertised: Endpoint, bound: Endpoint) -> None:
        """Map the advertised endpoint of a node to the endpoint at which it listens."""
        self._addresses[advertised] = NodeAddress(node_id, bound)

    async def dial(self, node_id: int, endpoint: Endpoint) -> trio.abc.Stream:
        """Connect node `node_id` to another node.

        Nodes of this process are reached at their bound endpoint, because the advertised one may be
        unreachable from here.

        Raises:
            OSError: The link is cut, or the connection failed.
        """
        address = self._addresses.get(endpoint)
        if address is None:
            return await trio.open_tcp_stream(*endpoint)
        link = node_id, address.node_id
        if link in self._cut:
            raise OSError(f"the link from node {link[0]} to node {link[1]} is cut")
        stream = await trio.open_tcp_stream(*address.endpoint)
        self._streams.setdefault(link, WeakSet()).add(stream)
        return stream

    def cut(self, source: int, target: int) -> None:
        """Cut the link from node `source` to node `target`."""
        self._cut.add((source, target))
        for stream in self._streams.pop((source, target), ()):
            with contextlib.suppress(OSError):  # already closed
                stream.socket.shutdown(socket.SHUT_RDWR)

    def heal(self, links: Iterable[tuple[int, int]]) -> None:
        """Heal links."""
        self._cut.difference_update(links)

    @property
    def cuts(self) -> list[tuple[int, int]]:
        """The cut links, as pairs of source and target node."""
        return sorted(self._cut)
