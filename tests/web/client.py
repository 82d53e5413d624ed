"""A small HTTP/1.1 client, and brokers with an HTTP service."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import h11
import trio

from kbroker.broker import Broker, Service, open_broker
from kbroker.client.endpoint import Endpoint
from kbroker.config import BrokerConfig
from kbroker.web.service import HttpService

from ..brokers import LOOPBACK, paths_of
from ..wire import ANSWER_SECONDS

RECEIVE_BYTES = 65_536


class HttpResponse(NamedTuple):
    """An HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode()


class HttpClient:
    """An HTTP connection."""

    def __init__(self, stream: trio.SocketStream, host: str) -> None:
        self.stream = stream
        self._host = host
        self._http = h11.Connection(h11.CLIENT)

    async def ask(
        self,
        path: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> HttpResponse:
        """Send a request and return the complete response."""
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        fields = {"Host": self._host, **(headers or {})}
        if body and "Transfer-Encoding" not in fields:
            fields["Content-Length"] = str(len(body))
        request = h11.Request(method=method, target=path, headers=[*fields.items()])
        events: list[h11.Event] = [request, *([h11.Data(data=body)] if body else [])]
        for event in (*events, h11.EndOfMessage()):
            await self.stream.send_all(self._http.send(event) or b"")
        return await self.read_response()

    async def head_of(self, path: str, headers: Mapping[str, str] | None = None) -> HttpResponse:
        """Request a stream and read only the head of the response."""
        fields = {"Host": self._host, **(headers or {})}
        request = h11.Request(method="GET", target=path, headers=[*fields.items()])
        for event in (request, h11.EndOfMessage()):
            await self.stream.send_all(self._http.send(event) or b"")
        head = await self._next_event()
        return HttpResponse(head.status_code, _headers_of(head), b"")

    async def read_response(self) -> HttpResponse:
        """Return the next complete response."""
        head = await self._next_event()
        assert isinstance(head, h11.Response), head
        parts = []
        while isinstance(event := await self._next_event(), h11.Data):
            parts.append(bytes(event.data))
        return HttpResponse(head.status_code, _headers_of(head), b"".join(parts))

    async def _next_event(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            with trio.fail_after(ANSWER_SECONDS):
                data = await self.stream.receive_some(RECEIVE_BYTES)
            self._http.receive_data(bytes(data))
        return event


def _headers_of(head: h11.Response) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in head.headers}


@asynccontextmanager
async def open_http_client(endpoint: Endpoint) -> AsyncIterator[HttpClient]:
    """Open a connection to a server."""
    async with await trio.open_tcp_stream(*endpoint) as stream:
        yield HttpClient(stream, str(endpoint))


async def get(endpoint: Endpoint, path: str, **headers: str) -> HttpResponse:
    """Send one request; headers are keywords with `_` for `-`."""
    async with open_http_client(endpoint) as client:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await client.ask(path, headers=named)


@asynccontextmanager
async def served(
    data_dir: Path | list[Path] | None = None, *, nodes: int | None = None, **properties: object
) -> AsyncIterator[tuple[Broker, HttpService]]:
    """Run a broker with HTTP on a free port; settings are keywords with `_` for dots."""
    properties = {"http_port": 0, "connection_setup_timeout_ms": 3_600_000, **properties}
    options = {name.replace("_", "."): str(value) for name, value in properties.items()}
    config = BrokerConfig.load(options=options)
    http = HttpService(config)
    async with broker_with(http, config, data_dir, nodes) as broker:
        yield broker, http


@asynccontextmanager
async def broker_with(
    service: Service, config: BrokerConfig, data_dir: Path | list[Path] | None, nodes: int | None
) -> AsyncIterator[Broker]:
    """Run a broker with a service, and check that no unexpected error occurs."""
    async with open_broker(
        config,
        data_dir=paths_of(data_dir),
        listeners=[LOOPBACK],
        nodes=nodes,
        grace_seconds=1,
        service=service,
    ) as broker:
        yield broker
        errors = [each.node.context.error_log.unhandled_errors for each in broker.nodes]
        assert errors == [0] * len(errors)
