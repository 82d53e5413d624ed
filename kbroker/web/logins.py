"""HTTP Basic authentication (RFC 7617) with the broker's own users.

Clients send their password with each request, and SCRAM verification takes milliseconds of CPU time. A
successful login is therefore cached for `CACHE_SECONDS`, while the listener's users and the SCRAM
credential of the user stay the same. The cache key is a keyed hash, so no password is stored.
"""

from __future__ import annotations

import base64
import hmac
import secrets
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import trio

from kbroker.broker.local_node import LocalNode
from kbroker.client.credentials import Credentials
from kbroker.net.server import LOOPBACK_NAMES, Listener
from kbroker.security.acls import Client
from kbroker.security.errors import AuthenticationError
from kbroker.security.principals import ANONYMOUS, USER, Principal
from kbroker.security.scram import ScramClient, ScramCredential, ScramMechanism
from kbroker.security.users import PLAIN, Users

# How long a successful login is cached.
CACHE_SECONDS = 60
# Maximum number of cached logins.
CACHE_MAX = 1_000
# Maximum number of concurrent SCRAM verifications.
THREADS = 1
UNAUTHORIZED, FORBIDDEN = 401, 403
BASIC_CHALLENGE = {"www-authenticate": 'Basic realm="kbroker", charset="UTF-8"'}
WRONG_CREDENTIALS = "wrong user name or password"


