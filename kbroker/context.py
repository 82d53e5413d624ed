"""What a handler knows beside the request: the node, and who asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .endpoint import Endpoint
    from .node import Node
    from .registry import Api


class Refused(Exception):
    """The client sent what is answered by closing the connection; the message says what."""


class Peer:
    """The client on the other end of a connection, and the address that it dialled.

    `advertised` is the fixed address of the listener, None where the client is told the address
    that it came in on. `software` is what ApiVersions named (KIP-511).
    """

    __slots__ = ("advertised", "host", "listener", "local", "software")

    def __init__(
        self, host: str, local: Endpoint, listener: str, advertised: Endpoint | None
    ) -> None:
        self.host = host
        self.local = local
        self.listener = listener
        self.advertised = advertised
        self.software = ""


class Context:
    """One request's surroundings.

    `version` is that of the request and of its response.
    """

    __slots__ = ("apis", "client_id", "node", "peer", "version")

    def __init__(
        self, node: Node, apis: Mapping[int, Api], peer: Peer, client_id: str | None, version: int
    ) -> None:
        self.node = node
        self.apis = apis
        self.peer = peer
        self.client_id = client_id
        self.version = version

    def endpoint(self) -> Endpoint:
        """The address of this node for this client: what it dialled unless one is configured."""
        return self.peer.advertised or self.peer.local

    def endpoint_of(self, node_id: int) -> Endpoint | None:
        """The address of a node for this client; None when no such node runs."""
        return self.endpoint() if node_id == self.node.id else None
