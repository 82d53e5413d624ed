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
from .errors import HandshakeFailed, LoginRejected, TimedOut, TlsExpected

CLIENT_ID = "kbroker"
ANSWER_BYTES_MAX = 128 * 1024 * 1024
# First two bytes of a TLS alert: its type, and the major version.
TLS_ALERT = 0x1503
# Time limit for a response. Requests that a broker may delay specify half of it.
ANSWER_SECONDS = 60
CONNECT_SECONDS = 5
NO_LOGIN = (
    "the broker answered ApiVersions and closed the connection at the next request; the listener may "
    "require authentication: set security.protocol, sasl.mechanism and the user (sasl.jaas.config)"
)

# A response. Its class depends on the API key of the request, which type checkers cannot infer.
Answer: TypeAlias = Any
# Same signature as `Connection.ask`.
Ask: TypeAlias = Callable[..., Awaitable[Answer]]
# Opens a stream to an address. Raises OSError.
Dial: TypeAlias = Callable[[Endpoint], Awaitable[trio.abc.Stream]]


class Connection:
    """One connection to a broker. Create it with `connect`.

    Several tasks may use it; their requests run one after the other.

    Attributes:
        versions: Lowest and highest served version by API key; empty before `negotiate`.
        features: Finalized level by feature (KIP-584); empty before `negotiate`.
        broken: True after a request without a response, when no other request can be sent.
        replacement: Returns a new connection for requests that were queued when this one broke.
        on_close: Called before the connection is closed, or None.
    """

    def __init__(self, stream: trio.abc.Stream, client_id: str = CLIENT_ID) -> None:
        self._stream = stream
        self._client_id = client_id
        self._correlation_id = 0
        self._lock = trio.Lock()
        self._renew: Callable[[Ask], Awaitable[None]] | None = None
        self._renew_at = math.inf
        # True if ApiVersions is the last answered request, which needs no authentication.
        self._is_first_after_versions = False
        self.broken = False
        self.replacement: Callable[[], Awaitable[Connection]] | None = None
        self.on_close: Callable[[Connection], None] | None = None
        self.versions: dict[int, tuple[int, int]] = {}
        self.features: dict[str, int] = {}

    @property
    def is_closed_by_peer(self) -> bool:
        """True if the broker has closed the connection, even if nothing has read the EOF yet.

        Always False on platforms that cannot report this.
        """
        stream = self._stream
        if isinstance(stream, trio.SSLStream):
            stream = stream.transport_stream
        return isinstance(stream, trio.SocketStream) and _has_closed(stream.socket.fileno())

    @property
    def is_idle(self) -> bool:
        """True if no request is in flight or queued."""
        return not self._lock.locked()

    async def request(
        self, key: ApiKey, version: int, message: object, seconds: float = math.inf
    ) -> Answer:
        """Send a request and return its response.

        Args:
            key: API key.
            version: API version to encode.
            message: The request.
            seconds: Time limit for the response. The time in which earlier requests of this
                connection wait for their responses does not count.

        Raises:
            TimedOut: The broker does not respond in time.
            OSError: The connection closes before the response arrives.
            DecodeError: The response is malformed.
        """
        async with self._lock:
            # After an abandoned request the stream still carries its response, so `broken` is set.
            if not self.broken:
                with trio.move_on_after(seconds):
                    return await self._request(key, version, message)
                raise TimedOut(
                    f"no response to {key.api_name} within {seconds:g} s",
                    hint="`kbroker cluster health` shows which broker does not respond",
                )
        if self.replacement is None:
            raise ConnectionResetError("the connection broke before this request was sent")
        return await (await self.replacement()).request(key, version, message, seconds)

    async def _request(self, key: ApiKey, version: int, message: object) -> Answer:
        try:
            if self._is_renewal_due:
                await self._reauthenticate()
            return await self._exchange(key, version, message)
        except BaseException:
            self.broken = True  # even on cancellation: the response may arrive later
            raise

    def reauthenticate_after(self, seconds: float, renew: Callable[[Ask], Awaitable[None]]) -> None:
        """Call `renew` before the first request after `seconds`, to reauthenticate (KIP-368).

        Args:
            seconds: Time from now until reauthentication is due.
            renew: Reauthenticates through the given `ask` function.
        """
        self._renew, self._renew_at = renew, trio.current_time() + seconds

    @property
    def _is_renewal_due(self) -> bool:
        return trio.current_time() >= self._renew_at

    async def _reauthenticate(self) -> None:
        assert self._renew is not None
        try:
            await self._renew(self._ask_holding_lock)
        except BaseException:
            self.broken = True
            raise

    async def _ask_holding_lock(self, message: object, *, oldest: int = 0) -> Answer:
        """Send a request like `ask`, while already holding the lock."""
        return await self._exchange(*self._choose(message, oldest, None), message)

    async def _exchange(self, key: ApiKey, version: int, message: object) -> Answer:
        try:
            await self._send(key, version, message)
            frame = await self._receive_frame()
        except ConnectionResetError:
            if self._is_first_after_versions:
                raise LoginRejected(NO_LOGIN) from None
            raise
        self._is_first_after_versions = False
        correlation_id, response = decode_response(messages.response_class(key), frame, version)
        if correlation_id != self._correlation_id:
            raise OSError(
                f"response {correlation_id} does not match request {self._correlation_id}"
            )
        return response

    async def _receive_frame(self) -> bytearray:
        try:
            (size,) = struct.unpack(">i", await self._receive(4))
            if size >> 16 == TLS_ALERT:
                raise TlsExpected(
                    "sends a TLS alert instead of a response; set security.protocol=SSL"
                )
            if not 0 < size <= ANSWER_BYTES_MAX:
                raise OSError(f"invalid response size {size}: this is not a Kafka broker")
            return await self._receive(size)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise _connection_error(error) from error

    async def _send(self, key: ApiKey, version: int, message: object) -> None:
        self._correlation_id += 1
        parts: list[Any] = list(
            encode_request(key, version, self._correlation_id, self._client_id, message)
        )
        try:
            await self._stream.send_all(b"".join(parts))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise _connection_error(error) from error

    async def _receive(self, size: int) -> bytearray:
        """Return the next `size` bytes in a new buffer."""
        data = bytearray(size)
        unfilled = memoryview(data)
        while unfilled:
            received = await self._receive_into(unfilled)
            if not received:
                raise ConnectionResetError("the broker closed the connection")
            unfilled = unfilled[received:]
        return data

    async def _receive_into(self, buffer: memoryview) -> int:
        """Read into `buffer` and return the number of bytes; sockets avoid a copy."""
        stream = self._stream
        if isinstance(stream, trio.SocketStream):
            return await stream.socket.recv_into(buffer)
        some = await stream.receive_some(len(buffer))
        buffer[: len(some)] = some
        return len(some)

    async def negotiate(self) -> None:
        """Query the API versions of the broker and the features of the cluster.

        Raises:
            OSError: The connection closes before the response arrives.
            DecodeError: The response is malformed.
        """
        hello = messages.request_class(ApiKey.API_VERSIONS)(
            client_software_name=CLIENT_ID, client_software_version="1"
        )
        answer = await self.request(ApiKey.API_VERSIONS, 3, hello)
        self.versions = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
        self.features = {row.name: row.max_version_level for row in answer.finalized_features}
        self._is_first_after_versions = True

    async def ask(
        self,
        message: object,
        *,
        oldest: int = 0,
        newest: int | None = None,
        seconds: float | None = None,
    ) -> Answer:
        """Send a request in the newest version that both sides support; return its response.

        Args:
            message: The request.
            oldest: Lowest version that can express the message.
            newest: Highest version that can express the message, or None for no limit.
            seconds: Time limit for the response, or None for `ANSWER_SECONDS`.

        Raises:
            KafkaError: The two sides have no version in common (UNSUPPORTED_VERSION).
            TimedOut: The broker does not respond in time.
            OSError: The connection closes before the response arrives.
            DecodeError: The response is malformed.
        """
        key, version = self._choose(message, oldest, newest)
        limit = ANSWER_SECONDS if seconds is None else seconds
        return await self.request(key, version, message, limit)

    async def send_without_response(self, message: object, *, newest: int | None = None) -> None:
        """Send a request that gets no response: Produce with acks=0.

        Args:
            message: The request.
            newest: Highest version that can express the message, or None for no limit.

        Raises:
            KafkaError: The two sides have no version in common (UNSUPPORTED_VERSION).
            OSError: The connection is closed or broken.
        """
        key, version = self._choose(message, 0, newest)
        async with self._lock:
            if self.broken:
                raise ConnectionResetError("the connection broke before this request was sent")
            try:
                if self._is_renewal_due:
                    await self._reauthenticate()
                await self._send(key, version, message)
            except BaseException:
                self.broken = True  # even on cancellation: a part of the request may be sent
                raise

    def _choose(self, message: Any, oldest: int, newest: int | None) -> tuple[ApiKey, int]:
        key = ApiKey(message.KEY)
        served_first, served_last = self.versions.get(key, (0, -1))
        ours_first, ours_last = message.VERSIONS[0], message.VERSIONS[-1]
        version = min(served_last, ours_last if newest is None else newest)
        if version < max(served_first, ours_first, oldest):
            served = f"{served_first} to {served_last}" if served_last >= 0 else "none"
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the broker does not support {key.api_name} in a version that this client "
                f"supports (served versions: {served})",
            )
        return key, version

    async def aclose(self) -> None:
        """Close the connection; later requests use `replacement` or raise ConnectionResetError."""
        self.broken = True
        if self.on_close is not None:
            self.on_close(self)
        await self._stream.aclose()


