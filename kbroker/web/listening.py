"""Listening sockets of HTTP servers, for a process or for the child processes that inherit them."""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import trio

from kbroker.client.endpoint import Endpoint
from kbroker.net.server import CannotListen, bind_host

# Maximum number of connections that wait to be accepted.
BACKLOG = 1024


@dataclass(frozen=True, slots=True)
class InheritedHttp:
    """HTTP sockets that a node process of a multi-process server inherited.

    Attributes:
        own: Sockets of the node's own console, metrics and probes.
        shared: Sockets of the server's console, metrics and probes.
        registry: Sockets of the server's schema registry.
        others: Own address of each other node, by node ID.
        chosen: Set when this node is to accept connections on `shared` and `registry`.
    """

    own: Sequence[socket.socket]
    shared: Sequence[socket.socket]
    registry: Sequence[socket.socket]
    others: Mapping[int, Endpoint]
    chosen: trio.Event = field(default_factory=trio.Event)


async def listen_at(endpoint: Endpoint, flag: str) -> list[socket.socket]:
    """Listen at an address; clients that connect wait to be accepted.

    Args:
        endpoint: Address to bind; port 0 lets the system choose.
        flag: Prefix of the command-line flags for the address, for error messages.

    Returns:
        One socket per IPv4 or IPv6 address.

    Raises:
        CannotListen: The address cannot be used.
    """
    host, port = endpoint
    opened: list[socket.socket] = []
    try:
        opened = await bind_host(host, port, named=bool(port))
        for each in opened:
            each.listen(BACKLOG)
    except OSError as error:
        for each in opened:
            each.close()
        raise _cannot_listen(endpoint, error, flag) from None
    return opened


def _cannot_listen(endpoint: Endpoint, error: OSError, flag: str) -> CannotListen:
    if error.errno == errno.EADDRINUSE:
        return CannotListen(
            f"port {endpoint.port} on {endpoint.host} is in use; stop the process that uses it, or use "
            f"{flag}-port 0 to let the system choose a port"
        )
    reason = error.strerror or str(error)
    return CannotListen(
        f"cannot serve HTTP at {endpoint} ({reason}); set another address with {flag}-host and "
        f"{flag}-port"
    )
