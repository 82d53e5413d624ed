"""Consoles of brokers with users and ACLs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from kbroker.broker import Broker
from kbroker.client.acls import add_acls
from kbroker.client.cluster import ClusterClient, open_cluster
from kbroker.client.endpoint import Endpoint
from kbroker.process.http import http_service
from kbroker.process.listeners import configured_listeners
from kbroker.security.acls import (
    CLUSTER_NAME,
    Acl,
    AclOperation,
    AclPermission,
    AclResourceType,
    Pattern,
    PatternType,
)

from ..client import HttpResponse, open_http_client
from ..secured import basic_auth, secured_broker, secured_config
from .consoles import API

ALICE, ADMIN = basic_auth("alice", "secret"), basic_auth("admin", "hush")


class SecuredConsole(NamedTuple):
    """A broker with the super user admin and the user alice, and its console."""

    broker: Broker
    console: Endpoint
    cluster: ClusterClient

    async def ask(
        self,
        path: str,
        body: object = None,
        *,
        login: Mapping[str, str] = ADMIN,
        token: str | None = None,
    ) -> HttpResponse:
        """Send a GET request, or a POST request with a body and the session's token."""
        async with open_http_client(self.console) as http:
            if body is None:
                return await http.ask(API + path, headers=login)
            if token is None:
                session = await http.ask(f"{API}/session", headers=login)
                token = str(session.json()["token"])
            headers = {**login, "X-Kbroker-Token": token}
            return await http.ask(API + path, "POST", headers, json.dumps(body).encode())

    async def get(self, path: str, **more: Any) -> Any:
        """Return the document of a successful response."""
        response = await self.ask(path, **more)
        assert response.status == 200, response.text
        return response.json()

    async def post(self, path: str, body: object, **more: Any) -> Any:
        """Return the document of a successful response to a change."""
        response = await self.ask(path, body, **more)
        assert response.status == 200, response.text
        return response.json()

    async def refusal(self, path: str, body: object = None, **more: Any) -> tuple[int, str]:
        """Return the status and the message of an error response."""
        response = await self.ask(path, body, **more)
        return response.status, response.json()["error"]

    async def allow(
        self,
        *operations: AclOperation,
        kind: AclResourceType = AclResourceType.CLUSTER,
        name: str = CLUSTER_NAME,
    ) -> None:
        """Allow alice operations on a resource."""
        await add_acls(self.cluster, _acls_of_alice(operations, kind, name))


def _acls_of_alice(
    operations: Iterable[AclOperation], kind: AclResourceType, name: str
) -> Iterable[Acl]:
    for each in operations:
        pattern = Pattern(kind, PatternType.LITERAL, name)
        yield Acl(pattern, "User:alice", "*", each, AclPermission.ALLOW)


@asynccontextmanager
async def secured_console(
    mechanism: str = "PLAIN", *, nodes: int | None = None, **properties: str
) -> AsyncIterator[SecuredConsole]:
    """Run a broker with users and a console; settings are keywords with `_` for dots."""
    config = secured_config(mechanism, http_port="0", **properties)
    service = http_service(config, configured_listeners(config))
    assert service is not None
    assert service.http is not None
    async with (
        secured_broker(config, service, nodes=nodes) as broker,
        open_cluster([broker.nodes[0].endpoint], dial=broker.dial_inside) as cluster,
    ):
        yield SecuredConsole(broker, service.http.endpoint_of(1), cluster)
