"""Sessions of the console: its viewers, and the Kafka client that acts on their behalf.

The console sends requests to all nodes over the Kafka protocol, with the principal and the address of
the viewer's HTTP connection, so that the same ACLs apply, including their host rules. It connects to
nodes of this process in-process. At other nodes it authenticates as the viewer, and they see the address
of this node. Therefore every route also declares the permissions that it needs, which this node checks
first. Without authentication the viewer is anonymous.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

import trio
from starlette.requests import Request

from kbroker.broker.local_node import LocalNode
from kbroker.client.cluster import ClusterClient
from kbroker.client.connection import Connection, encrypted
from kbroker.client.endpoint import Endpoint
from kbroker.client.security import log_in
from kbroker.net.server import Listener
from kbroker.security.acls import AclOperation, AclResourceType, Client, Resource
from kbroker.security.errors import BadSettings
from kbroker.web import CLIENT_ID
from kbroker.web.logins import FORBIDDEN, Caller, HttpAuthenticator, HttpInterface, Unauthenticated

from .answers import ApiError

# Seconds after which a viewer gets a new Kafka client.
SESSION_SECONDS = 600
SESSIONS_MAX = 32
NOT_READY = 503
# Reason of a missing permission, as in messages of the command line.
ACL_MISSING = "an ACL that permits it is missing"


class _SessionKey(NamedTuple):
    """Key of a cached client: hash of the viewer's credentials, and the viewer's address."""

    credential_hash: bytes
    host: str


class Viewer:
    """A viewer with its own Kafka client.

    Args:
        local: The node that serves the console.
        client: Principal and address of the viewer.
        cluster: Kafka client that acts on behalf of the viewer.
    """

    def __init__(self, local: LocalNode, client: Client, cluster: ClusterClient) -> None:
        self.client = client
        self.cluster = cluster
        self.began_at = trio.current_time()
        self.uses = 0
        self._local = local

    @property
    def sees_all(self) -> bool:
        """Return True if no ACLs are enforced."""
        return self._local.node.authorizer is None

    def may(self, operation: AclOperation, resource: Resource) -> bool:
        """Return True if the ACLs that this node knows allow an operation."""
        authorizer = self._local.node.authorizer
        return authorizer is None or authorizer.allows(self.client, operation, resource)

    def may_any(self, operation: AclOperation, resource_type: AclResourceType) -> bool:
        """Return True if the ACLs allow an operation on some resource of a type."""
        authorizer = self._local.node.authorizer
        return authorizer is None or authorizer.allows_any(self.client, operation, resource_type)

    def may_describe(self, resource: Resource) -> bool:
        """Return True if the viewer may describe a resource, so that the console may show it."""
        return self.may(AclOperation.DESCRIBE, resource)

    def require(self, operation: AclOperation, resource: Resource) -> None:
        """Raise ApiError if the viewer lacks a permission."""
        if not self.may(operation, resource):
            raise ApiError(FORBIDDEN, self.missing(operation, resource))

    def missing(self, operation: AclOperation, resource: Resource) -> str:
        """Return a sentence that names a missing permission."""
        return f"{self.client.principal} may not {operation.name} {resource}; {ACL_MISSING}"


class Sessions:
    """Viewers of one node's console.

    Args:
        local: The node that serves the console.
        nodes: All nodes of this process.
        is_exposed: True if other machines can reach the HTTP server.
    """

    def __init__(self, local: LocalNode, nodes: Sequence[LocalNode], *, is_exposed: bool) -> None:
        self._local = local
        self._nodes = nodes
        self._logins = HttpAuthenticator(local, HttpInterface("the console", "--http", is_exposed))
        self._known: dict[_SessionKey, Viewer] = {}

    @property
    def listener(self) -> Listener:
        """The listener whose users log in at the console."""
        return self._logins.listener

    @asynccontextmanager
    async def viewer(self, request: Request) -> AsyncIterator[Viewer]:
        """Yield the viewer of a request. Raises ApiError."""
        if not self._local.is_running:
            raise ApiError(NOT_READY, "this node is not running")
        viewer = await self._authenticate(request)
        viewer.uses += 1
        try:
            yield viewer
        finally:
            viewer.uses -= 1
            await self._close_old()

    async def aclose(self) -> None:
        """Close all Kafka clients."""
        known, self._known = self._known, {}
        for viewer in known.values():
            await viewer.cluster.aclose()

    async def _authenticate(self, request: Request) -> Viewer:
        """Return the viewer with the credentials of a request. Raises ApiError."""
        host = request.client.host if request.client else ""
        try:
            caller = await self._logins.caller(request.headers.get("authorization", ""), host)
        except Unauthenticated as error:
            raise ApiError(error.status, str(error), error.headers) from None
        return self._viewer_of(caller, host)

    def _viewer_of(self, caller: Caller, host: str) -> Viewer:
        """Return the cached viewer, or a new one if none is cached or its client is too old."""
        session = _SessionKey(caller.credential_hash, host)
        known = self._known.get(session)
        if known is not None and trio.current_time() - known.began_at < SESSION_SECONDS:
            return known
        client = Client(caller.principal, host)
        cluster = ClusterClient(
            [self._local_endpoint(self._local)],
            CLIENT_ID,
            direct=False,
            dial=partial(self._dial, client),
            log_in=partial(self._log_in, caller),
        )
        if known is not None:
            self._known[_SessionKey(secrets.token_bytes(8), host)] = (
                known  # kept until its last use ends
            )
        viewer = self._known[session] = Viewer(self._local, client, cluster)
        return viewer

    async def _close_old(self) -> None:
        """Close unused Kafka clients if they are too old or there are more than `SESSIONS_MAX`."""
        # Other requests add and close viewers during each await.
        while (viewer := self._take_old()) is not None:
            with trio.CancelScope(shield=True):
                await viewer.cluster.aclose()

    def _take_old(self) -> Viewer | None:
        """Remove and return a viewer to close, or return None."""
        now = trio.current_time()
        is_crowded = len(self._known) > SESSIONS_MAX
        for session, viewer in self._known.items():
            if not viewer.uses and (is_crowded or now - viewer.began_at >= SESSION_SECONDS):
                return self._known.pop(session)
        return None

    def _local_endpoint(self, local: LocalNode) -> Endpoint:
        """Return the address of a node of this process for local connections."""
        name = self.listener.name
        found = next(each for each in local.listeners if each.name == name)
        return Endpoint(found.host, found.port).as_seen_locally

    def _node_at(self, endpoint: Endpoint) -> LocalNode | None:
        """Return the node of this process that advertises an address; None for other nodes."""
        name = self.listener.name
        for local in self._nodes:
            if endpoint in (self._local_endpoint(local), local.endpoints().get(name)):
                return local
        return None

    async def _dial(self, client: Client, endpoint: Endpoint) -> trio.abc.Stream:
        """Connect to the node that advertises an address. Raises OSError."""
        local = self._node_at(endpoint)
        if local is not None:
            return local.connect_in_process_for(client, endpoint, self.listener.name)
        certificates = self.listener.certificates
        try:
            # Before connecting, so that no connection stays open if the files are unusable.
            tls = None if certificates is None else certificates.peer_client_context()
        except BadSettings as error:
            raise OSError(str(error)) from None
        stream: trio.abc.Stream = await trio.open_tcp_stream(*endpoint)
        return stream if tls is None else await encrypted(stream, endpoint, tls)

    async def _log_in(self, caller: Caller, connection: Connection, endpoint: Endpoint) -> None:
        """Authenticate at a node of another process as the viewer. Raises OSError."""
        if caller.credentials is not None and self._node_at(endpoint) is None:
            await log_in(connection, caller.credentials)
