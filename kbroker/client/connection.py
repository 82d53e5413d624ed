"""One connection to one broker, one request at a time."""

from __future__ import annotations

import math
import select
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import trio

from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.headers import decode_response, encode_request

from .endpoint import Endpoint
from .errors import TimedOut

CLIENT_ID = "kbroker"
ANSWER_BYTES_MAX = 128 * 1024 * 1024
ANSWER_SECONDS = 60
"""How long a broker may take; requests that it may hold back name a time of half of that."""
CONNECT_SECONDS = 5

Answer: TypeAlias = Any
"""A response. Its class follows from the API key of the request, which type checkers do not know."""
Ask: TypeAlias = Callable[..., Awaitable[Answer]]
"""As `Connection.ask`."""
Dial: TypeAlias = Callable[[Endpoint], Awaitable[trio.abc.Stream]]
"""Connects to an address. Raises OSError."""


class Connection:
    """A connection to a broker. Get one from `connect`.

    `versions` are what the broker serves by API key, first and last; empty before `negotiate`.
    Requests of several tasks wait for each other. `broken` says that a request was not answered, so
    that no other one can be.
    """

    def __init__(self, stream: trio.abc.Stream, client_id: str = CLIENT_ID) -> None:
        self._stream = stream
        self._client_id = client_id
        self._correlation_id = 0
        self._turn = trio.Lock()
        self._renew: Callable[[Ask], Awaitable[None]] | None = None
        self._renew_at = math.inf
        self.broken = False
        self.replacement: Callable[[], Awaitable[Connection]] | None = None
        """Returns the connection for requests that waited for this one while it broke."""
        self.versions: dict[int, tuple[int, int]] = {}

    @property
    def is_hung_up(self) -> bool:
        """Whether the broker has closed, also when nobody has come to read that yet.

        False where the system does not tell.
        """
        stream = self._stream
        if isinstance(stream, trio.SSLStream):
            stream = stream.transport_stream
        return isinstance(stream, trio.SocketStream) and _has_closed(stream.socket.fileno())

    async def request(self, key: ApiKey, version: int, message: object) -> Answer:
        """Send one request and return its response.

        Raises:
            OSError: The connection ends before the response.
            DecodeError: The response is malformed.
        """
        async with self._turn:
            # A request that was given up has left its response for the next one to read.
            if not self.broken:
                return await self._request(key, version, message)
        if self.replacement is None:
            raise ConnectionResetError("the connection broke before this request was sent")
        return await (await self.replacement()).request(key, version, message)

    async def _request(self, key: ApiKey, version: int, message: object) -> Answer:
        try:
            if self._is_renewal_due:
                await self._log_in_again()
            return await self._exchange(key, version, message)
        except BaseException:
            self.broken = True  # also if it is cancelled: the response may still come
            raise

    def renew_after(self, seconds: float, renew: Callable[[Ask], Awaitable[None]]) -> None:
        """Have `renew` log in again before the first request after that time (KIP-368)."""
        self._renew, self._renew_at = renew, trio.current_time() + seconds

    @property
    def _is_renewal_due(self) -> bool:
        return trio.current_time() >= self._renew_at

    async def _log_in_again(self) -> None:
        assert self._renew is not None
        try:
            await self._renew(self._ask_alone)
        except BaseException:
            self.broken = True
            raise

    async def _ask_alone(self, message: object, *, oldest: int = 0) -> Answer:
        """As `ask`, for who has the connection's turn already."""
        return await self._exchange(*self._choose(message, oldest, None), message)

    async def _exchange(self, key: ApiKey, version: int, message: object) -> Answer:
        await self._send(key, version, message)
        frame = await self._receive_frame()
        correlation_id, response = decode_response(messages.response_class(key), frame, version)
        if correlation_id != self._correlation_id:
            raise OSError(f"answer {correlation_id} to request {self._correlation_id}")
        return response

    async def _receive_frame(self) -> bytearray:
        try:
            (size,) = struct.unpack(">i", await self._receive(4))
            if not 0 < size <= ANSWER_BYTES_MAX:
                raise OSError(f"an answer of {size} bytes: this is not a Kafka broker")
            return await self._receive(size)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise _broken(error) from error

    async def _send(self, key: ApiKey, version: int, message: object) -> None:
        self._correlation_id += 1
        parts: list[Any] = list(
            encode_request(key, version, self._correlation_id, self._client_id, message)
        )
        try:
            await self._stream.send_all(b"".join(parts))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise _broken(error) from error

    async def _receive(self, size: int) -> bytearray:
        """The next `size` bytes, in a buffer that nobody else has."""
        data = bytearray(size)
        left = memoryview(data)
        while left:
            received = await self._receive_into(left)
            if not received:
                raise ConnectionResetError("the broker closed the connection")
            left = left[received:]
        return data

    async def _receive_into(self, buffer: memoryview) -> int:
        """Fill a part of `buffer`, return how much. Sockets do it without a copy."""
        stream = self._stream
        if isinstance(stream, trio.SocketStream):
            return await stream.socket.recv_into(buffer)
        some = await stream.receive_some(len(buffer))
        buffer[: len(some)] = some
        return len(some)

    async def negotiate(self) -> None:
        """Learn which APIs and versions the broker serves. Raises OSError or DecodeError."""
        hello = messages.request_class(ApiKey.API_VERSIONS)(
            client_software_name=CLIENT_ID, client_software_version="1"
        )
        answer = await self.request(ApiKey.API_VERSIONS, 3, hello)
        self.versions = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}

    async def ask(
        self,
        message: object,
        *,
        oldest: int = 0,
        newest: int | None = None,
        seconds: float | None = None,
    ) -> Answer:
        """Send a request in the newest version that both sides speak, and return its response.

        Parameters: `oldest` and `newest` are the versions that `message` is made for; `seconds` is
        how long the answer may take (None: `ANSWER_SECONDS`). Raises what `request` raises, KafkaError UNSUPPORTED_VERSION
        when there is no such version, and TimedOut.
        """
        key, version = self._choose(message, oldest, newest)
        seconds = ANSWER_SECONDS if seconds is None else seconds
        with trio.move_on_after(seconds):
            return await self.request(key, version, message)
        raise TimedOut(
            f"no answer to {key.api_name} within {seconds:g} s; "
            "`kbroker cluster health` tells which broker does not answer"
        )

    async def tell(self, message: object, *, newest: int | None = None) -> None:
        """Send a request that is not answered: Produce with acks=0."""
        if self._is_renewal_due:
            async with self._turn:
                await self._log_in_again()
        await self._send(*self._choose(message, 0, newest), message)

    def _choose(self, message: Any, oldest: int, newest: int | None) -> tuple[ApiKey, int]:
        key = ApiKey(message.KEY)
        served_first, served_last = self.versions.get(key, (0, -1))
        ours_first, ours_last = message.VERSIONS[0], message.VERSIONS[-1]
        version = min(served_last, ours_last if newest is None else newest)
        if version < max(served_first, ours_first, oldest):
            served = f"{served_first} to {served_last}" if served_last >= 0 else "none"
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"this broker does not serve {key.api_name} in a version that this command "
                f"speaks (it serves {served})",
            )
        return key, version

    async def aclose(self) -> None:
        """Close the connection."""
        await self._stream.aclose()