class Unauthenticated(Exception):
    """A request without valid credentials, with the status and reason of its response."""

    def __init__(self, status: int, reason: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = headers


class HttpInterface(NamedTuple):
    """An HTTP interface.

    Attributes:
        name: Name in messages.
        flag: Prefix of the command-line flags for its address.
        is_exposed: True if other machines can reach it.
    """

    name: str
    flag: str
    is_exposed: bool


class Caller(NamedTuple):
    """The authenticated client of a request.

    Attributes:
        principal: The authenticated user, or ANONYMOUS without authentication.
        credential_hash: Keyed hash of user name and password.
        credentials: Kafka credentials of the user; None without authentication.
    """

    principal: Principal = ANONYMOUS
    credential_hash: bytes = b""
    credentials: Credentials | None = None


class _Login(NamedTuple):
    """A successful login.

    Attributes:
        mechanism: Mechanism that accepted the password.
        users: Users that the password was checked against.
        credential: SCRAM credential that it was checked against; None for PLAIN.
    """

    mechanism: str
    users: Users
    credential: ScramCredential | None

    def is_valid(self, users: Users, name: str) -> bool:
        """Return True if neither the listener's users nor the user's credential has changed."""
        return self.users is users and users.credential(self.mechanism, name) == self.credential


class _CachedLogin(NamedTuple):
    """A successful login and the time (trio clock, s) until which it is cached."""

    login: _Login
    until: float


class HttpAuthenticator:
    """Authenticates the requests to one HTTP interface of a node."""

    def __init__(self, local: LocalNode, interface: HttpInterface) -> None:
        self._local = local
        self._interface = interface
        self._key = secrets.token_bytes(32)
        self._cache: dict[bytes, _CachedLogin] = {}
        self._threads = trio.CapacityLimiter(THREADS)

    @property
    def listener(self) -> Listener:
        """Listener whose users can authenticate."""
        return listener_of(self._local.listeners)

    async def caller(self, authorization: str, host: str) -> Caller:
        """Authenticate a request.

        A failure is reported after a delay (KIP-306), regardless of whether the user exists.

        Args:
            authorization: Authorization header.
            host: Client address.

        Raises:
            Unauthenticated: The credentials are missing or wrong.
        """
        reason = login_problem(self._local.listeners, self._interface)
        if reason:
            raise Unauthenticated(FORBIDDEN, reason)
        users = self.listener.users
        if users is None:
            return Caller()
        name, password = _basic(authorization)
        credential_hash = hmac.digest(self._key, f"{name}\0{password}".encode(), "sha256")
        known = self._cache.get(credential_hash)
        login = None if known is None or trio.current_time() >= known.until else known.login
        if login is None or not login.is_valid(users, name):
            self._cache.pop(credential_hash, None)
            login = await self._authenticate(users, name, password, host)
            self._cache_login(credential_hash, login)
        return Caller(
            Principal(USER, name), credential_hash, Credentials(login.mechanism, name, password)
        )

    def _cache_login(self, credential_hash: bytes, login: _Login) -> None:
        self._cache.pop(credential_hash, None)
        while len(self._cache) >= CACHE_MAX:
            del self._cache[next(iter(self._cache))]
        self._cache[credential_hash] = _CachedLogin(login, trio.current_time() + CACHE_SECONDS)

    async def _authenticate(self, users: Users, name: str, password: str, host: str) -> _Login:
        """Return the login with the password. Raises Unauthenticated if no mechanism accepts it."""
        node, listener = self._local.node, self.listener.name
        mechanism: str
        for mechanism in users.mechanisms:
            login = _Login(mechanism, users, users.credential(mechanism, name))
            accepted = await self._accepts(users, mechanism, name, password)
            # The user may have been deleted or changed while a thread computed the hash.
            if accepted and login.is_valid(users, name):
                node.audit.log_authentication(
                    Client(Principal(USER, name), host), listener, mechanism
                )
                return login
        node.audit.log_authentication_failure(host, listener, "HTTP", name, WRONG_CREDENTIALS)
        await trio.sleep(node.config.failed_login_delay_ms / 1000)
        raise Unauthenticated(UNAUTHORIZED, WRONG_CREDENTIALS, BASIC_CHALLENGE)

    async def _accepts(self, users: Users, mechanism: str, name: str, password: str) -> bool:
        """Return True if a mechanism accepts the password."""
        try:
            if mechanism == PLAIN:
                users.exchange(mechanism).answer(f"\0{name}\0{password}".encode())
                return True
            if mechanism in tuple(ScramMechanism):
                server = users.exchange(mechanism)
                client = ScramClient(ScramMechanism(mechanism), name, password)
                first = server.answer(client.first())
                server.answer(
                    await trio.to_thread.run_sync(
                        partial(client.final, first), limiter=self._threads, abandon_on_cancel=True
                    )
                )
                return True
        except AuthenticationError:
            return False
        return False


def listener_of(listeners: Sequence[Listener]) -> Listener:
    """Return the first listener with users, else the first listener."""
    return next((each for each in listeners if each.users is not None), listeners[0])


def login_problem(listeners: Sequence[Listener], interface: HttpInterface) -> str:
    """Return why no user can authenticate; empty if a user can, or if no listener has users."""
    listener = listener_of(listeners)
    users = listener.users
    if users is None:
        if not listener.requires_client_certificate:
            return ""
        return (
            f"listener {listener.name} authenticates clients by certificates, which {interface.name} does not "
            "support; add a listener with SASL"
        )
    if not {PLAIN, *ScramMechanism} & set(users.mechanisms):
        return f"listener {listener.name} only supports tokens, which {interface.name} does not"
    if interface.is_exposed:
        return (
            f"{interface.name} would receive passwords over unencrypted HTTP; let it listen on 127.0.0.1 "
            f"({interface.flag}-host), and reach it through a tunnel or a TLS proxy"
        )
    return ""


def is_exposed(host: str) -> bool:
    """Return True if other machines can reach a host address."""
    return host not in LOOPBACK_NAMES


def _basic(authorization: str) -> tuple[str, str]:
    """Return the user name and password of an Authorization header. Raises Unauthenticated."""
    scheme, _, text = authorization.partition(" ")
    separator = ""
    if scheme.lower() == "basic":
        try:
            decoded = base64.b64decode(text.strip(), validate=True).decode()
            name, separator, password = decoded.partition(":")
        except ValueError:  # not base64, not ASCII, or not UTF-8
            separator = ""
    if not separator or not name or not password or "\0" in name + password:
        raise Unauthenticated(UNAUTHORIZED, "authenticate as a user of the broker", BASIC_CHALLENGE)
    return name, password
