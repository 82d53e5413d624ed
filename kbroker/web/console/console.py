"""Console of all nodes of a process: each node serves it, and all nodes share the trends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from starlette.routing import Route

from kbroker.broker.local_node import LocalNode
from kbroker.client.endpoint import Endpoint
from kbroker.config import BrokerConfig
from kbroker.web.logins import is_exposed

from .acls import AclRoutes
from .activity import Activity
from .api import Api
from .cluster import ClusterViews
from .group_changes import GroupChanges
from .groups import Groups
from .live import Live
from .messages import Messages
from .moves import Moving
from .other_nodes import OtherNodes
from .overview import Overview
from .pages import Pages
from .quotas import Quotas
from .registry import RegistryRoutes
from .schemas import NodeSchemas
from .sessions import Sessions
from .settings import Settings
from .tokens import Tokens
from .topic_changes import TopicChanges
from .topics import Topics
from .transaction_changes import TransactionChanges
from .trends import Trends
from .under_test import FindBroker, Tests
from .users import Users
from .writing import Writing


def may_write(config: BrokerConfig) -> bool:
    """Return True if the console may change things: on loopback addresses, or if configured."""
    return config.http_console_write or not is_exposed(config.http_host)


class Console:
    """The console; `run` it until cancelled, and call `end` before a stop to end its streams.

    Args:
        config: Configuration of the first node.
        nodes: Nodes of this process.
        schemas: Returns the schemas of a node, or None without a schema registry.
        find_broker: Returns the broker if it accepts test commands.
        others: HTTP address of each node in another process of this server, by node ID.
    """

    def __init__(
        self,
        config: BrokerConfig,
        nodes: Sequence[LocalNode],
        schemas: Callable[[int], NodeSchemas] | None,
        find_broker: FindBroker,
        others: Mapping[int, Endpoint],
    ) -> None:
        self._config = config
        self._schemas = schemas
        self._find_broker = find_broker
        self._nodes = nodes
        self.trends = Trends(nodes)
        self._others = OtherNodes(others)
        self._apis: list[Api] = []
        self._sessions: list[Sessions] = []

    def routes(self, local: LocalNode) -> list[Route]:
        """Return the routes of one node: pages and API."""
        config = self._config
        sessions = Sessions(local, self._nodes, is_exposed=is_exposed(config.http_host))
        api = Api(
            local,
            self._nodes,
            self.trends,
            sessions,
            self._schemas,
            self._others,
            may_write=may_write(config),
            seconds=config.http_request_timeout_ms / 1000,
        )
        self._apis.append(api)
        self._sessions.append(sessions)
        parts = (
            Topics(api),
            Messages(api),
            Live(api),
            Writing(api),
            TopicChanges(api),
            Settings(api),
            Groups(api),
            GroupChanges(api),
            Activity(api),
            Overview(api),
            ClusterViews(api),
            Moving(api),
            TransactionChanges(api),
            Users(api),
            AclRoutes(api),
            Quotas(api),
            Tokens(api),
            RegistryRoutes(api),
            Tests(api, self._find_broker),
        )
        routes = [each for part in parts for each in part.routes()]
        session = api.session_route(lambda: self._find_broker() is not None)
        return [session, *routes, *Pages(sessions).routes()]

    async def run(self) -> None:
        """Collect trends forever."""
        await self.trends.run()

    def end(self) -> None:
        """Let live streams end."""
        for api in self._apis:
            api.ending.set()

    async def aclose(self) -> None:
        """Close all Kafka clients."""
        for sessions in self._sessions:
            await sessions.aclose()
