"""Who looks at the console, and the client through which it asks for them.

The console is a client of the cluster like any other one: it speaks Kafka's protocol to all nodes, logs in
as who looks at it, and so may do what that one may do, by the same users and ACLs. Without logins it is
nobody, as every client on this machine is.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio
from starlette.requests import Request

from kbroker.broker.local_node import ON_THIS_MACHINE, LocalNode
from kbroker.client.cluster import ClusterClient
from kbroker.client.connection import encrypted
from kbroker.client.credentials import Credentials, Security
from kbroker.client.endpoint import Endpoint
from kbroker.net.server import LOOPBACK, LOOPBACK_NAMES, Listener
from kbroker.security.acls import AclOperation, Client, Resource
from kbroker.security.errors import BadSettings, LoginFailed
from kbroker.security.principals import ANONYMOUS, USER, Principal
from kbroker.security.scram import ScramClient, ScramMechanism
from kbroker.security.users import PLAIN, Users

from .answers import Refusal

CLIENT_ID = "kbroker-console"
SESSION_SECONDS = 600
"""How long what somebody has shown is good, and a client is used."""
SESSIONS_MAX = 32
UNKNOWN, FORBIDDEN, NO_ROOM, NOT_READY = 401, 403, 429, 503
ASK_FOR_LOGIN = {"www-authenticate": 'Basic realm="kbroker", charset="UTF-8"'}


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
        self._is_exposed = is_exposed
        self._key = secrets.token_bytes(32)
        self._known: dict[bytes, Viewer] = {}
        self._checking = trio.Lock()

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
        listener = self._listener
        users = listener.users
        if users is None:
            if listener.asks_clients:
                raise Refusal(
                    FORBIDDEN,
                    f"clients of listener {listener.name} show certificates, which the console does "
                    "not take: use `kbroker` with a client's settings, or add a listener with logins",
                )
            return self._of(b"", ANONYMOUS, None)
        if self._is_exposed:
            raise Refusal(
                FORBIDDEN,
                "users log in here, and their passwords could be read on the way: let HTTP listen on "
                "127.0.0.1 (--http-host), and reach it through a tunnel or a proxy with TLS",
            )
        name, password = _basic(request)
        shown = hmac.digest(self._key, f"{name}\0{password}".encode(), "sha256")
        known = self._known.get(shown)
        if known is not None and trio.current_time() - known.began_at < SESSION_SECONDS:
            return known
        async with self._checking:
            credentials = await self._checked(listener, users, name, password)
        return self._of(shown, Principal(USER, name), credentials)

    def _of(self, shown: bytes, principal: Principal, credentials: Credentials | None) -> Viewer:
        known = self._known.get(shown)
        if known is not None and trio.current_time() - known.began_at < SESSION_SECONDS:
            return known
        here = self._here(self._local)
        cluster = ClusterClient(
            [here], CLIENT_ID, direct=False, security=Security(None, credentials), dial=self._dial
        )
        if known is not None:
            self._known[secrets.token_bytes(8)] = known  # until nobody uses it any more
        viewer = self._known[shown] = Viewer(self._local, principal, cluster)
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

    @property
    def _listener(self) -> Listener:
        """Where it comes in: where users log in, if there is such a one."""
        listeners = self._local.listeners
        return next((each for each in listeners if each.users is not None), listeners[0])

    async def _checked(
        self, listener: Listener, users: Users, name: str, password: str
    ) -> Credentials:
        """By which mechanism it logs in. Raises Refusal for somebody else."""
        if not {PLAIN, *ScramMechanism} & set(users.mechanisms):
            raise Refusal(
                FORBIDDEN,
                f"users of listener {listener.name} log in by tokens, which the console does not take",
            )
        node = self._local.node
        for mechanism in users.mechanisms:
            if _shows(users, mechanism, name, password):
                client = Client(Principal(USER, name), LOOPBACK[0])
                node.audit.came_in(client, listener.name, mechanism)
                return Credentials(mechanism, name, password)
        reason = "the user or the password is wrong"
        node.audit.kept_out(LOOPBACK[0], listener.name, "HTTP", name, reason)
        await trio.sleep(node.config.failed_login_delay_ms / 1000)
        raise Refusal(UNKNOWN, reason, ASK_FOR_LOGIN)

    def _here(self, local: LocalNode) -> Endpoint:
        """Where a node of this process is reached from here."""
        name = self._listener.name
        found = next(each for each in local.listeners if each.name == name)
        return Endpoint(ON_THIS_MACHINE.get(found.host, found.host), found.port)

    async def _dial(self, endpoint: Endpoint) -> trio.abc.Stream:
        """Reach a node by what it tells clients. Raises OSError."""
        name, certificates = self._listener.name, self._listener.certificates
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


def is_exposed(host: str) -> bool:
    """Whether other machines reach what listens there."""
    return host not in LOOPBACK_NAMES


def _basic(request: Request) -> tuple[str, str]:
    """The name and the password of a request (RFC 7617). Raises Refusal."""
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    reason = "log in as a user of the broker"
    if scheme.lower() != "basic":
        raise Refusal(UNKNOWN, reason, ASK_FOR_LOGIN)
    try:
        name, separator, password = base64.b64decode(text, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        separator = ""
    if not separator or not name or not password or "\0" in name + password:
        raise Refusal(UNKNOWN, reason, ASK_FOR_LOGIN)
    return name, password


def _shows(users: Users, mechanism: str, name: str, password: str) -> bool:
    """Whether somebody is let in by a mechanism with that password."""
    try:
        if mechanism == PLAIN:
            users.exchange(mechanism).answer(f"\0{name}\0{password}".encode())
            return True
        if mechanism in tuple(ScramMechanism):
            client = ScramClient(ScramMechanism(mechanism), name, password, is_token=False)
            server = users.exchange(mechanism)
            server.answer(client.final(server.answer(client.first())))
            return True
    except LoginFailed:
        return False
    return False