def _has_closed(descriptor: int) -> bool:
    """Return True if the peer has closed a socket, even if unread data is left."""
    if descriptor < 0 or not hasattr(select, "POLLRDHUP"):
        return False
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP)  # poll always reports errors
    return bool(poll.poll(0))


def _connection_error(error: Exception) -> OSError:
    rejection = _certificate_rejection(error.__cause__)
    return ConnectionResetError(rejection or f"the connection broke: {error.__cause__ or error}")


async def dial_tcp(endpoint: Endpoint) -> trio.abc.Stream:
    """Open a TCP stream. Raises OSError."""
    return await trio.open_tcp_stream(*endpoint)


async def open_connection(
    host: str,
    port: int,
    client_id: str = CLIENT_ID,
    patience_seconds: float = CONNECT_SECONDS,
    tls: ssl.SSLContext | None = None,
    dial: Dial = dial_tcp,
) -> Connection:
    """Open a connection; the caller closes it.

    Args:
        host: Host name or IP address.
        port: TCP port.
        client_id: Client ID sent with each request.
        patience_seconds: Time limit for connecting, including the TLS handshake.
        tls: TLS context, or None for plaintext.
        dial: Opens the transport stream.

    Raises:
        OSError: The connection or the TLS handshake fails or times out.
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
    """Perform the TLS handshake as client and return the encrypted stream.

    Args:
        stream: The plaintext stream; closed if the handshake fails.
        endpoint: Address whose host the certificate must match.
        tls: TLS context.

    Raises:
        HandshakeFailed: The handshake fails.
    """
    # Skip close_notify: the length prefix of a response already detects truncation.
    secured = trio.SSLStream(stream, tls, server_hostname=endpoint.host, https_compatible=True)
    try:
        await secured.do_handshake()
    except BaseException as error:
        await trio.aclose_forcefully(stream)
        if isinstance(error, trio.BrokenResourceError):
            raise HandshakeFailed(_tls_error(endpoint, error.__cause__)) from None
        raise
    return secured


def _tls_error(endpoint: Endpoint, cause: BaseException | None) -> str:
    if isinstance(cause, ssl.SSLCertVerificationError):
        return (
            f"the certificate of {endpoint} is not trusted: {cause.verify_message}; "
            "set ssl.truststore.location to the certificates to trust"
        )
    rejection = _certificate_rejection(cause)
    if rejection:
        return f"{endpoint}: {rejection}"
    reason = getattr(cause, "reason", None) or cause or "the connection was closed"
    return f"TLS handshake with {endpoint} failed ({reason}); is it an SSL listener?"


def _certificate_rejection(cause: BaseException | None) -> str | None:
    """Return why the broker rejected the client's certificate, or None for other causes.

    With TLS 1.3 the client learns this only when it reads the first response (RFC 8446, 4.4.2.4).
    """
    reason = str(getattr(cause, "reason", None))
    if "ALERT_CERTIFICATE_REQUIRED" in reason:
        return "the broker requires a client certificate; set ssl.keystore.location"
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        return (
            f"the broker rejected the client certificate ({reason}); set ssl.keystore.location to "
            "another one"
        )
    return None


@asynccontextmanager
async def connect(
    host: str,
    port: int,
    patience_seconds: float = CONNECT_SECONDS,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Connection]:
    """Yield an open connection to a broker and close it at the end.

    Args:
        host: Host name or IP address.
        port: TCP port.
        patience_seconds: Time limit for connecting, including the TLS handshake.
        tls: TLS context, or None for plaintext.

    Raises:
        OSError: The connection or the TLS handshake fails or times out.
    """
    connection = await open_connection(host, port, patience_seconds=patience_seconds, tls=tls)
    try:
        yield connection
    finally:
        with trio.CancelScope(shield=True):
            await connection.aclose()
