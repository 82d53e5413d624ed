"""The schema registries of all nodes of a process: each has a server of its own, over one topic."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import trio

from kbroker.broker.local_node import LocalNode
from kbroker.client.cluster import ClusterClient
from kbroker.client.endpoint import PORT_MAX, Endpoint
from kbroker.config import BrokerConfig
from kbroker.net.server import CannotListen
from kbroker.runtime.clock import SystemClock
from kbroker.web.guard import Guard, Rules
from kbroker.web.http_server import HttpServer, Limits

from .api import SchemaApi
from .topic import SchemaTopic

logger = logging.getLogger(__name__)

CLIENT_ID = "kbroker-registry"
THREADS = 1
"""Schemas that are looked into at the same time: more would only take turns."""
FLAG = "--registry"
"""What the flags for its address begin with."""


class RegistryService:
    """Serves schemas as settings say it; a `kbroker.broker.service.Service`.

    Parameters: `config` is that of the first node; the next nodes have the ports behind.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._ports: dict[int, int] = {}
        """By node; those that the system chose are kept when it starts again."""
        self._servers: dict[int, HttpServer] = {}
        self._topics: list[SchemaTopic] = []
        self._clients: list[ClusterClient] = []
        self._reading = trio.CancelScope()

    def endpoint_of(self, node_id: int) -> Endpoint:
        """Where a node serves schemas."""
        return self._servers[node_id].endpoint

    async def bind(self, nodes: Sequence[LocalNode]) -> None:
        """Take the ports of all nodes, or of none. Raises CannotListen."""
        self._topics, self._clients, self._reading = [], [], trio.CancelScope()
        threads = trio.CapacityLimiter(THREADS)
        self._servers = {each.id: self._server(each, nodes, threads) for each in nodes}
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
            # Requests that come to their ends meanwhile are still served.
            with self._reading:
                async with trio.open_nursery() as reading:
                    for topic in self._topics:
                        reading.start_soon(topic.run)

    async def close(self) -> None:
        """End all servers, at the same time, and what they have open."""
        async with trio.open_nursery() as nursery:
            for server in self._servers.values():
                nursery.start_soon(server.close)
        self._reading.cancel()
        for client in self._clients:
            await client.aclose()

    def _server(
        self, local: LocalNode, nodes: Sequence[LocalNode], threads: trio.CapacityLimiter
    ) -> HttpServer:
        config = self._config
        endpoint = Endpoint(config.registry_host, self._port_of(local.id))
        seconds = config.http_request_timeout_ms / 1000
        rules = Rules.of(
            config.http_allowed_hosts,
            is_read_only=False,
            body_bytes_max=config.http_max_request_bytes,
            seconds=seconds,
        )
        topic = SchemaTopic(self._client(local, nodes), SystemClock().log_ms)
        self._topics.append(topic)
        api = SchemaApi(topic, threads, lambda: local.node.cluster.id)
        app = Guard(api.app(), rules)
        return HttpServer(app, endpoint, Limits(config.http_max_connections, seconds), FLAG)

    def _client(self, local: LocalNode, nodes: Sequence[LocalNode]) -> ClusterClient:
        """A client that comes to nodes of this process from inside, and to others as nodes do."""

        async def dial(endpoint: Endpoint) -> trio.abc.Stream:
            for each in nodes:
                inside = each.insider(endpoint)
                if inside is not None:
                    return inside
            return await local.dial_other(endpoint)

        others = (each.endpoint for each in nodes if each is not local)
        client = ClusterClient([local.endpoint, *others], CLIENT_ID, direct=False, dial=dial)
        self._clients.append(client)
        return client

    def _port_of(self, node_id: int) -> int:
        port = self._config.registry_port
        if node_id in self._ports or not port:
            return self._ports.get(node_id, 0)
        port += node_id - self._config.node_id
        if not 0 < port <= PORT_MAX:
            raise CannotListen(f"there is no port {port}; name a lower one with {FLAG}-port")
        return port
