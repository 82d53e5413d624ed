"""The requests of one connection: from frames to handlers, and their results to `Replies`.

`Connection` feeds received bytes into `Requests.frames` and calls `handle_some`. Requests are
handled in arrival order, and each one completes its ordered work (append, join, create) before the
next one begins. A handler that returns an awaitable has more ordered work to do: `handle_some`
returns it to the connection, which awaits it.

Only a Produce request follows another Produce request at once. Every other request first waits
until the records of the requests before it are appended, so that it sees them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kbroker.handlers.api_versions import unsupported_version_response
from kbroker.handlers.context import Api, Context, DisconnectError, Peer
from kbroker.handlers.security import authenticate
from kbroker.node.client_quota_manager import QuotaCharge
from kbroker.node.request_memory import Claim
from kbroker.partitions.waiters import Outcome, Pending, Waiting
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compile import (
    TooManyElementsError,
    decode_counted,
    decode_in_slices,
)
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.framing import FrameReader
from kbroker.protocol.headers import RequestHeader, decode_request_header
from kbroker.protocol.messages import response_class
from kbroker.protocol.schema import Message, as_message
from kbroker.security.errors import AuthenticationError

from .replies import PRODUCE, SMALL_ROWS, Replies, wire_logger

if TYPE_CHECKING:
    from kbroker.node.node import Node
    from kbroker.runtime.time_slices import TimeSlice
    from kbroker.security.login import Login

# A request of at most this size and this number of array elements is decoded in less than a time slice.
SMALL_BYTES = 32 * 1024
DECODED_AT_ONCE = 1000
# A larger request with at most this many array elements also takes less than a time slice: the rest
# is record batches, which are not decoded, and strings of at most 32 KiB.
SMALL_ELEMENTS = 64
# Produce requests of at most this size are handled in a row, up to LIGHT_MAX, before the end of the
# time slice is checked.
LIGHT_BYTES = 1024
LIGHT_MAX = 16

# Requests that only brokers send; they are not charged to quotas.
_INTER_BROKER = frozenset({ApiKey.WRITE_TXN_MARKERS})
# The header for replies to raw SASL messages, which have no header of their own.
_RAW_SASL = RequestHeader(int(ApiKey.SASL_AUTHENTICATE), 0, 0, None)


class Request(NamedTuple):
    """A decoded request, and the number of its array elements."""

    api: Api
    header: RequestHeader
    body: Message
    rows: int


class Interceptor(Protocol):
    """Interceptor of the requests of one connection, with which the test kit injects faults."""

    def identify(self, header: RequestHeader) -> None:
        """Inspect a request's header before its version is checked."""
        ...

    def dispatch(self, request: Request) -> Awaitable[None] | None:
        """Handle a request in place of `Requests.dispatch`."""
        ...

    def finished(self) -> None:
        """Notify the interceptor that all complete requests have been handled."""
        ...


