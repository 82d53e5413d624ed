"""The HTTP of all nodes of a process: each has a server of its own."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import trio
from starlette.applications import Starlette

from kbroker.broker.local_node import LocalNode
from kbroker.client.endpoint import PORT_MAX, Endpoint
from kbroker.config import BrokerConfig
from kbroker.net.server import CannotListen

from .console.console import Console, may_write
from .guard import Guard, Rules
from .http_server import HttpServer, Limits
from .metrics.beat import Beat
from .metrics.scrape import Metrics
from .probes import Probes

logger = logging.getLogger(__name__)


class HttpService:
    """Serves HTTP as settings say it; a `kbroker.broker.service.Service`.

    Parameters: `config` is that of the first node; the next nodes have the ports behind.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._ports: dict[int, int] = {}
        """By node; those that the system chose are kept when it starts again."""
        self._servers: dict[int, HttpServer] = {}
        self._beat = Beat()
        self.console: Console | None = None
        """Of the nodes for which ports are taken."""

    def endpoint_of(self, node_id: int) -> Endpoint:
        """Where a node serves HTTP."""
        return self._servers[node_id].endpoint

    async def bind(self, nodes: Sequence[LocalNode]) -> None:
        """Take the ports of all nodes, or of none. Raises CannotListen."""
        console = self.console = Console(self._config, nodes)
        self._servers = {each.id: self._server(each, console) for each in nodes}
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
        assert self.console is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._beat.run)
            nursery.start_soon(self.console.run)
            async with trio.open_nursery() as serving:
                for server in self._servers.values():
                    serving.start_soon(server.run)
            nursery.cancel_scope.cancel()

    async def close(self) -> None:
        """End all servers, at the same time."""
        if self.console is not None:
            self.console.end()
        async with trio.open_nursery() as nursery:
            for server in self._servers.values():
                nursery.start_soon(server.close)
        if self.console is not None:
            await self.console.aclose()

    def _server(self, local: LocalNode, console: Console) -> HttpServer:
        config = self._config
        endpoint = Endpoint(config.http_host, self._port_of(local.id))
        seconds = config.http_request_timeout_ms / 1000
        rules = Rules.of(
            config.http_allowed_hosts,
            is_read_only=not may_write(config),
            body_bytes_max=config.http_max_request_bytes,
            seconds=seconds,
        )
        app = Guard(self._app(local, console), rules)
        return HttpServer(app, endpoint, Limits(config.http_max_connections, seconds))

    def _port_of(self, node_id: int) -> int:
        port = self._config.http_port
        if node_id in self._ports or not port:
            return self._ports.get(node_id, 0)
        port += node_id - self._config.node_id
        if not 0 < port <= PORT_MAX:
            raise CannotListen(f"there is no port {port}; name a lower one with --http-port")
        return port

    def _app(self, local: LocalNode, console: Console) -> Starlette:
        """What one node serves."""
        metrics = Metrics(local, self._beat)
        routes = [*Probes(local).routes(), *metrics.routes(), *console.routes(local)]
        return Starlette(routes=routes)
