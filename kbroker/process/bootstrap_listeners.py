"""Bootstrap addresses of a multi-process server, which all of its nodes accept on.

The supervisor listens, and the node processes inherit its sockets. The processes accept from one
queue, so no connection waits for a process that is down or hangs.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from itertools import combinations, product

from kbroker.broker.local_node import shifted_listener
from kbroker.net.server import Bound, Listener, bind_all, close_all, listen_all

from .errors import StartFailed
from .node_info import Address


class BootstrapListeners:
    """Bootstrap sockets of all listeners in the supervisor.

    Args:
        bound: The bound sockets.
    """

    def __init__(self, bound: Bound) -> None:
        self._bound = bound

    @property
    def descriptors(self) -> dict[str, list[int]]:
        """File descriptors for node processes to inherit, by listener name."""
        found: dict[str, list[int]] = {}
        for listener, each in self._bound:
            found.setdefault(listener.name, []).append(each.fileno())
        return found

    @property
    def addresses(self) -> list[Address]:
        """Bootstrap address of each listener, with its actual port."""
        found: dict[str, Address] = {}
        for listener, each in self._bound:
            found.setdefault(listener.name, Address.of(listener, each.getsockname()))
        return list(found.values())

    def listen(self, backlog: int) -> None:
        """Let clients connect, and wait for a node that accepts them.

        Raises:
            CannotListen: Another process listens on an address.
        """
        listen_all(self._bound, backlog)

    def close(self) -> None:
        """Close the sockets of this process. The nodes close theirs when they stop."""
        close_all(self._bound)


async def bind_bootstrap_listeners(
    listeners: Sequence[Listener], node_ids: Sequence[int], first_id: int
) -> BootstrapListeners:
    """Bind the bootstrap addresses of a server.

    Args:
        listeners: Configured listeners.
        node_ids: IDs of the nodes, which use the ports after that of each listener.
        first_id: ID of the node that uses the first of these ports.

    Raises:
        CannotListen: An address cannot be bound, or a port is out of range.
        StartFailed: Two listeners need the same port.
    """
    _check_ports(listeners, [node_id - first_id + 1 for node_id in node_ids])
    return BootstrapListeners(await bind_all(listeners))


def listeners_of_nodes(
    listeners: Sequence[Listener], node_ids: Sequence[int], first_id: int
) -> list[Listener]:
    """Return the own listeners of all nodes; see `bind_bootstrap_listeners`."""
    distances = [node_id - first_id + 1 for node_id in node_ids]
    return [shifted_listener(each, distance) for distance in distances for each in listeners]


def inherited_sockets(
    descriptors: Mapping[str, Sequence[int]],
) -> dict[str, list[socket.socket]]:
    """Return the bootstrap sockets that a node process inherited, by listener name.

    Args:
        descriptors: File descriptors by listener name.
    """
    return {name: [inherited_socket(each) for each in fds] for name, fds in descriptors.items()}


def inherited_socket(descriptor: int) -> socket.socket:
    """Return the socket of an inherited file descriptor."""
    opened = socket.socket(fileno=descriptor)
    opened.set_inheritable(False)  # not for child processes of the node
    return opened


def _check_ports(listeners: Sequence[Listener], distances: Sequence[int]) -> None:
    """Check that all ports are in range and that no two listeners need the same one.

    Args:
        listeners: Configured listeners.
        distances: Distance of each node's ports from the configured ones.
    """
    used = [
        (each, [each, *(shifted_listener(each, distance) for distance in distances)])
        for each in listeners
    ]
    for (one, own), (other, others) in combinations(used, 2):
        for mine, theirs in product(own, others):
            if mine.overlaps(theirs):
                raise StartFailed(
                    f"listeners {one.address} and {other.address} both need port {mine.port}: with "
                    f"--processes, each node uses one of the next ports; set the ports at least "
                    f"{max(distances) + 1} apart"
                )
