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
# Seconds for which the rest of a request body is discarded after the response. Many clients read
# the response only after they have sent the body.
DISCARD_SECONDS = 2.0
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
        body = _Body(receive, self._rules.body_bytes_max, is_complete=not _may_have_body(scope))
        answer = _Response(send, body, self._rules.error_body)
        try:
            await self._respond(scope, body, answer)
        finally:
            if not await body.discard():
                _end_connection(scope)

    async def _respond(self, scope: Message, body: _Body, answer: _Response) -> None:
        rejection = self._rejection(scope)
        if rejection is not None:
            await answer.reject(*rejection)
            return
        with trio.move_on_after(self._rules.seconds) as limit:
            try:
                await self._app(scope, body.receive, answer.send)
            except _BodyTooLarge:
                await answer.reject(TOO_LARGE, "the body is too large (http.max.request.bytes)")
        if limit.cancelled_caught:
            reason = "the request took too long (http.request.timeout.ms)"
            if scope["method"] not in SAFE_METHODS:
                reason += "; check whether the change was made before you repeat it"
            await answer.reject(TOO_LATE, reason)

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
    """A request body with a size limit.

    Attributes:
        is_complete: True if nothing more will be received.
        is_too_large: True if the body exceeds the limit.
    """

    def __init__(self, receive: Receive, bytes_max: int, *, is_complete: bool) -> None:
        self.is_complete = is_complete
        self.is_too_large = False
        self._is_endless = False
        self._receive = receive
        self._left = bytes_max

    async def receive(self) -> Message:
        message = await self._receive_part()
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            self.is_too_large = True
            raise _BodyTooLarge
        return message

    async def discard(self) -> bool:
        """Discard the rest, and return True if the body ended within `DISCARD_SECONDS`."""
        if not (self.is_complete or self._is_endless):
            with trio.move_on_after(DISCARD_SECONDS):
                while not self.is_complete:
                    await self._receive_part()
            self._is_endless = not self.is_complete
        return self.is_complete

    async def _receive_part(self) -> Message:
        message = await self._receive()
        if not message.get("more_body", False):  # the last part, or the client has disconnected
            self.is_complete = True
        return message


class _Response:
    """A response to which security headers are added.

    The response ends after the request body has ended. Otherwise hypercorn would wait forever for
    the application to receive the body.
    """

    def __init__(self, send: Send, body: _Body, error_body: Callable[[int, str], bytes]) -> None:
        self._send = send
        self._body = body
        self._error_body = error_body
        self._has_begun = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if self._body.is_too_large and message["status"] != TOO_LARGE:
                raise _BodyTooLarge  # the application responds with another error
            self._has_begun = True
            message["headers"] = [*message.get("headers", ()), *SECURITY_HEADERS]
        elif not (message.get("more_body", False) or self._body.is_complete):
            await self._send({**message, "more_body": True})
            if not await self._body.discard():
                return  # the guard ends the connection
            message = {"type": message["type"], "body": b""}
        await self._send(message)

    async def reject(self, status: int, reason: str) -> None:
        """Send an error response instead; if the response has begun, leave the body incomplete."""
        if self._has_begun:
            return
        body = self._error_body(status, reason)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})


def _may_have_body(scope: Message) -> bool:
    """Return True if the request may have a body. In HTTP/2, no header says so."""
    if not scope.get("http_version", "").startswith("1"):
        return True
    return any(name in (b"content-length", b"transfer-encoding") for name, _ in scope["headers"])


def _end_connection(scope: Message) -> None:
    """Close the connection of a request whose body does not end."""
    end = scope.get("extensions", {}).get(END_CONNECTION)
    if end is not None:
        end()


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
