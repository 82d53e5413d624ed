"""Who looks at the console, and the client through which it asks for them.

The console is a client of the cluster like any other one: it speaks Kafka's protocol to all nodes, logs in
as who looks at it, and so may do what that one may do, by the same users and ACLs. Without logins it is
nobody, as every client on this machine is.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio
from starlette.requests import Request

from kbroker.broker.local_node import ON_THIS_MACHINE, LocalNode
from kbroker.client.cluster import ClusterClient
from kbroker.client.connection import encrypted
from kbroker.client.credentials import Security
from kbroker.client.endpoint import Endpoint
from kbroker.net.server import LOOPBACK
from kbroker.security.acls import AclOperation, Client, Resource
from kbroker.security.errors import BadSettings
from kbroker.security.principals import Principal
from kbroker.web.logins import FORBIDDEN, Caller, Logins, NotLetIn, Surface

from .answers import Refusal

CLIENT_ID = "kbroker-console"
SESSION_SECONDS = 600
"""How long a client is used."""
SESSIONS_MAX = 32
NO_ROOM, NOT_READY = 429, 503


class Viewer:
    """One who looks, with a client of its own."""

    def __init__(self, local: LocalNode, principal: Principal, cluster: ClusterClient) -> None:
        self.client = Client(principal, LOOPBACK[0])
        self.cluster = cluster
        self.began_at = trio.current_time()
        self.uses = 0
        self._local = local

    def may(self, operation: AclOperation, resource: Resource) -> bool:
        """Whether it may do something of which this node tells what it knows by itself."""
        authorizer = self._local.node.authorizer
        return authorizer is None or authorizer.allows(self.client, operation, resource)

    def needs(self, operation: AclOperation, resource: Resource) -> None:
        """Raise Refusal where it may not."""
        if not self.may(operation, resource):
            raise Refusal(FORBIDDEN, f"{self.client.principal} may not {operation.name} {resource}")


class Viewers:
    """All who look at one node. `is_exposed` says that HTTP is served to other machines."""

    def __init__(self, local: LocalNode, nodes: Sequence[LocalNode], *, is_exposed: bool) -> None:
        self._local = local
        self._nodes = nodes
        self._logins = Logins(local, Surface("the console", "--http", is_exposed))
        self._known: dict[bytes, Viewer] = {}

    @asynccontextmanager
    async def viewer(self, request: Request) -> AsyncIterator[Viewer]:
        """Who asks. Raises Refusal."""
        if not self._local.is_running:
            raise Refusal(NOT_READY, "this node does not run now")
        viewer = await self._find(request)
        viewer.uses += 1
        try:
            yield viewer
        finally:
            viewer.uses -= 1
            await self._close_old()

    async def aclose(self) -> None:
        """Close all clients."""
        known, self._known = self._known, {}
        for viewer in known.values():
            await viewer.cluster.aclose()

    async def _find(self, request: Request) -> Viewer:
        try:
            # From this machine the console asks the broker, whoever looks at it.
            shown = request.headers.get("authorization", "")
            caller = await self._logins.caller(shown, LOOPBACK[0])
        except NotLetIn as error:
            raise Refusal(error.status, str(error), error.headers) from None
        return self._of(caller)

    def _of(self, caller: Caller) -> Viewer:
        known = self._known.get(caller.shown)
        if known is not None and trio.current_time() - known.began_at < SESSION_SECONDS:
            return known
        here = self._here(self._local)
        security = Security(None, caller.credentials)
        cluster = ClusterClient([here], CLIENT_ID, direct=False, security=security, dial=self._dial)
        if known is not None:
            self._known[secrets.token_bytes(8)] = known  # until nobody uses it any more
        viewer = self._known[caller.shown] = Viewer(self._local, caller.principal, cluster)
        return viewer

    async def _close_old(self) -> None:
        now = trio.current_time()
        crowded = len(self._known) > SESSIONS_MAX
        for shown, viewer in tuple(self._known.items()):
            is_old = now - viewer.began_at >= SESSION_SECONDS
            if not viewer.uses and (is_old or crowded):
                del self._known[shown]
                with trio.CancelScope(shield=True):
                    await viewer.cluster.aclose()
                crowded = len(self._known) > SESSIONS_MAX

    def _here(self, local: LocalNode) -> Endpoint:
        """Where a node of this process is reached from here."""
        name = self._logins.listener.name
        found = next(each for each in local.listeners if each.name == name)
        return Endpoint(ON_THIS_MACHINE.get(found.host, found.host), found.port)

    async def _dial(self, endpoint: Endpoint) -> trio.abc.Stream:
        """Reach a node by what it tells clients. Raises OSError."""
        name, certificates = self._logins.listener.name, self._logins.listener.certificates
        for local in self._nodes:
            here = self._here(local)
            if endpoint in (here, local.endpoints().get(name)):
                stream: trio.abc.Stream = await trio.open_tcp_stream(*here)
                if certificates is None:
                    return stream
                return await encrypted(stream, here, certificates.to_itself())
        stream = await trio.open_tcp_stream(*endpoint)
        if certificates is None:
            return stream
        try:
            return await encrypted(stream, endpoint, certificates.to_others())
        except BadSettings as error:
            raise OSError(str(error)) from None
