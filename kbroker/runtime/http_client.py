"""HTTP/1.1 client connection on trio: JSON posts, small downloads, and streamed responses.

h11 implements the protocol. Unlike most HTTP clients, this one reports whether a request was sent
before an error. Code that changes metadata needs to know that.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

import h11
import trio

# Maximum bytes per read from a socket.
RECEIVE_BYTES = 64 * 1024
HTTP_OK = 200


class HttpError(Exception):
    """A request has failed; `message` has the reason."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ConnectionFailed(HttpError):
    """The connection could not be opened: nothing was sent."""


class NoResponse(HttpError):
    """The connection was closed, or the time was over, before the response was complete."""


async def connect(
    url: SplitResult, seconds: float, trusted: ssl.SSLContext | None
) -> HttpConnection:
    """Connect to the host of a URL.

    Args:
        url: URL.
        seconds: Maximum seconds to wait.
        trusted: TLS context for https.

    Returns:
        The connection.

    Raises:
        ConnectionFailed: The connection could not be opened.
    """
    host, port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
    stream: trio.abc.Stream
    try:
        with trio.fail_after(seconds):
            if url.scheme == "https":
                secured = await trio.open_ssl_over_tcp_stream(
                    host, port, ssl_context=trusted, https_compatible=True
                )
                try:
                    await secured.do_handshake()
                except BaseException:
                    await trio.aclose_forcefully(secured)
                    raise
                stream = secured
            else:
                stream = await trio.open_tcp_stream(host, port)
    except (OSError, trio.TooSlowError, trio.BrokenResourceError) as error:
        raise ConnectionFailed(_reason(error)) from error
    return HttpConnection(stream, url.netloc)


class HttpConnection:
    """One connection, for one request at a time. Call `close` at the end."""

    def __init__(self, stream: trio.abc.Stream, host: str) -> None:
        self._stream = stream
        self._host = host
        self._http = h11.Connection(h11.CLIENT)
        self._answer: h11.Response | None = None

    async def close(self) -> None:
        """Close the connection at once."""
        await trio.aclose_forcefully(self._stream)

    @property
    def is_reusable(self) -> bool:
        """True if another request may follow. Check it only at the end of a response."""
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            return True
        return False

    @property
    def date(self) -> str | None:
        """Date header of the last response, or None."""
        headers = () if self._answer is None else self._answer.headers
        return next((value.decode() for name, value in headers if name == b"date"), None)

    async def post(self, path: str, message: Any, headers: Mapping[str, str]) -> int:
        """Send a message as JSON. Return the status of the response.

        Raises:
            NoResponse: There is no complete response header.
        """
        body = json.dumps(message).encode()
        return await self.ask("POST", path, body, {"Content-Type": "application/json", **headers})

    async def ask(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> int:
        """Send a request. Return the status of the response.

        Raises:
            NoResponse: There is no complete response header.
        """
        all_headers = {"Host": self._host, "Content-Length": str(len(body)), **headers}
        request = h11.Request(method=method, target=path, headers=[*all_headers.items()])
        parts = (request, h11.Data(data=body), h11.EndOfMessage())
        try:
            await self._stream.send_all(b"".join(self._http.send(part) or b"" for part in parts))
        except (OSError, trio.BrokenResourceError) as error:
            raise NoResponse(_reason(error)) from error
        answer = await self._next()
        while isinstance(answer, h11.InformationalResponse):
            answer = await self._next()
        assert isinstance(answer, h11.Response)
        self._answer = answer
        return answer.status_code

    async def body(self, bytes_max: int | None = None) -> bytes:
        """Return the rest of the response body.

        Args:
            bytes_max: Maximum size in bytes; None for no limit.

        Raises:
            NoResponse: The body is incomplete or too large.
        """
        parts = []
        size = 0
        while (part := await self.next_part()) is not None:
            parts.append(part)
            size += len(part)
            if bytes_max is not None and size > bytes_max:
                raise NoResponse(f"the response is larger than {bytes_max} bytes")
        return b"".join(parts)

    async def next_part(self) -> bytes | None:
        """Return the next part of the response body, None at its end.

        Raises:
            NoResponse: The body is incomplete.
        """
        event = await self._next()
        return bytes(event.data) if isinstance(event, h11.Data) else None

    async def _next(self) -> h11.Event:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(bytes(await self._stream.receive_some(RECEIVE_BYTES)))
        except (OSError, trio.BrokenResourceError, h11.RemoteProtocolError) as error:
            raise NoResponse(_reason(error)) from error
        if not isinstance(event, h11.Event) or isinstance(event, h11.ConnectionClosed):
            raise NoResponse("the connection was closed")
        return event


class Fetched(NamedTuple):
    """Response to one request."""

    status: int
    body: bytes


async def fetch(
    url: str,
    *,
    seconds: float,
    bytes_max: int,
    trusted: ssl.SSLContext | None,
    method: str = "GET",
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
) -> Fetched:
    """Send one request over a new connection. Redirects (3xx) are not followed.

    Args:
        url: URL.
        seconds: Maximum seconds for the whole request.
        bytes_max: Maximum size of the response body, in bytes.
        trusted: TLS context for https.
        method: HTTP method.
        body: Request body.
        headers: Request headers.

    Returns:
        The response.

    Raises:
        ConnectionFailed: The connection could not be opened.
        NoResponse: The response is incomplete, late or too large.
    """
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    with trio.move_on_after(seconds):
        connection = await connect(parts, seconds, trusted)
        try:
            status = await connection.ask(method, path, body, headers or {})
            return Fetched(status, await connection.body(bytes_max))
        finally:
            with trio.CancelScope(shield=True):
                await connection.close()
    raise NoResponse(f"no response within {seconds:g} seconds")


def _reason(error: Exception) -> str:
    found = error.__cause__ or error
    while isinstance(found, ExceptionGroup):  # one exception for each address of a host
        found = found.exceptions[0]
    return str(found) or type(found).__name__
