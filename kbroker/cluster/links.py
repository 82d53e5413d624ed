"""How the nodes of one process reach each other, and how a link between two of them is cut."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable
from typing import NamedTuple
from weakref import WeakSet

import trio

from kbroker.client.endpoint import Endpoint


class Place(NamedTuple):
    """A node, and its address within this process."""

    node_id: int
    endpoint: Endpoint


class Links:
    """Connections between nodes that share a process; each link can be cut and healed.

    A cut ends the connections that go that way and refuses new ones. It hits what one node asks of
    the other (a follower its leader, a coordinator the leaders of partitions) and neither clients
    nor the metadata.
    """

    def __init__(self) -> None:
        self._places: dict[Endpoint, Place] = {}
        self._cut: set[tuple[int, int]] = set()
        self._streams: dict[tuple[int, int], WeakSet[trio.SocketStream]] = {}

    def settle(self, node_id: int, told: Endpoint, bound: Endpoint) -> None:
        """A node listens: others are told the address `told`, and reach it at `bound`."""
        self._places[told] = Place(node_id, bound)

    async def dial(self, node_id: int, endpoint: Endpoint) -> trio.abc.Stream:
        """Connect node `node_id` to another one: nothing that is advertised has to work from here.

        Raises OSError.
        """
        place = self._places.get(endpoint)
        if place is None:
            return await trio.open_tcp_stream(*endpoint)
        link = node_id, place.node_id
        if link in self._cut:
            raise OSError(f"the link from node {link[0]} to node {link[1]} is cut")
        stream = await trio.open_tcp_stream(*place.endpoint)
        self._streams.setdefault(link, WeakSet()).add(stream)
        return stream

    def cut(self, source: int, target: int) -> None:
        """Let node `source` reach node `target` no more."""
        self._cut.add((source, target))
        for stream in self._streams.pop((source, target), ()):
            with contextlib.suppress(OSError):  # it is closed already
                stream.socket.shutdown(socket.SHUT_RDWR)

    def heal(self, links: Iterable[tuple[int, int]]) -> None:
        """Let nodes reach each other again."""
        self._cut.difference_update(links)

    @property
    def cuts(self) -> list[tuple[int, int]]:
        """Who does not reach whom."""
        return sorted(self._cut)
