"""An agent that calls tools of the broker of a test, without the protocol."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from mcp.types import TextContent

from kbroker.agents.catalog import all_tools
from kbroker.agents.server import AgentServer
from kbroker.agents.tool import Session
from kbroker.broker import Broker
from kbroker.client.cluster import ClusterClient, open_cluster
from kbroker.client.endpoint import Endpoint


@dataclass
class Agent:
    """All tools, and the reports of calls that can change something."""

    server: AgentServer
    cluster: ClusterClient
    reports: list[str] = field(default_factory=list)

    async def __call__(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """Call a tool and return its document; fail the test if it returns an error."""
        is_error, document = await self.attempt(tool, **arguments)
        assert not is_error, document
        return document

    async def fail(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """Call a tool that returns an error, and return its document."""
        is_error, document = await self.attempt(tool, **arguments)
        assert is_error, document
        return document

    async def attempt(self, tool: str, /, **arguments: Any) -> tuple[bool, dict[str, Any]]:
        result = await self.server.call(tool, arguments)
        (content,) = result.content
        assert isinstance(content, TextContent)
        return result.is_error, json.loads(content.text)


@pytest.fixture
async def agent(broker: Broker) -> AsyncIterator[Agent]:
    """Return an agent that may call every tool that needs no control port."""
    reports: list[str] = []
    async with open_cluster([Endpoint.parse(broker.bootstrap_servers)], "agent") as cluster:
        tools = [each for each in all_tools() if not each.needs_control]
        yield Agent(AgentServer(tools, Session(cluster), reports.append), cluster, reports)
