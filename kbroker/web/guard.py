"""Checks on every HTTP request before the application: host name, origin, size and duration."""

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

# ASGI scope extension: a function that aborts the connection of a request.
END_CONNECTION = "kbroker.end_connection"
SAFE_METHODS = ("GET", "HEAD")
# Headers added to every response.
SECURITY_HEADERS = (
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
# Maximum number of digits of a Content-Length header: Python raises ValueError for thousands.
LENGTH_DIGITS_MAX = 18
# HTTP statuses.
FORBIDDEN, TOO_LARGE, MISDIRECTED, TOO_LATE = 403, 413, 421, 503


def error_body(_status: int, reason: str) -> bytes:
    """Return the JSON body of an error response, in the form that the console reads."""
    return json.dumps({"error": reason}).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules for all requests to one server.

    Attributes:
        names: Accepted host names, besides IP addresses and names without dots.
        is_read_only: Accept only GET and HEAD.
        body_bytes_max: Maximum size of a request body.
        seconds: Maximum duration of a request, in seconds.
        error_body: Returns the JSON body of an error response for a status and a reason.
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
        """Return rules that also accept the name of this machine."""
        known = {each.lower() for each in (*names, socket.gethostname())}
        return cls(frozenset(known), is_read_only, body_bytes_max, seconds, error_body)

    def accepts_host(self, host: str) -> bool:
        """Return True if a Host header cannot be the result of DNS rebinding.

        Attackers can let a name of their own domain resolve to an address of this network. They cannot
        own IP addresses or names without dots.
        """
        name = _name_of(host)
        if name is None:
            return False
        return "." not in name or name in self.names or _is_address(name)


class Guard:
    """ASGI middleware that applies the rules; an error affects only its own request."""

    def __init__(self, app: App, rules: Rules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close"})
            return
        answer = _Response(send, self._rules.error_body)
        rejection = self._rejection(scope)
        if rejection is not None:
            await answer.reject(*rejection)
            return
        body = _Body(receive, self._rules.body_bytes_max)
        with trio.move_on_after(self._rules.seconds) as limit:
            try:
                await self._app(scope, body.receive, answer.send)
            except _BodyTooLarge:
                await answer.reject(TOO_LARGE, "the body is too large (http.max.request.bytes)")
        if limit.cancelled_caught:
            await answer.reject(TOO_LATE, "the request took too long (http.request.timeout.ms)")

    def _rejection(self, scope: Message) -> tuple[int, str] | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._rules.accepts_host(host):
            return MISDIRECTED, (
                "unknown host name; use the address of this server, or add the name to "
                "http.allowed.hosts"
            )
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and _authority_of(origin) != host.lower():
            return FORBIDDEN, "cross-origin requests are not allowed"
        if self._rules.is_read_only and scope["method"] not in SAFE_METHODS:
            return FORBIDDEN, "this server is read-only on non-loopback addresses"
        if _length_of(headers) > self._rules.body_bytes_max:
            return TOO_LARGE, "the body is too large (http.max.request.bytes)"
        return None


class _BodyTooLarge(Exception):
    pass


class _Body:
    """A request body with a size limit."""

    def __init__(self, receive: Receive, bytes_max: int) -> None:
        self._receive = receive
        self._left = bytes_max

    async def receive(self) -> Message:
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise _BodyTooLarge
        return message


class _Response:
    """A response to which security headers are added."""

    def __init__(self, send: Send, error_body: Callable[[int, str], bytes]) -> None:
        self._send = send
        self._error_body = error_body
        self._has_begun = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._has_begun = True
            message["headers"] = [*message.get("headers", ()), *SECURITY_HEADERS]
        await self._send(message)

    async def reject(self, status: int, reason: str) -> None:
        """Send an error response instead; if the response has begun, leave the body incomplete."""
        if self._has_begun:
            return
        body = self._error_body(status, reason)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})


def _name_of(host: str) -> str | None:
    """Return the host name or address in a Host header; None if it is malformed."""
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
