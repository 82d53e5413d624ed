"""HTTP service: one server per node of a process, for probes, metrics and the console."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import trio
from starlette.applications import Starlette
from starlette.routing import Route

from kbroker.broker.local_node import LocalNode
from kbroker.client.endpoint import Endpoint
from kbroker.config import BrokerConfig
from kbroker.net.server import LOOPBACK

from .console.console import Console, may_write
from .console.schemas import NodeSchemas
from .console.under_test import UnderTest
from .listening import InheritedHttp
from .metrics.loop_monitor import LoopMonitor
from .metrics.scrape import Metrics
from .metrics.server_metrics import ServerMetrics
from .node_servers import NodeServers
from .probes import Probes


class HttpService:
    """Runs the HTTP servers of a process; implements `kbroker.broker.service.Service`.

    Args:
        config: Configuration of the first node; further nodes use the following ports.
        schemas: Returns the schemas of a node, or None without a schema registry.
        inherited: Sockets of a node process of a multi-process server; None to bind the address.

    Attributes:
        console: Console of the bound nodes.
        under_test: The broker, if it accepts test commands.
    """

    def __init__(
        self,
        config: BrokerConfig,
        schemas: Callable[[int], NodeSchemas] | None = None,
        inherited: InheritedHttp | None = None,
    ) -> None:
        self._config = config
        self._schemas = schemas
        self._inherited = inherited
        new_servers = partial(
            NodeServers, config, flag="--http", is_read_only=not may_write(config)
        )
        endpoint = Endpoint(config.http_host, config.http_port)
        # Servers of the whole server's address, if its processes share one.
        self._shared: NodeServers | None = None
        if inherited is None:
            self._servers = new_servers(endpoint)
        else:
            own = Endpoint(LOOPBACK[0], 0)
            self._servers = new_servers(own, inherited=inherited.own)
            self._shared = new_servers(
                endpoint, inherited=inherited.shared, may_accept=inherited.chosen
            )
        self._loop_monitor = LoopMonitor()
        self.console: Console | None = None
        self.under_test: UnderTest | None = None

    def endpoint_of(self, node_id: int) -> Endpoint:
        """Return the address of a node's HTTP server."""
        return self._servers.endpoint_of(node_id)

    async def bind(self, nodes: Sequence[LocalNode]) -> None:
        """Bind the ports of all nodes, or of none. Raises CannotListen."""
        console = self.console = Console(
            self._config,
            nodes,
            self._schemas,
            lambda: self.under_test,
            {} if self._inherited is None else self._inherited.others,
        )
        metrics = {each.id: Metrics(each, self._loop_monitor) for each in nodes}
        own = {each.id: _app(each, metrics[each.id].routes(), console) for each in nodes}
        await self._servers.bind(own)
        if self._inherited is not None and self._shared is not None:
            (local,) = nodes
            merged = ServerMetrics(local.id, metrics[local.id], self._inherited.others)
            await self._shared.bind({local.id: _app(local, merged.routes(), console)})

    async def run(self) -> None:
        """Serve until `close`."""
        assert self.console is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._loop_monitor.run)
            nursery.start_soon(self.console.run)
            await self._run_servers()
            nursery.cancel_scope.cancel()

    async def _run_servers(self) -> None:
        async with trio.open_nursery() as nursery:
            for each in self._all_servers:
                nursery.start_soon(each.run)

    async def close(self) -> None:
        """Close all servers concurrently."""
        if self.console is not None:
            self.console.end()
        for each in self._all_servers:
            await each.close()
        if self.console is not None:
            await self.console.aclose()

    @property
    def _all_servers(self) -> list[NodeServers]:
        return [self._servers, *filter(None, [self._shared])]


def _app(local: LocalNode, metrics: Sequence[Route], console: Console) -> Starlette:
    """Return the application of one node."""
    return Starlette(routes=[*Probes(local).routes(), *metrics, *console.routes(local)])
