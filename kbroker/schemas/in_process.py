"""Calls of the registry's REST API inside the process, for the web console."""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import urlencode

from starlette.types import ASGIApp, Message, Scope

from kbroker.security.acls import AclOperation, Client
from kbroker.web import CLIENT_ID
from kbroker.web.console.schemas import RegistryResponse

from .access import Access


class InProcessRegistry:
    """Registry of one node; implements `kbroker.web.console.schemas.Registry`.

    Args:
        app: The REST API, which checks the permissions of the client in the scope.
        access: Permissions of clients.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    def may(self, client: Client, operation: AclOperation, subject: str | None) -> bool:
        """Implement `Registry.may`."""
        return self._access.allows(client, operation, subject)

    async def call(
        self,
        client: Client,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
    ) -> RegistryResponse:
        """Implement `Registry.call`."""
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": urlencode(query or {}).encode(),
            "headers": [(b"user-agent", CLIENT_ID.encode())],
            "client": (client.host, 0),
            "server": None,
        }
        status, chunks = 0, bytearray()

        async def receive() -> Message:
            data = b"" if body is None else json.dumps(body).encode()
            return {"type": "http.request", "body": data, "more_body": False}

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                chunks.extend(message.get("body", b""))

        await self._app(self._access.scope_of(scope, client), receive, send)
        return RegistryResponse(status, json.loads(bytes(chunks)))
