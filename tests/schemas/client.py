"""Brokers with a schema registry, and a client for it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import trio

from kbroker.broker import Broker
from kbroker.client.endpoint import Endpoint
from kbroker.config import BrokerConfig
from kbroker.schemas.service import RegistryService
from kbroker.schemas.workers import SchemaWorkers

from ..web.client import broker_with, open_http_client

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"


class RegistryResponse(NamedTuple):
    """A response of a registry."""

    status: int
    body: Any


class RegistryClient:
    """A client of one registry that adds some headers."""

    def __init__(self, endpoint: Endpoint, headers: Mapping[str, str] | None = None) -> None:
        self.endpoint = endpoint
        self._headers = {"Content-Type": CONTENT_TYPE, **(headers or {})}

    async def ask(self, method: str, path: str, body: Any = None) -> RegistryResponse:
        data = b"" if body is None else json.dumps(body).encode()
        async with open_http_client(self.endpoint) as client:
            response = await client.ask(path, method, self._headers, data)
        assert response.headers["content-type"] == CONTENT_TYPE
        return RegistryResponse(response.status, response.json())

    async def get(self, path: str) -> Any:
        """Return the body; raise AssertionError unless the status is 200."""
        response = await self.ask("GET", path)
        assert response.status == 200, response
        return response.body

    async def put(self, path: str, body: Any) -> Any:
        response = await self.ask("PUT", path, body)
        assert response.status == 200, response
        return response.body

    async def delete(self, path: str) -> Any:
        response = await self.ask("DELETE", path)
        assert response.status == 200, response
        return response.body

    async def register(self, subject: str, schema: Any, **more: Any) -> int:
        """Register a schema and return its ID."""
        response = await self.try_to_register(subject, schema, **more)
        assert response.status == 200, response
        found: int = response.body["id"]
        return found

    async def try_to_register(self, subject: str, schema: Any, **more: Any) -> RegistryResponse:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        path = f"/subjects/{quote(subject, safe='')}/versions"
        return await self.ask("POST", path, {"schema": text, **more})

    async def refusal(self, method: str, path: str, body: Any = None) -> int:
        """Return the error code of a rejected request, which starts with the HTTP status."""
        response = await self.ask(method, path, body)
        assert str(response.body["error_code"]).startswith(str(response.status))
        assert response.body["message"]
        code: int = response.body["error_code"]
        return code


@asynccontextmanager
async def registry(
    data_dir: Path | None = None, *, nodes: int | None = None
) -> AsyncIterator[tuple[Broker, list[RegistryClient]]]:
    """Run a broker with a schema registry, with a client for each of its nodes."""
    properties = {"registry.port": "0", "connection.setup.timeout.ms": "3600000"}
    config = BrokerConfig.load(options=properties)
    service = RegistryService(config)
    async with broker_with(service, config, data_dir, nodes) as broker:
        yield broker, [RegistryClient(service.endpoint_of(each.id)) for each in broker.nodes]


@asynccontextmanager
async def schema_workers() -> AsyncIterator[SchemaWorkers]:
    """Run the worker processes that read schemas until the block ends."""
    workers = SchemaWorkers()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(workers.run)
        yield workers
        nursery.cancel_scope.cancel()


def record(name: str, *fields: tuple[Any, ...]) -> dict[str, Any]:
    """Return an Avro record; fields are (name, type) or (name, type, default)."""
    keys = ("name", "type", "default")
    return {
        "type": "record",
        "name": name,
        "fields": [dict(zip(keys, each, strict=False)) for each in fields],
    }
