"""HTTP servers of all nodes of a process, with the same request rules."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence

import trio

from kbroker.client.endpoint import PORT_MAX, Endpoint
from kbroker.config import BrokerConfig
from kbroker.net.server import CannotListen

from .guard import App, Guard, Rules, error_body
from .http_server import HttpServer, Limits


class NodeServers:
    """One HTTP server per node; they can be bound again after `close`.

    Args:
        config: Configuration of the first node.
        first: Address of the first node; further nodes use the following ports.
        flag: Prefix of the command-line flags for the address, for error messages.
        is_read_only: Accept only GET and HEAD.
        error_body: See `Rules`.
        inherited: Listening sockets of the only node, instead of binding the address.
        may_accept: See `HttpServer`.

    Attributes:
        wrap_app: Wraps each application from the next `bind` on.
    """

    def __init__(
        self,
        config: BrokerConfig,
        first: Endpoint,
        *,
        flag: str,
        is_read_only: bool,
        error_body: Callable[[int, str], bytes] = error_body,
        inherited: Sequence[socket.socket] = (),
        may_accept: trio.Event | None = None,
    ) -> None:
        self.wrap_app: Callable[[App], App] = lambda app: app
        self._first = first
        self._first_id = config.node_id
        self._flag = flag
        self._limits = Limits(config.http_max_connections, config.http_request_timeout_ms / 1000)
        self._rules = Rules.of(
            config.http_allowed_hosts,
            is_read_only=is_read_only,
            body_bytes_max=config.http_max_request_bytes,
            seconds=self._limits.seconds,
            error_body=error_body,
        )
        self._inherited = inherited
        self._may_accept = may_accept
        # Ports by node ID; a port that the system chose is kept across restarts.
        self._ports: dict[int, int] = {}
        self._servers: dict[int, HttpServer] = {}

    def endpoint_of(self, node_id: int) -> Endpoint:
        """Return the address of a node's server."""
        return self._servers[node_id].endpoint

    async def bind(self, apps: Mapping[int, App]) -> None:
        """Bind the ports of all nodes, or of none. Raises CannotListen.

        Args:
            apps: Application by node ID.
        """
        self._servers = {node_id: self._server(node_id, app) for node_id, app in apps.items()}
        try:
            for server in self._servers.values():
                await server.bind()
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.close()
            raise
        self._ports = {node_id: self.endpoint_of(node_id).port for node_id in self._servers}

    async def run(self) -> None:
        """Serve until `close`."""
        async with trio.open_nursery() as nursery:
            for server in self._servers.values():
                nursery.start_soon(server.run)

    async def close(self) -> None:
        """Close all servers concurrently."""
        async with trio.open_nursery() as nursery:
            for server in self._servers.values():
                nursery.start_soon(server.close)

    def _server(self, node_id: int, app: App) -> HttpServer:
        endpoint = self._first
        if not self._inherited:
            endpoint = endpoint._replace(port=self._port_of(node_id))
        guarded = self.wrap_app(Guard(app, self._rules))
        return HttpServer(
            guarded,
            endpoint,
            self._limits,
            self._flag,
            inherited=self._inherited,
            may_accept=self._may_accept,
        )

    def _port_of(self, node_id: int) -> int:
        port = self._first.port
        if node_id in self._ports or not port:
            return self._ports.get(node_id, 0)
        port += node_id - self._first_id
        if not 0 < port <= PORT_MAX:
            raise CannotListen(
                f"invalid port {port} for node {node_id}; set a lower one with {self._flag}-port"
            )
        return port