def _has_closed(descriptor: int) -> bool:
    """Whether the peer of a socket has closed; what is to be read before does not matter."""
    if descriptor < 0 or not hasattr(select, "POLLRDHUP"):
        return False
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP)  # an error is told in any case
    return bool(poll.poll(0))


def _broken(error: Exception) -> OSError:
    refused = _refused_certificate(error.__cause__)
    return ConnectionResetError(refused or f"the connection broke: {error.__cause__ or error}")


async def dial_tcp(endpoint: Endpoint) -> trio.abc.Stream:
    """Connect over TCP. Raises OSError."""
    return await trio.open_tcp_stream(*endpoint)


async def open_connection(
    host: str,
    port: int,
    client_id: str = CLIENT_ID,
    patience_seconds: float = CONNECT_SECONDS,
    tls: ssl.SSLContext | None = None,
    dial: Dial = dial_tcp,
) -> Connection:
    """Open a connection by `dial`, encrypted with `tls`, to be closed by the caller.

    Raises OSError when that takes too long, or when the two sides do not come together.
    """
    stream: trio.abc.Stream
    with trio.move_on_after(patience_seconds) as scope:
        stream = await dial(Endpoint(host, port))
        if tls is not None:
            stream = await encrypted(stream, Endpoint(host, port), tls)
    if scope.cancelled_caught:
        raise OSError(f"no connection to {host}:{port} within {patience_seconds:g} seconds")
    return Connection(stream, client_id)


async def encrypted(
    stream: trio.abc.Stream, endpoint: Endpoint, tls: ssl.SSLContext
) -> trio.abc.Stream:
    """Agree on keys with who is at the other end, which is to be `endpoint`. Raises OSError."""
    # Neither side waits for the other one's farewell: the length of an answer says when it is whole.
    secured = trio.SSLStream(stream, tls, server_hostname=endpoint.host, https_compatible=True)
    try:
        await secured.do_handshake()
    except BaseException as error:
        await trio.aclose_forcefully(stream)
        if isinstance(error, trio.BrokenResourceError):
            raise OSError(_no_tls(endpoint, error.__cause__)) from None
        raise
    return secured


def _no_tls(endpoint: Endpoint, cause: BaseException | None) -> str:
    if isinstance(cause, ssl.SSLCertVerificationError):
        return (
            f"the certificate of {endpoint} is not accepted: {cause.verify_message}; "
            "ssl.truststore.location names the certificates that are"
        )
    refused = _refused_certificate(cause)
    if refused:
        return f"{endpoint}: {refused}"
    reason = getattr(cause, "reason", None) or cause or "the connection was closed"
    return f"no TLS with {endpoint} ({reason}); is it a listener with security.protocol=SSL?"


def _refused_certificate(cause: BaseException | None) -> str | None:
    """What the broker has against the client's certificate, if that is why it hangs up.

    In TLS 1.3 the client learns that where it waits for its first answer (RFC 8446, 4.4.2.4).
    """
    reason = str(getattr(cause, "reason", None))
    if "ALERT_CERTIFICATE_REQUIRED" in reason:
        return "the broker asks for the client's certificate; ssl.keystore.location names it"
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        return (
            f"the broker does not accept the client's certificate ({reason}); ssl.keystore.location "
            "names another one"
        )
    return None


@asynccontextmanager
async def connect(
    host: str,
    port: int,
    patience_seconds: float = CONNECT_SECONDS,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Connection]:
    """Open a connection to a broker. Raises OSError when there is none within that time."""
    connection = await open_connection(host, port, patience_seconds=patience_seconds, tls=tls)
    try:
        yield connection
    finally:
        with trio.CancelScope(shield=True):
            await connection.aclose()
