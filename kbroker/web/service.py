"""HTTP service: one server per node of a process, for probes, metrics and the console."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio
from starlette.applications import Starlette

from kbroker.broker.local_node import LocalNode
from kbroker.client.endpoint import Endpoint
from kbroker.config import BrokerConfig

from .console.console import Console, may_write
from .console.schemas import Schemas
from .console.under_test import UnderTest
from .metrics.loop_monitor import LoopMonitor
from .metrics.scrape import Metrics
from .node_servers import NodeServers
from .probes import Probes


class HttpService:
    """Runs the HTTP servers of a process; implements `kbroker.broker.service.Service`.

    Args:
        config: Configuration of the first node; further nodes use the following ports.
        schemas: Returns the schemas of a node, or None without a schema registry.

    Attributes:
        console: Console of the bound nodes.
        under_test: The broker, if it accepts test commands.
    """

    def __init__(
        self, config: BrokerConfig, schemas: Callable[[int], Schemas] | None = None
    ) -> None:
        self._config = config
        self._schemas = schemas
        self._servers = NodeServers(
            config,
            Endpoint(config.http_host, config.http_port),
            flag="--http",
            is_read_only=not may_write(config),
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
            self._config, nodes, self._schemas, lambda: self.under_test
        )
        await self._servers.bind({each.id: self._app(each, console) for each in nodes})

    async def run(self) -> None:
        """Serve until `close`."""
        assert self.console is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._loop_monitor.run)
            nursery.start_soon(self.console.run)
            await self._servers.run()
            nursery.cancel_scope.cancel()

    async def close(self) -> None:
        """Close all servers concurrently."""
        if self.console is not None:
            self.console.end()
        await self._servers.close()
        if self.console is not None:
            await self.console.aclose()

    def _app(self, local: LocalNode, console: Console) -> Starlette:
        """Return the application of one node."""
        metrics = Metrics(local, self._loop_monitor)
        routes = [*Probes(local).routes(), *metrics.routes(), *console.routes(local)]
        return Starlette(routes=routes)
