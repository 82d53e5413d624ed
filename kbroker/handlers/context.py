"""What a handler knows beside the request: the node, and who asks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from kbroker.coordinator import ClientInfo

if TYPE_CHECKING:
    from kbroker.client.endpoint import Endpoint
    from kbroker.cluster import Registration
    from kbroker.node.node import Node
    from kbroker.runtime.slices import Turn
    from kbroker.security.login import Login

    from .registry import Api

EVERY_INTERFACE = ("0.0.0.0", "::")
"""Addresses of nodes that are reached wherever this one is."""


class Refused(Exception):
    """The client sent what is answered by closing the connection; the message says what."""


class Peer:
    """The client on the other end of a connection, and the address that it dialled.

    `advertised` is the fixed address of the listener, None where the client is told the address
    that it came in on. `software` is what ApiVersions named (KIP-511), `login` what it has shown of
    itself where it has to log in. `is_gone` is true once the connection has ended.
    """

    __slots__ = ("advertised", "host", "is_gone", "listener", "local", "login", "software")

    def __init__(
        self,
        host: str,
        local: Endpoint,
        listener: str,
        advertised: Endpoint | None,
        login: Login | None = None,
    ) -> None:
        self.host = host
        self.local = local
        self.listener = listener
        self.advertised = advertised
        self.login = login
        self.software = ""
        self.is_gone = False


class Context:
    """One request's surroundings.

    `version` is that of the request and of its response, `rows` how many array elements the request
    has. Who goes over what the request names pauses with `turn` on the way, because others want
    their turn as well.
    """

    __slots__ = ("apis", "client_id", "node", "peer", "rows", "turn", "version")

    def __init__(
        self,
        node: Node,
        apis: Mapping[int, Api],
        peer: Peer,
        client_id: str | None,
        version: int,
        turn: Turn,
        rows: int,
    ) -> None:
        self.node = node
        self.apis = apis
        self.peer = peer
        self.client_id = client_id
        self.version = version
        self.turn = turn
        self.rows = rows

    def client_info(self) -> ClientInfo:
        """Who asks, as groups show their members."""
        return ClientInfo(self.client_id or "", "/" + self.peer.host)

    def endpoint(self) -> Endpoint:
        """The address of this node for this client: what it dialled unless one is configured."""
        return self.peer.advertised or self.peer.local

    def endpoint_of(self, node_id: int) -> Endpoint | None:
        """The address of a node for this client; None when no such node runs."""
        if node_id == self.node.id:
            return self.endpoint()
        registration = self.node.cluster.registration(node_id)
        return None if registration is None else self._endpoint_of(registration)

    def brokers(self, *, fenced: bool = False) -> Iterator[tuple[Registration, Endpoint]]:
        """The nodes that this client can turn to, and their addresses for it.

        Parameters: `fenced` adds those that run but are not ready.
        """
        nodes = self.node.cluster.nodes
        for node_id in sorted(nodes):
            if fenced or nodes[node_id].ready:
                endpoint = self.endpoint_of(node_id)
                if endpoint is not None:
                    yield nodes[node_id], endpoint

    def _endpoint_of(self, registration: Registration) -> Endpoint | None:
        """The address of another node on the listener by which this client came in."""
        endpoint = registration.listeners.get(self.peer.listener)
        if endpoint is not None and endpoint.host in EVERY_INTERFACE:
            return endpoint._replace(host=self.peer.local.host)
        return endpoint