class Requests:
    """Decoder and dispatcher of one connection's requests, with authentication and quotas.

    Args:
        node: The node that serves the connection.
        apis: The served APIs by key.
        peer: The client.
        replies: Queue for the reply to each request.
        time_slice: The client's time slices.
        claim: Memory of large incomplete requests.
        frame_bytes_max: Maximum size in bytes of a request after authentication.
        now: Returns the time in seconds of the event loop's clock.
    """

    __slots__ = (
        "_activity",
        "_charge",
        "_frame_bytes_max",
        "_has_appends",
        "_login",
        "_node",
        "_now",
        "_peer",
        "_quotas",
        "_read_at",
        "_replies",
        "_request_metrics",
        "apis",
        "claim",
        "count",
        "frames",
        "interceptor",
        "is_aborted",
        "must_yield",
        "time_slice",
    )

    def __init__(
        self,
        node: Node,
        apis: Mapping[int, Api],
        peer: Peer,
        replies: Replies,
        time_slice: TimeSlice,
        claim: Claim,
        *,
        frame_bytes_max: int,
        now: Callable[[], float],
    ) -> None:
        self.apis = apis
        self.frames = FrameReader(frame_bytes_max)
        # Number of received requests.
        self.count = 0
        # True if the time slice is over and complete requests may be left.
        self.must_yield = False
        # True if no more requests are handled.
        self.is_aborted = False
        self.interceptor: Interceptor | None = None
        self._node = node
        self._peer = peer
        self._replies = replies
        self.time_slice = time_slice
        self.claim = claim
        self._now = now
        self._frame_bytes_max = frame_bytes_max
        self._quotas = node.cluster.client_quotas
        self._request_metrics = node.request_metrics
        # Request statistics of each client for the web console; None if there is no console.
        self._activity = node.activity
        # Quota charge of the current request; None if there are no quotas.
        self._charge: QuotaCharge | None = None
        # Time at which the current request was read, in seconds of `time.perf_counter`.
        self._read_at = 0.0
        # True if a queued reply may wait for an append.
        self._has_appends = False
        # The client's authentication; None after an authentication without expiry.
        self._login = peer.login
        if self._login is not None:
            self.frames.limit = node.config.login_bytes_max

    @property
    def is_throttled(self) -> bool:
        """Return True if complete requests have to wait for the end of a throttle time (KIP-219).

        A large request that is partly received is received to its end, because it holds memory.
        """
        return self._replies.throttled_until is not None and not self.frames.held

    @property
    def awaits_authentication(self) -> bool:
        """Return True until the client has sent its first request and is authenticated."""
        return not self.count or (self._login is not None and not self._login.has_session)

    def needs_memory(self) -> bool:
        """Count the received bytes of a large request, and return True if no memory is left."""
        missing = self.frames.missing
        if not missing:
            return False
        self.claim.count(self.frames.held, missing)
        return not self.claim.may_continue

    # -- handling

    def begin(self, now: float) -> None:
        """Begin a time slice for the requests that were just read.

        Args:
            now: Time of the event loop's clock, in seconds.
        """
        self.time_slice.begin(now)
        self._read_at = time.perf_counter()

    def handle_some(self) -> Awaitable[None] | None:
        """Handle complete requests until one has to be awaited or the time slice is over.

        Returns:
            The rest of a request's ordered work, after which the caller calls `finish_one`. None if
            no request has to be awaited. Then `must_yield` is True if complete requests may be left.

        Raises:
            DisconnectError: The connection has to be closed.
            FrameError: The bytes are not frames.
            DecodeError: A request is malformed.
        """
        self.must_yield = False
        light = 0
        for frame in self.frames:
            unfinished = self._handle_frame(frame)
            if unfinished is not None:
                return unfinished
            is_throttled = self._replies.throttled_until is not None
            if self._has_appends and not is_throttled and len(frame) <= LIGHT_BYTES:
                light += 1
                if light <= LIGHT_MAX:
                    continue
            light = 0
            if self.finish_one():
                self.must_yield = True
                break
            if self.is_aborted or self._replies.throttled_until is not None:
                break
        return None

    def finish_one(self) -> bool:
        """Release what a handled request held.

        Returns:
            True if other connections have to be served before the next request.

        Raises:
            DisconnectError: The authentication failed.
        """
        if self._login is not None:
            self._check_login(self._login)
        self.claim.release()
        return self.time_slice.is_over or self._replies.is_full

    def _handle_frame(self, frame: memoryview) -> Awaitable[None] | None:
        if self._login is not None and self._login.takes_raw_messages:
            return self._handle_raw_sasl(self._login, bytes(frame))
        header, offset = decode_request_header(frame)
        self.count += 1
        self._charge = None if self._quotas.of_clients is None else self._charge_of(header, frame)
        if self._login is not None:
            self._require_login(self._login, header)
        if header.api_key == PRODUCE:
            self._has_appends = True
        elif self._has_appends:
            return self._decode_after_appends(header, frame, offset)
        return self._decode(header, frame, offset)

    async def _decode_after_appends(
        self, header: RequestHeader, frame: memoryview, offset: int
    ) -> None:
        for reply in self._replies.pending_produces():
            await reply.until_ready()
        self._has_appends = False
        unfinished = None if self.is_aborted else self._decode(header, frame, offset)
        if unfinished is not None:
            await unfinished

    def _decode(
        self, header: RequestHeader, frame: memoryview, offset: int
    ) -> Awaitable[None] | None:
        if self.interceptor is not None:
            self.interceptor.identify(header)
        api = self.apis.get(header.api_key)
        if api is None or header.api_version not in api.versions:
            self._reject_version(header)
            return None
        if self._replies.is_closed and api.read_only:
            return None
        elements_max = SMALL_ELEMENTS if len(frame) > SMALL_BYTES else DECODED_AT_ONCE
        try:
            body, _, rows = decode_counted(
                api.request_class, frame, header.api_version, offset, elements_max
            )
        except TooManyElementsError:
            return self._decode_in_slices(api, header, frame, offset)
        return self._dispatch_decoded(api, header, body, rows)

    async def _decode_in_slices(
        self, api: Api, header: RequestHeader, frame: memoryview, offset: int
    ) -> None:
        """Decode a request with many array elements in time slices, and handle it.

        Only a few requests that read are handled concurrently, because each takes much memory. Other
        requests may wait for nodes that wait for this node.
        """
        if not api.read_only:
            await self._decode_and_dispatch_in_slices(api, header, frame, offset)
            return
        async with self._node.limits.large_reads.taken(self._peer.host):
            if not self._replies.is_closed:
                await self._decode_and_dispatch_in_slices(api, header, frame, offset)

    async def _decode_and_dispatch_in_slices(
        self, api: Api, header: RequestHeader, frame: memoryview, offset: int
    ) -> None:
        elements_max = self._node.config.request_max_elements
        version = header.api_version
        decoding = self.time_slice.finish(
            decode_in_slices(api.request_class, frame, version, offset, objects_max=elements_max)
        )
        charge = self._charge
        body, _, rows = await (decoding if charge is None else charge.timed(decoding))
        unfinished = self._dispatch_decoded(api, header, body, rows)
        if unfinished is not None:
            await unfinished

    def _dispatch_decoded(
        self, api: Api, header: RequestHeader, body: Message, rows: int
    ) -> Awaitable[None] | None:
        if self._replies.is_traced:
            wire_logger.debug("%s > %s %s", self._peer.host, header, body)
        if self.interceptor is not None:
            return self.interceptor.dispatch(Request(api, header, body, rows))
        return self.dispatch(api, header, body, rows)

    def dispatch(
        self, api: Api, header: RequestHeader, body: Message, rows: int
    ) -> Awaitable[None] | None:
        """Call a request's handler and add its reply.

        Args:
            api: The request's API.
            header: The request's header.
            body: The decoded request.
            rows: The number of array elements in the request.

        Returns:
            The rest of the request's ordered work, or None if that work is done.
        """
        charge = self._charge
        self._request_metrics.requests[header.api_key] += 1
        if self._activity is not None:
            self._activity.count_request(self._peer, header.client_id, header.api_key)
        result = self.call_handler(api, header, body, rows)
        if result is None or isinstance(result, (Message, Pending, Waiting)):
            if rows > SMALL_ROWS:
                return self._replies.add_in_slices(header, result, charge, self._read_at, rows)
            self._replies.add(header, result, charge, self._read_at, rows)
            return None
        work = result if charge is None else charge.timed(result)
        return self._await_handler(header, work, rows)

    def call_handler(
        self, api: Api, header: RequestHeader, body: Message, rows: int
    ) -> Outcome[Message] | Awaitable[Outcome[Message]]:
        """Call a request's handler; see `dispatch`."""
        charge = self._charge
        context = Context(
            self._node,
            self.apis,
            self._peer,
            header.client_id,
            header.api_key,
            header.api_version,
            self.time_slice,
            rows,
            charge,
        )
        if charge is None:
            return api.handler(context, body)
        began = self._now()
        result = api.handler(context, body)
        charge.add_time_since(began)
        return result

    def reply(self, header: RequestHeader, result: Outcome[Message]) -> None:
        """Add the reply to the current request."""
        self._replies.add(header, result, self._charge, self._read_at)

    async def _await_handler(
        self, header: RequestHeader, work: Awaitable[Outcome[Message]], rows: int
    ) -> None:
        result = await work
        await self._replies.add_in_slices(header, result, self._charge, self._read_at, rows)

    def _charge_of(self, header: RequestHeader, frame: memoryview) -> QuotaCharge | None:
        if header.api_key in _INTER_BROKER:
            return None
        user = self._peer.client.principal.name
        return self._node.quota_manager.charge(user, header.client_id, len(frame))

    def _reject_version(self, header: RequestHeader) -> None:
        """Reply to an unknown version of ApiVersions (KIP-511), and close for any other API."""
        if header.api_key == ApiKey.API_VERSIONS:
            self.reply(
                header._replace(api_version=0), as_message(unsupported_version_response(self.apis))
            )
            return
        software = self._peer.software or "unknown software"
        raise DisconnectError(
            f"{_api_name(header.api_key)} version {header.api_version}, sent by {software}, "
            "is not supported"
        )

    # -- authentication

    def _require_login(self, login: Login, header: RequestHeader) -> None:
        """Raise DisconnectError for a request that is not allowed in this state of the authentication.

        During a SASL exchange, Kafka replies to any other request before it closes the connection.
        """
        objection = login.objection(header.api_key, self._now())
        if not objection:
            return
        api = self.apis.get(header.api_key)
        if login.is_under_way and api is not None and header.api_version in api.versions:
            self.reply(header, _illegal_sasl_state(header.api_key))
        raise DisconnectError(f"{_api_name(header.api_key)} {objection}")

    async def _handle_raw_sasl(self, login: Login, message: bytes) -> None:
        """Answer a SASL message without a header, as after SaslHandshake version 0 (KIP-43)."""
        try:
            answer = await authenticate(self._node, self._peer, login, message)
        except AuthenticationError:
            return  # `finish_one` closes the connection
        framed = len(answer).to_bytes(4, "big") + answer
        self._replies.add_parts(_RAW_SASL, [framed], self._read_at)

    def _check_login(self, login: Login) -> None:
        """Apply the state of the authentication after a request.

        Raises:
            DisconnectError: The authentication failed.
        """
        if login.failure:
            self._node.audit.log_authentication_failure(
                self._peer.host, self._peer.listener, login.mechanism, login.claimed, login.failure
            )
            raise DisconnectError(f"authentication failed: {login.failure}")
        if login.is_done:
            if self._peer.client.principal != login.principal:
                self._peer.set_principal(login.principal)
                if self._activity is not None:
                    self._activity.record_login(self._peer)
            self.frames.limit = self._frame_bytes_max
            if math.isinf(login.ends_at):
                self._login = None
        else:
            self.frames.limit = self._node.config.login_bytes_max


def _illegal_sasl_state(key: int) -> Message:
    """Return a response with ILLEGAL_SASL_STATE, if the API's response has an error code."""
    response = response_class(key)()
    if hasattr(response, "error_code"):
        response.error_code = ErrorCode.ILLEGAL_SASL_STATE
    return response


def _api_name(key: int) -> str:
    try:
        return f"{ApiKey(key).api_name} ({key})"
    except ValueError:
        return f"API key {key}"
