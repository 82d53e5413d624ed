"""Client quotas: measures what clients use of a node and computes their throttle times.

Each node measures separately, as in Kafka: a quota of 1 MB/s is 1 MB/s per node (KIP-13). A client
that exceeds its quota gets its response at once, with the time for which the node mutes it (KIP-219).
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import NamedTuple, TypeVar

import trio

from kbroker.cluster.client_quotas import ClientQuotas
from kbroker.config import BrokerConfig
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.runtime.clock import Clock
from kbroker.runtime.rates import Meters, Rate, TokenBucket, Windows
from kbroker.runtime.timed_steps import in_timed_steps
from kbroker.security.quotas import Limit, Limits, QuotaKey, canonical

Result = TypeVar("Result")

# Maximum number of characters of a client ID. Longer IDs are truncated, which bounds the memory.
NAME_MAX = 512
CONSUMED, PRODUCED = QuotaKey.CONSUMER_BYTE_RATE, QuotaKey.PRODUCER_BYTE_RATE
REQUESTS, MUTATIONS = QuotaKey.REQUEST_PERCENTAGE, QuotaKey.CONTROLLER_MUTATION_RATE
PERCENT = 100.0
# Maximum throttle time, an int32 in responses.
THROTTLE_MS_MAX = 2**31 - 1


class MeasuredRate(NamedTuple):
    """Measured rate of a client, and the throttle time that follows from it."""

    per_second: float
    wait_ms: int


NOTHING = MeasuredRate(0.0, 0)


class ClientQuotaManager:
    """The rates of all clients with a quota on one node."""

    def __init__(self, quotas: ClientQuotas, config: BrokerConfig, clock: Clock) -> None:
        self._quotas = quotas
        self._clock = clock
        windows = Windows(config.quota_window_num, config.quota_window_size_seconds * 1000)
        # Maximum throttle time for the request quota, in milliseconds (KIP-124).
        self.request_wait_ms_max = windows.size_ms
        self.bytes_windows_seconds = (windows.number - 1) * windows.size_ms / 1000
        self.rates = {key: Meters(lambda: Rate(windows)) for key in (CONSUMED, PRODUCED, REQUESTS)}
        self.buckets = Meters(
            lambda: TokenBucket(
                Windows(
                    config.controller_quota_window_num,
                    config.controller_quota_window_size_seconds * 1000,
                )
            )
        )
        self._connections = Meters(lambda: Rate(windows))

    @property
    def now_ms(self) -> int:
        return self._clock.monotonic_ms()

    def charge(self, user: str, client_id: str | None, size: int) -> QuotaCharge | None:
        """Return the quota charge of a request, or None if no client has a quota.

        Args:
            user: Name of the authenticated user.
            client_id: Client ID from the request header.
            size: Size of the request, in bytes.
        """
        limits = self._quotas.of_clients
        return None if limits is None else QuotaCharge(self, limits, user, client_id or "", size)

    def connection_wait_seconds(self, address: str) -> float:
        """Return the throttle time for a new connection in seconds, 0 for none (KIP-612)."""
        limits = self._quotas.of_addresses
        limit = None if limits is None else limits.find(address)
        if limit is None:
            return 0.0
        now_ms = self.now_ms
        rate = self._connections.of(canonical(address), now_ms)
        rate.count(1, now_ms)
        wait_ms = rate.wait_ms(limit, now_ms)
        if wait_ms:
            rate.count(-1, now_ms)  # the connection is rejected
        return min(wait_ms, self.request_wait_ms_max) / 1000


class QuotaCharge:
    """The quota usage of one request, and the throttle time that follows from it.

    The charge looks quotas up when it needs them, so that changes apply at once. The time of a
    request is the time that the event loop works on it, and that threads work on its batches. Other
    threads, and waiting, do not count.
    """

    __slots__ = (
        "_client_id",
        "_is_charged",
        "_limits",
        "_manager",
        "_resumed_at",
        "_seconds",
        "_user",
        "is_muted",
        "size",
        "throttle_ms",
    )

    def __init__(
        self,
        manager: ClientQuotaManager,
        limits: Mapping[QuotaKey, Limits],
        user: str,
        client_id: str,
        size: int,
    ) -> None:
        self.size = size
        # Time for which the node mutes the client, in milliseconds.
        self.throttle_ms = 0
        # True once the node has muted the client.
        self.is_muted = False
        self._manager = manager
        self._limits = limits
        self._user = user
        self._client_id = client_id[:NAME_MAX]
        self._seconds = 0.0
        self._is_charged = False
        self._resumed_at = 0.0

    def exempt(self) -> None:
        """Exempt the request from all quotas, because no client sent it."""
        self._limits = {}

    # -- bytes

    def produce(self) -> None:
        """Charge the bytes of a Produce request."""
        self._throttle(self._count(PRODUCED, self.size).wait_ms)

    def fetch_bytes_max(self) -> float | None:
        """Return the maximum response size: the quota of all windows but one. None without quota."""
        limit = self._limit(CONSUMED)
        return None if limit is None else limit.rate * self._manager.bytes_windows_seconds

    def try_charge_records(self, size: int) -> bool:
        """Charge fetched bytes, and return True if the client may get them now.

        If not, the charge is reverted. A client without fetched bytes in the windows always gets
        them, and is throttled afterwards. Otherwise it would never get a batch that is larger than
        the quota of all windows, as in Kafka.
        """
        is_first = not self._count(CONSUMED, 0).per_second
        measured = self._count(CONSUMED, size)
        self._throttle(measured.wait_ms)
        if not self.charge_time() or (is_first and measured.wait_ms):
            return True
        self._count(CONSUMED, -size)
        return False

    def charge_records(self, size: int) -> None:
        """Charge fetched bytes without a check. The client is throttled afterwards."""
        self._throttle(self._count(CONSUMED, size).wait_ms)

    # -- controller mutations

    def charge_partitions(self, count: int, *, strict: bool) -> None:
        """Charge created or deleted partitions (KIP-599).

        Args:
            count: Number of partitions.
            strict: Raise an error above the quota. Otherwise accept the request, and throttle the
                client afterwards.

        Raises:
            KafkaError: THROTTLING_QUOTA_EXCEEDED.
        """
        limit = self._limit(MUTATIONS)
        if limit is None:
            return
        now_ms = self._manager.now_ms
        bucket = self._manager.buckets.of((limit.user, limit.client_id), now_ms)
        if not strict:
            bucket.take(count, limit.rate, now_ms)
        wait_ms = bucket.wait_ms(limit.rate, now_ms)
        self._throttle(wait_ms)
        if strict and wait_ms:
            raise KafkaError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                "The throttling quota has been exceeded (controller_mutation_rate); try again in "
                f"{wait_ms} ms",
            )
        if strict:
            bucket.take(count, limit.rate, now_ms)

    # -- time

    async def timed(self, work: Awaitable[Result]) -> Result:
        """Await work, and count the time that the event loop is busy with it."""
        return await in_timed_steps(work, self._on_resumed, self._on_paused)

    def _on_resumed(self, now: float) -> None:
        self._resumed_at = now

    def _on_paused(self, now: float) -> None:
        self._count_seconds(now - self._resumed_at)

    def add_time_since(self, began: float) -> None:
        """Count the time since `began`, in seconds of trio's clock."""
        self._count_seconds(trio.current_time() - began)

    def _count_seconds(self, seconds: float) -> None:
        if self._is_charged:
            # Too late for the throttle time of this response.
            self._count(REQUESTS, seconds * PERCENT)
        else:
            self._seconds += seconds

    def add_thread_time(self, seconds: float) -> None:
        """Count the seconds that a thread worked for the client."""
        self._seconds += seconds

    def charge_time(self) -> int:
        """Charge the time of the request, and return the throttle time in milliseconds."""
        if not self._is_charged:
            self._is_charged = True
            measured = self._count(REQUESTS, self._seconds * PERCENT)
            self._throttle(min(measured.wait_ms, self._manager.request_wait_ms_max))
        return self.throttle_ms

    def _throttle(self, wait_ms: int) -> None:
        self.throttle_ms = min(max(self.throttle_ms, wait_ms), THROTTLE_MS_MAX)

    def _count(self, key: QuotaKey, value: float) -> MeasuredRate:
        """Add a value to the rate of a quota, and return the rate."""
        limit = self._limit(key)
        if limit is None:
            return NOTHING
        now_ms = self._manager.now_ms
        rate = self._manager.rates[key].of((limit.user, limit.client_id), now_ms)
        rate.count(value, now_ms)
        return MeasuredRate(rate.per_second(now_ms), rate.wait_ms(limit.rate, now_ms))

    def _limit(self, key: QuotaKey) -> Limit | None:
        limits = self._limits.get(key)
        return limits.find(self._user, self._client_id) if limits else None
