"""Schema registry service: one HTTP server per node of a process, all over the same topic."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from kbroker.broker.local_node import LocalNode
from kbroker.client.cluster import ClusterClient
from kbroker.client.connection import Connection
from kbroker.client.endpoint import Endpoint
from kbroker.config import BrokerConfig
from kbroker.net.server import Listener
from kbroker.runtime.clock import SystemClock
from kbroker.web.console.schemas import NodeSchemas
from kbroker.web.guard import App
from kbroker.web.listening import InheritedHttp
from kbroker.web.logins import HttpInterface, is_exposed, login_problem
from kbroker.web.node_servers import NodeServers

from . import CLIENT_ID
from .access import Access
from .answers import error_body
from .api import SchemaApi
from .decoding import SchemaDecoder
from .in_process import InProcessRegistry
from .topic import SchemaTopic
from .workers import SchemaWorkers

FLAG = "--registry"
# Maximum number of long responses that are created concurrently; more would not be faster.
THREADS = 1


class RegistryService:
    """Runs the registries of a process; implements `kbroker.broker.service.Service`.

    Args:
        config: Configuration of the first node; further nodes use the following ports.
        inherited: Sockets of a node process of a multi-process server; None to bind the address.
    """

    def __init__(self, config: BrokerConfig, inherited: InheritedHttp | None = None) -> None:
        first = Endpoint(config.registry_host, config.registry_port)
        self._interface = interface_of(config)
        self._servers = NodeServers(
            config,
            first,
            flag=FLAG,
            is_read_only=False,
            error_body=error_body,
            inherited=inherited.registry if inherited else (),
            may_accept=inherited.chosen if inherited else None,
        )
        self._topics: list[SchemaTopic] = []
        self._schemas: dict[int, NodeSchemas] = {}
        self._clients: list[ClusterClient] = []
        self._reading = trio.CancelScope()
        self._workers = SchemaWorkers()

    def endpoint_of(self, node_id: int) -> Endpoint:
        """Return the address of a node's registry."""
        return self._servers.endpoint_of(node_id)

    def schemas_of(self, node_id: int) -> NodeSchemas:
        """Return what the console uses of a node's registry; only valid after `bind`."""
        return self._schemas[node_id]

    def serve_through(self, wrap_app: Callable[[App], App]) -> None:
        """Wrap the applications from the next `bind` on; tests inject faults this way."""
        self._servers.wrap_app = wrap_app

    async def bind(self, nodes: Sequence[LocalNode]) -> None:
        """Bind the ports of all nodes, or of none. Raises CannotListen."""
        self._topics, self._clients, self._reading = [], [], trio.CancelScope()
        threads = trio.CapacityLimiter(THREADS)
        await self._servers.bind({each.id: self._app(each, nodes, threads) for each in nodes})

    async def run(self) -> None:
        """Serve until `close`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._servers.run)
            # `close` cancels this scope after the servers have finished their requests.
            with self._reading:
                async with trio.open_nursery() as reading:
                    reading.start_soon(self._workers.run)
                    for topic in self._topics:
                        reading.start_soon(topic.run)

    async def close(self) -> None:
        """Close all servers concurrently, then their Kafka clients."""
        await self._servers.close()
        self._reading.cancel()
        for client in self._clients:
            await client.aclose()

    def _app(
        self, local: LocalNode, nodes: Sequence[LocalNode], threads: trio.CapacityLimiter
    ) -> App:
        """Return the application of one node."""
        topic = SchemaTopic(self._client(local, nodes), SystemClock().log_ms)
        self._topics.append(topic)
        access = Access(local, self._interface)
        api = SchemaApi(topic, threads, self._workers, lambda: local.node.cluster.id, access)
        self._schemas[local.id] = NodeSchemas(
            SchemaDecoder(topic, self._workers), InProcessRegistry(api.authenticated_app(), access)
        )
        return api.app()

    def _client(self, local: LocalNode, nodes: Sequence[LocalNode]) -> ClusterClient:
        """Return a client that connects in-process to local nodes and over the network to others."""

        def local_node_at(endpoint: Endpoint) -> LocalNode | None:
            return next((each for each in nodes if each.is_at(endpoint)), None)

        async def dial(endpoint: Endpoint) -> trio.abc.Stream:
            target = local_node_at(endpoint)
            if target is not None:
                return target.connect_in_process_inter_broker()
            return await local.dial_other(endpoint)

        async def log_in(connection: Connection, endpoint: Endpoint) -> None:
            if local_node_at(endpoint) is None:
                await local.log_in(connection)

        others = (each.inter_broker_endpoint for each in nodes if each is not local)
        client = ClusterClient(
            [local.inter_broker_endpoint, *others],
            CLIENT_ID,
            direct=False,
            dial=dial,
            log_in=log_in,
        )
        self._clients.append(client)
        return client


def interface_of(config: BrokerConfig) -> HttpInterface:
    """Return the description of the registry that authentication uses."""
    return HttpInterface("the schema registry", FLAG, is_exposed(config.registry_host))


def authentication_problem(config: BrokerConfig, listeners: Sequence[Listener]) -> str:
    """Return why no user of these listeners could authenticate at the registry; empty if one can."""
    return login_problem(listeners, interface_of(config))
