"""HTTP addresses of a multi-process server: one console, one metrics address, one schema registry.

The supervisor listens, and the node processes inherit its sockets. One node at a time, chosen by
the supervisor, accepts connections, because sessions of the console belong to one process. If that
process ends, the supervisor chooses another one, and waiting connections are not lost.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kbroker.client.endpoint import Endpoint
from kbroker.config import BrokerConfig
from kbroker.net.server import LOOPBACK
from kbroker.web.listening import InheritedHttp, listen_at

from .bootstrap_listeners import inherited_socket


class HttpDescriptors(NamedTuple):
    """File descriptors of the sockets in `InheritedHttp`, and the addresses of the other nodes."""

    own: Sequence[int]
    shared: Sequence[int]
    registry: Sequence[int]
    others: Mapping[int, Endpoint]

    @property
    def all(self) -> list[int]:
        """All file descriptors, for a node process to inherit."""
        return [*self.own, *self.shared, *self.registry]

    def sockets(self) -> InheritedHttp:
        """Return the sockets, in the node process that inherited them."""
        own, shared, registry = (
            [inherited_socket(each) for each in some]
            for some in (self.own, self.shared, self.registry)
        )
        return InheritedHttp(own, shared, registry, self.others)


class SharedHttp:
    """HTTP sockets in the supervisor. Call `close` at the end.

    Args:
        own: Sockets of each node's own address, by node ID.
        shared: Sockets of the server's console, metrics and probes.
        registry: Sockets of the server's schema registry.
        hosts: Configured hosts of `shared` and `registry`.
    """

    def __init__(
        self,
        own: Mapping[int, Sequence[socket.socket]],
        shared: Sequence[socket.socket],
        registry: Sequence[socket.socket],
        hosts: tuple[str, str],
    ) -> None:
        self._own = own
        self._shared = shared
        self._registry = registry
        self._hosts = hosts

    @property
    def http(self) -> Endpoint | None:
        """Address of the console, metrics and probes; None if there are none."""
        return _endpoint(self._hosts[0], self._shared)

    @property
    def registry(self) -> Endpoint | None:
        """Address of the schema registry; None if there is none."""
        return _endpoint(self._hosts[1], self._registry)

    def descriptors_of(self, node_id: int) -> HttpDescriptors:
        """Return what a node process inherits."""
        others = {
            other: Endpoint(*sockets[0].getsockname()[:2])
            for other, sockets in self._own.items()
            if other != node_id and sockets
        }
        return HttpDescriptors(
            [each.fileno() for each in self._own.get(node_id, ())],
            [each.fileno() for each in self._shared],
            [each.fileno() for each in self._registry],
            others,
        )

    def close(self) -> None:
        """Close the sockets of this process. The nodes close theirs when they stop."""
        for each in (
            *self._shared,
            *self._registry,
            *(own for some in self._own.values() for own in some),
        ):
            each.close()


async def listen_for_http(config: BrokerConfig, node_ids: Sequence[int]) -> SharedHttp:
    """Listen at the configured HTTP addresses, and at a free loopback port for each node.

    Args:
        config: Settings.
        node_ids: IDs of the nodes.

    Raises:
        CannotListen: An address cannot be used.
    """
    shared: list[socket.socket] = []
    registry: list[socket.socket] = []
    own: dict[int, list[socket.socket]] = {}
    opened = SharedHttp(own, shared, registry, (config.http_host, config.registry_host))
    try:
        if config.http_port >= 0:
            shared += await listen_at(Endpoint(config.http_host, config.http_port), "--http")
            for node_id in node_ids:
                own[node_id] = await listen_at(Endpoint(LOOPBACK[0], 0), "--http")
        if config.registry_port >= 0:
            address = Endpoint(config.registry_host, config.registry_port)
            registry += await listen_at(address, "--registry")
    except BaseException:
        opened.close()
        raise
    return opened


def _endpoint(host: str, sockets: Sequence[socket.socket]) -> Endpoint | None:
    return Endpoint(host, sockets[0].getsockname()[1]) if sockets else None
