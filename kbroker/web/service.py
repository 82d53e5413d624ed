"""The HTTP of all nodes of a process: each has a server of its own."""

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
from .metrics.beat import Beat
from .metrics.scrape import Metrics
from .node_servers import NodeServers
from .probes import Probes


class HttpService:
    """Serves HTTP as settings say it; a `kbroker.broker.service.Service`.

    Parameters: `config` is that of the first node; the next nodes have the ports behind. `schemas` are
    those that a node knows, where a registry is served as well.
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
        self._beat = Beat()
        self.console: Console | None = None
        """Of the nodes for which ports are taken."""
        self.under_test: UnderTest | None = None
        """The broker of these nodes, if it takes commands of tests."""

    def endpoint_of(self, node_id: int) -> Endpoint:
        """Where a node serves HTTP."""
        return self._servers.endpoint_of(node_id)

    async def bind(self, nodes: Sequence[LocalNode]) -> None:
        """Take the ports of all nodes, or of none. Raises CannotListen."""
        console = self.console = Console(
            self._config, nodes, self._schemas, lambda: self.under_test
        )
        await self._servers.bind({each.id: self._app(each, console) for each in nodes})

    async def run(self) -> None:
        """Serve until `close`."""
        assert self.console is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._beat.run)
            nursery.start_soon(self.console.run)
            await self._servers.run()
            nursery.cancel_scope.cancel()

    async def close(self) -> None:
        """End all servers, at the same time."""
        if self.console is not None:
            self.console.end()
        await self._servers.close()
        if self.console is not None:
            await self.console.aclose()

    def _app(self, local: LocalNode, console: Console) -> Starlette:
        """What one node serves."""
        metrics = Metrics(local, self._beat)
        routes = [*Probes(local).routes(), *metrics.routes(), *console.routes(local)]
        return Starlette(routes=routes)
