"""Who may ask what by HTTP, and how much of it: looked at before any page is."""

from __future__ import annotations

import json
import logging
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import trio

logger = logging.getLogger(__name__)

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

END_CONNECTION = "kbroker.end_connection"
"""An extension of the scope: what ends the connection of a request at once."""
LOOK_ONLY = ("GET", "HEAD")
SAFETY = (
    (b"cache-control", b"no-store"),
    (
        b"content-security-policy",
        (
            b"default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
            b"frame-ancestors 'none'; require-trusted-types-for 'script'"
        ),
    ),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)
"""What browsers are told with every answer."""
LENGTH_DIGITS_MAX = 18
"""Maximum number of digits of a Content-Length header: Python raises ValueError for thousands."""
FORBIDDEN, TOO_LARGE, MISDIRECTED, TOO_LATE = 403, 413, 421, 503


def error_body(_status: int, reason: str) -> bytes:
    """Return the JSON body of an error response, in the form that the console reads."""
    return json.dumps({"error": reason}).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for all requests to one server.

    `names` are those by which it may be asked, beside addresses, localhost and names without dots.
    `error_body` returns the JSON body of an error response for a status and a reason.
    """

    names: frozenset[str]
    is_read_only: bool
    body_bytes_max: int
    seconds: float
    error_body: Callable[[int, str], bytes] = error_body

    @classmethod
    def of(
        cls,
        names: Iterable[str],
        *,
        is_read_only: bool,
        body_bytes_max: int,
        seconds: float,
        error_body: Callable[[int, str], bytes] = error_body,
    ) -> Rules:
        """With the name of this machine added."""
        known = {each.lower() for each in (*names, socket.gethostname())}
        return cls(frozenset(known), is_read_only, body_bytes_max, seconds, error_body)

    def knows(self, host: str) -> bool:
        """Whether a page of somebody else cannot have got a browser to ask by this name.

        Who owns a name can let it stand for an address of this network (DNS rebinding). Nobody owns
        addresses, or a name without dots.
        """
        name = _name_of(host)
        if name is None:
            return False
        return "." not in name or name in self.names or _is_address(name)


class Guard:
    """Lets through what the rules allow. What fails behind it fails that request alone."""

    def __init__(self, app: App, rules: Rules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close"})
            return
        answer = _Answer(send, self._rules.error_body)
        refused = self._refusal(scope)
        if refused is not None:
            await answer.refuse(*refused)
            return
        body = _Body(receive, self._rules.body_bytes_max)
        with trio.move_on_after(self._rules.seconds) as limit:
            try:
                await self._app(scope, body.receive, answer.send)
            except _BodyTooLarge:
                await answer.refuse(TOO_LARGE, "the body is too large (http.max.request.bytes)")
        if limit.cancelled_caught:
            await answer.refuse(TOO_LATE, "it took too long (http.request.timeout.ms)")

    def _refusal(self, scope: Message) -> tuple[int, str] | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._rules.knows(host):
            return MISDIRECTED, (
                "this is no name of this server; ask it by its address, or add the name to "
                "http.allowed.hosts"
            )
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and _authority_of(origin) != host.lower():
            return FORBIDDEN, "pages from elsewhere may not ask this server"
        if self._rules.is_read_only and scope["method"] not in LOOK_ONLY:
            return FORBIDDEN, "beyond its own machine this server can only be read"
        if _length_of(headers) > self._rules.body_bytes_max:
            return TOO_LARGE, "the body is too large (http.max.request.bytes)"
        return None


class _BodyTooLarge(Exception):
    pass


class _Body:
    """A request's body, as far as somebody may read it."""

    def __init__(self, receive: Receive, bytes_max: int) -> None:
        self._receive = receive
        self._left = bytes_max

    async def receive(self) -> Message:
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise _BodyTooLarge
        return message


class _Answer:
    """An answer on its way out."""

    def __init__(self, send: Send, error_body: Callable[[int, str], bytes]) -> None:
        self._send = send
        self._error_body = error_body
        self._is_begun = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._is_begun = True
            message["headers"] = [*message.get("headers", ()), *SAFETY]
        await self._send(message)

    async def refuse(self, status: int, reason: str) -> None:
        """Say why there is none; of one that has begun the rest is left out."""
        if self._is_begun:
            return
        body = self._error_body(status, reason)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})


def _name_of(host: str) -> str | None:
    """The name or the address in a Host header; None where it is neither."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _authority_of(origin: str) -> str | None:
    """Return the host and port in an Origin header; None if it is malformed."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _length_of(headers: dict[bytes, bytes]) -> int:
    text = headers.get(b"content-length", b"")
    if not text.isdigit():
        return 0
    return int(text) if len(text) <= LENGTH_DIGITS_MAX else sys.maxsize
