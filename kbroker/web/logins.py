"""Who asks by HTTP: the broker's own users, who show their passwords by HTTP Basic (RFC 7617).

Clients show the same with each request, and a look at it by SCRAM takes milliseconds of a processor. So what
was right is good for `GOOD_SECONDS`, as long as the listener's users are the same; of it a keyed hash is kept,
and no password.
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
from kbroker.security.scram import ScramClient, ScramMechanism
from kbroker.security.users import PLAIN, Users

GOOD_SECONDS = 60
"""How long what somebody has shown is good."""
KNOWN_MAX = 1_000
"""Names and passwords that are known to be right."""
THREADS = 1
"""Passwords that are looked at by SCRAM at the same time."""
UNKNOWN, FORBIDDEN = 401, 403
ASK_FOR_LOGIN = {"www-authenticate": 'Basic realm="kbroker", charset="UTF-8"'}
WRONG = "the user or the password is wrong"


class NotLetIn(Exception):
    """A request of somebody unknown, with the reason and the status of its answer."""

    def __init__(self, status: int, reason: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = headers


class Surface(NamedTuple):
    """What is served by HTTP.

    `name` is as sentences name it, `flag` what the flags for its address begin with; `is_exposed` says
    that other machines reach it.
    """

    name: str
    flag: str
    is_exposed: bool


class Caller(NamedTuple):
    """Who asks.

    `shown` stands for the name and the password, and `credentials` is as whom a client logs in for it;
    without logins there are none.
    """

    principal: Principal = ANONYMOUS
    shown: bytes = b""
    credentials: Credentials | None = None


class _Known(NamedTuple):
    """What was right, of which users, and until when it is good."""

    mechanism: str
    users: Users
    until: float


class Logins:
    """Of one node and what it serves by HTTP."""

    def __init__(self, local: LocalNode, surface: Surface) -> None:
        self._local = local
        self._surface = surface
        self._key = secrets.token_bytes(32)
        self._known: dict[bytes, _Known] = {}
        self._threads = trio.CapacityLimiter(THREADS)

    @property
    def listener(self) -> Listener:
        """That whose users are asked for."""
        return listener_of(self._local.listeners)

    async def caller(self, authorization: str, host: str) -> Caller:
        """Who asks, by the header of that name, and from which address.

        Somebody unknown hears of it a while later (KIP-306), whether there is such a user or not. Raises
        NotLetIn.
        """
        reason = why_nobody(self._local.listeners, self._surface)
        if reason:
            raise NotLetIn(FORBIDDEN, reason)
        users = self.listener.users
        if users is None:
            return Caller()
        name, password = _basic(authorization)
        shown = hmac.digest(self._key, f"{name}\0{password}".encode(), "sha256")
        known = self._known.get(shown)
        if known is None or known.users is not users or trio.current_time() >= known.until:
            mechanism = await self._mechanism_of(users, name, password, host)
            known = self._keep(shown, mechanism, users)
        return Caller(Principal(USER, name), shown, Credentials(known.mechanism, name, password))

    def _keep(self, shown: bytes, mechanism: str, users: Users) -> _Known:
        self._known.pop(shown, None)
        while len(self._known) >= KNOWN_MAX:
            del self._known[next(iter(self._known))]
        known = _Known(mechanism, users, trio.current_time() + GOOD_SECONDS)
        self._known[shown] = known
        return known

    async def _mechanism_of(self, users: Users, name: str, password: str, host: str) -> str:
        """By which mechanism somebody is let in. Raises NotLetIn for somebody else."""
        node, listener = self._local.node, self.listener.name
        mechanism: str
        for mechanism in users.mechanisms:
            if await self._shows(users, mechanism, name, password):
                node.audit.log_authentication(
                    Client(Principal(USER, name), host), listener, mechanism
                )
                return mechanism
        node.audit.log_authentication_failure(host, listener, "HTTP", name, WRONG)
        await trio.sleep(node.config.failed_login_delay_ms / 1000)
        raise NotLetIn(UNKNOWN, WRONG, ASK_FOR_LOGIN)

    async def _shows(self, users: Users, mechanism: str, name: str, password: str) -> bool:
        """Whether somebody is let in by a mechanism with that password."""
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
    """Where users log in, if there is such a one."""
    return next((each for each in listeners if each.users is not None), listeners[0])


def why_nobody(listeners: Sequence[Listener], surface: Surface) -> str:
    """Why nobody can show who it is; empty where somebody can, or need not."""
    listener = listener_of(listeners)
    users = listener.users
    if users is None:
        if not listener.requires_client_certificate:
            return ""
        return (
            f"clients of listener {listener.name} show certificates, which {surface.name} does not take: "
            "add a listener with logins"
        )
    if not {PLAIN, *ScramMechanism} & set(users.mechanisms):
        return f"users of listener {listener.name} log in by tokens, which {surface.name} does not take"
    if surface.is_exposed:
        return (
            f"users log in here, and their passwords could be read on the way: let {surface.name} listen "
            f"on 127.0.0.1 ({surface.flag}-host), and reach it through a tunnel or a proxy with TLS"
        )
    return ""


def is_exposed(host: str) -> bool:
    """Whether other machines reach what listens there."""
    return host not in LOOPBACK_NAMES


def _basic(authorization: str) -> tuple[str, str]:
    """The name and the password of a request. Raises NotLetIn."""
    scheme, _, text = authorization.partition(" ")
    separator = ""
    if scheme.lower() == "basic":
        try:
            decoded = base64.b64decode(text.strip(), validate=True).decode()
            name, separator, password = decoded.partition(":")
        except ValueError:  # not base64, not ASCII, or not UTF-8
            separator = ""
    if not separator or not name or not password or "\0" in name + password:
        raise NotLetIn(UNKNOWN, "log in as a user of the broker", ASK_FOR_LOGIN)
    return name, password
