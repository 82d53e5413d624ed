"""Consoles of brokers with records."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

from kbroker.broker import Broker
from kbroker.client.cluster import ClusterClient, open_cluster
from kbroker.client.producer import Producer
from kbroker.client.topics import NewTopic, create_topics
from kbroker.protocol.records import Record
from kbroker.web.service import HttpService

from ..client import HttpClient, HttpResponse, open_http_client, served

API = "/api/v1"


def record(
    value: bytes | None, key: bytes | None = None, at_ms: int = 1000, **headers: bytes
) -> Record:
    return Record(key, value, at_ms, list(headers.items()), -1)


class Console:
    """A broker's console with an HTTP client."""

    def __init__(
        self, broker: Broker, service: HttpService, http: HttpClient, cluster: ClusterClient
    ) -> None:
        self.broker = broker
        self.service = service
        self.http = http
        self.cluster = cluster

    async def get(self, path: str, **query: object) -> Any:
        """Return the body of a successful response."""
        response = await self.ask(path, **query)
        assert response.status == 200, response.text
        return response.json()

    async def ask(self, path: str, **query: object) -> HttpResponse:
        named = {name.rstrip("_"): value for name, value in query.items()}
        return await self.http.ask(f"{API}{path}?{urlencode(named)}")

    async def post(self, path: str, body: object = None, **headers: str) -> HttpResponse:
        token = (await self.get("/session"))["token"]
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.http.ask(API + path, "POST", {"X-Kbroker-Token": token, **headers}, data)

    async def sample(self) -> None:
        """Sample groups and rates now."""
        assert self.service.console is not None
        await self.service.console.trends.sample()

    async def create_topic(self, name: str, *records: Record, partitions: int = 1) -> None:
        """Create a topic with records in its first partition."""
        await create_topics(self.cluster, [NewTopic(name, partitions)])
        if records:
            await self.write(name, *records)

    async def write(self, name: str, *records: Record) -> None:
        """Write records to the first partition of a topic."""
        await Producer(self.cluster).write({(name, 0): records})


@asynccontextmanager
async def console(**properties: object) -> AsyncIterator[Console]:
    async with (
        served(**properties) as (broker, http),  # type: ignore[arg-type]
        open_http_client(http.endpoint_of(1)) as client,
        open_cluster([broker.nodes[0].endpoint]) as cluster,
    ):
        yield Console(broker, http, client, cluster)


def values(found: Any) -> list[str]:
    return [each["value"] for each in found["records"]]
