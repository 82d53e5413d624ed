"""The replies that one connection owes its client, in the order of its requests.

`Requests` adds a reply for each request. A reply is encoded at once if its response is known.
Otherwise the queue holds a `Pending` (another component sets the response) or a `Waiting` (the
connection's writer computes the response when the reply is first in the queue). `Connection` takes
the parts that are ready from the front and sends them. A reply that is not ready delays the replies
after it, never the work of later requests.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

from kbroker.partitions.waiters import Outcome, Pending, Waiting
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compile import Encoded, Part, with_throttle_time
from kbroker.protocol.headers import RequestHeader, encode_response, encode_response_in_slices
from kbroker.protocol.schema import Message

if TYPE_CHECKING:
    from kbroker.handlers.context import Peer
    from kbroker.node.client_quota_manager import QuotaCharge
    from kbroker.node.node import Node
    from kbroker.runtime.time_slices import TimeSlice

wire_logger = logging.getLogger("kbroker.protocol")

# Maximum number of unanswered requests of one connection. Above it, no more requests are read.
REPLIES_MAX = 1024
# Ready replies are sent together up to about this many bytes.
SEND_BYTES = 1 << 20
# A response to a request with at most this many array elements is encoded in one time slice.
SMALL_ROWS = 1000
# Estimated size of one row of a response that is not encoded yet.
ROW_BYTES = 128

PRODUCE = int(ApiKey.PRODUCE)  # a plain int, because each request is compared with it
_LONG_POLLS = frozenset({ApiKey.FETCH, ApiKey.SHARE_FETCH})

Parts: TypeAlias = list[Part]
Deferred: TypeAlias = Pending[Message] | Waiting[Message]
# The request's header, the encoded parts or the deferred response, the size in bytes (an estimate
# until the response is encoded), the quota charge, and the time at which the request was read.
Reply: TypeAlias = tuple[RequestHeader, Parts | Deferred, int, "QuotaCharge | None", float]


class Replies:
    """The ordered reply queue of one connection.

    Args:
        node: The node, for its limits and metrics.
        peer: The client.
        time_slice: The client's time slices, for responses that take long to encode.
        now: Returns the time in seconds of the event loop's clock.
    """

    __slots__ = (
        "_activity",
        "_bytes_max",
        "_now",
        "_peer",
        "_queued_bytes",
        "_request_metrics",
        "_time_slice",
        "is_closed",
        "is_traced",
        "on_encoded",
        "queue",
        "throttled_until",
        "unsent",
    )

    def __init__(
        self, node: Node, peer: Peer, time_slice: TimeSlice, now: Callable[[], float]
    ) -> None:
        self.queue: deque[Reply] = deque()
        # Parts that were taken from the queue and that the socket did not accept yet.
        self.unsent: Parts = []
        # True if the client has disconnected, so that replies are dropped.
        self.is_closed = False
        # True if requests and responses are logged.
        self.is_traced = wire_logger.isEnabledFor(logging.DEBUG)
        # No request is handled before this time, in seconds (KIP-219).
        self.throttled_until: float | None = None
        # Test hook: may replace the parts of a reply.
        self.on_encoded: Callable[[RequestHeader, Parts], Parts] | None = None
        self._bytes_max = node.config.connection_pending_response_bytes_max
        self._request_metrics = node.request_metrics
        self._activity = node.activity
        self._peer = peer
        self._time_slice = time_slice
        self._now = now
        self._queued_bytes = 0

    # -- state

    @property
    def is_full(self) -> bool:
        """Return True while the client must take replies before more requests are read."""
        return self.owed_bytes > self._bytes_max or len(self.queue) > REPLIES_MAX

    @property
    def owed_bytes(self) -> int:
        """Bytes of all replies that are not sent yet, with estimates for those not encoded."""
        return self._queued_bytes + sum(map(len, self.unsent))

    @property
    def has_work(self) -> bool:
        """Return True if a reply waits for anything other than records for a long poll."""
        return bool(self.unsent) or any(
            header.api_key not in _LONG_POLLS or not is_pending(reply)
            for header, reply, _, _, _ in self.queue
        )

    def pending_produces(self) -> list[Pending[Message]]:
        """Return the replies to Produce requests that are `Pending`, in order."""
        return [
            reply
            for header, reply, _, _, _ in self.queue
            if header.api_key == PRODUCE and isinstance(reply, Pending)
        ]

    # -- adding

    def add(
        self,
        header: RequestHeader,
        result: Outcome[Message],
        charge: QuotaCharge | None,
        read_at: float,
        rows: int = 0,
    ) -> None:
        """Add the reply to the next request.

        Args:
            header: The request's header.
            result: The response, a deferred response, or None if no reply is sent.
            charge: The request's quota charge, or None without quotas.
            read_at: When the request was read, in seconds of `time.perf_counter`.
            rows: The number of array elements in the request.
        """
        if charge is not None:
            result = self._charge_quota(charge, result)
        if isinstance(result, (Pending, Waiting)):
            self._append(header, result, rows * ROW_BYTES, charge, read_at)
        elif result is not None and not self.is_closed:
            parts = self._encode(header, result)
            size = len(parts[0]) if len(parts) == 1 else size_of(parts)
            self._queued_bytes += size
            self.queue.append((header, parts, size, charge, read_at))

    async def add_in_slices(
        self,
        header: RequestHeader,
        result: Outcome[Message],
        charge: QuotaCharge | None,
        read_at: float,
        rows: int,
    ) -> None:
        """Do the same as `add`, but encode a response in time slices."""
        if charge is not None:
            result = self._charge_quota(charge, result)
        if result is None:
            return
        if isinstance(result, (Pending, Waiting)):
            self._append(header, result, rows * ROW_BYTES, charge, read_at)
        elif not self.is_closed:
            parts = await self._encode_in_slices(header, result, charge)
            self._append(header, parts, size_of(parts), charge, read_at)

    def add_parts(self, header: RequestHeader, parts: Parts, read_at: float) -> None:
        """Add a reply that is complete, such as a raw SASL message (KIP-43)."""
        self._append(header, parts, size_of(parts), None, read_at)

    def _append(
        self,
        header: RequestHeader,
        reply: Parts | Deferred,
        size: int,
        charge: QuotaCharge | None,
        read_at: float,
    ) -> None:
        if self.is_closed:
            abandon(reply)
            return
        self._queued_bytes += size
        self.queue.append((header, reply, size, charge, read_at))

    def _charge_quota(self, charge: QuotaCharge, result: Outcome[Message]) -> Outcome[Message]:
        """Charge a request to its quotas, and set the throttle time in its response.

        A `Waiting` response is charged when it exists.
        """
        if isinstance(result, Waiting) or not charge.charge_time():
            return result
        if not charge.is_muted:
            charge.is_muted = True
            self.throttle(charge.throttle_ms)
        if result is None or isinstance(result, Pending):
            return result
        return with_throttle_time(result, charge.throttle_ms)

    def throttle(self, milliseconds: int) -> None:
        """Handle no further request of the client for a time."""
        until = self._now() + milliseconds / 1000
        self.throttled_until = max(self.throttled_until or until, until)

    # -- sending

    def notify_first_ready(self, notify: Callable[[], None]) -> float | None:
        """Call `notify` once the first reply is ready, if something will make it ready.

        Returns:
            The deadline of the first reply in seconds, or infinity for an empty queue. None if
            nothing will call `notify`: the reply is ready, or its response has to be awaited.
        """
        if not self.queue:
            return math.inf
        first = self.queue[0][1]
        if isinstance(first, Pending) and first.is_given and not first.ready:
            first.on_ready = notify
            return first.deadline
        return None

    def expire_first(self, now: float) -> None:
        """Resolve the first reply with its timeout response if its deadline has passed."""
        first = self.queue[0][1] if self.queue else None
        if isinstance(first, Pending) and first.deadline <= now:
            first.expire()

    @property
    def is_first_ready(self) -> bool:
        """Return True if `take_ready` takes the first reply."""
        _, reply, size, _, _ = self.queue[0]
        return isinstance(reply, list) or _is_quick(reply, size)

    async def resolve(self, first: Reply, response: Message) -> None:
        """Encode the response of the first reply, in time slices if that may take long.

        Args:
            first: The first reply of the queue.
            response: The response of its `Pending` or `Waiting`.
        """
        header, reply, size, charge, read_at = first
        if charge is not None:
            charged = self._charge_quota(charge, response)
            assert isinstance(charged, Message)
            response = charged
        if isinstance(reply, Waiting) or _is_long(size):
            parts = await self._encode_in_slices(header, response, charge)
        else:
            parts = self._encode(header, response)
        if not self.is_closed:
            encoded_size = size_of(parts)
            self._queued_bytes += encoded_size - size
            self.queue[0] = header, parts, encoded_size, charge, read_at

    def take_ready(self) -> Parts:
        """Remove the replies that are ready from the front of the queue.

        Returns:
            The parts of the removed replies in order, about `SEND_BYTES` at most.

        Raises:
            OSError: The first reply will never have a response; close the connection.
        """
        ready: Parts = []
        taken = count = key = 0
        since = 0.0
        while self.queue and taken < SEND_BYTES:
            header, reply, size, charge, read_at = self.queue[0]
            taken += size
            if not isinstance(reply, list):
                if not _is_quick(reply, size):
                    break
                response = reply.response
                if response is None:
                    raise OSError("the response was dropped")
                if charge is not None and charge.throttle_ms:
                    response = with_throttle_time(response, charge.throttle_ms)
                reply = self._encode(header, response)
                taken += size_of(reply) - size
            self.queue.popleft()
            self._queued_bytes -= size
            ready += reply
            if read_at == since and header.api_key == key:
                count += 1
            else:
                if count:
                    self._request_metrics.times[key].record(time.perf_counter() - since, count)
                count, key, since = 1, header.api_key, read_at
        if count:
            self._request_metrics.times[key].record(time.perf_counter() - since, count)
        return ready

    def end_after_first(self, error: OSError) -> None:
        """Drop all replies except the first, and raise `error` after the first one is taken."""
        while len(self.queue) > 1:
            _, reply, size, _, _ = self.queue.pop()
            self._queued_bytes -= size
            abandon(reply)

        async def fail() -> Message:
            raise error

        self.queue.append((self.queue[0][0], Waiting(fail), 0, None, 0.0))

    def abandon(self) -> None:
        """Drop all replies, because the client disconnected."""
        self.is_closed = True
        replies, self.queue = self.queue, deque()
        for _, reply, _, _, _ in replies:
            abandon(reply)
        self.unsent.clear()
        self._queued_bytes = 0

    # -- encoding

    def _encode(self, header: RequestHeader, response: Message) -> Parts:
        self._record_response(header, response)
        key, version = header.api_key, header.api_version
        parts = encode_response(header.correlation_id, key, version, response)
        return parts if self.on_encoded is None else self.on_encoded(header, parts)

    async def _encode_in_slices(
        self, header: RequestHeader, response: Message, charge: QuotaCharge | None
    ) -> Parts:
        self._record_response(header, response)
        key, version = header.api_key, header.api_version
        encoding = self._time_slice.finish(
            encode_response_in_slices(header.correlation_id, key, version, response)
        )
        parts = await (encoding if charge is None else charge.timed(encoding))
        return parts if self.on_encoded is None else self.on_encoded(header, parts)

    def _record_response(self, header: RequestHeader, response: Message) -> None:
        """Count a response in the metrics, and log it if requests are traced."""
        key = header.api_key
        if key != PRODUCE:  # the Produce handler counts rejected partitions itself
            self._request_metrics.count_errors(key, response)
        if self._activity is not None:
            self._activity.count_response(self._peer, header.client_id, key, response)
        if self.is_traced:
            shown = response.decoded() if isinstance(response, Encoded) else response
            wire_logger.debug("%s < %d %s", self._peer.host, header.correlation_id, shown)


def is_pending(reply: Parts | Deferred) -> bool:
    """Return True if the response of a reply does not exist yet."""
    return isinstance(reply, Waiting) or (isinstance(reply, Pending) and not reply.ready)


def size_of(parts: Parts) -> int:
    """Return the size of a reply in bytes."""
    return sum(map(len, parts))


def abandon(reply: Parts | Deferred) -> None:
    """Notify a deferred response that it will not be sent."""
    release = None if isinstance(reply, list) else reply.abandon
    if release is not None:
        release()


def _is_quick(reply: Deferred, size: int) -> TypeGuard[Pending[Message]]:
    """Return True if a deferred response exists and can be encoded in one time slice."""
    return not (is_pending(reply) or _is_long(size))


def _is_long(size: int) -> bool:
    """Return True if encoding a response of this estimated size takes more than a time slice."""
    return size > SMALL_ROWS * ROW_BYTES
