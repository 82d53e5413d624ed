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

NAME_MAX = 512
"""Client ids that begin with so many same characters are one: nobody keeps what a client made up."""
CONSUMED, PRODUCED = QuotaKey.CONSUMER_BYTE_RATE, QuotaKey.PRODUCER_BYTE_RATE
REQUESTS, MUTATIONS = QuotaKey.REQUEST_PERCENTAGE, QuotaKey.CONTROLLER_MUTATION_RATE
PERCENT = 100.0
THROTTLE_MS_MAX = 2**31 - 1
"""What an answer has room for."""


class Taken(NamedTuple):
    """What a client has taken lately, and for how long it waits for that."""

    per_second: float
    wait_ms: int


NOTHING = Taken(0.0, 0)


class ClientQuotaManager:
    """The rates of all clients with a quota on one node."""

    def __init__(self, quotas: ClientQuotas, config: BrokerConfig, clock: Clock) -> None:
        self._quotas = quotas
        self._clock = clock
        windows = Windows(config.quota_window_num, config.quota_window_size_seconds * 1000)
        self.request_wait_ms_max = windows.size_ms
        """Maximum throttle time for the request quota, in milliseconds (KIP-124)."""
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
        return self._clock.coordinator_ms()

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
            rate.count(-1, now_ms)  # it does not come in
        return min(wait_ms, self.request_wait_ms_max) / 1000


class QuotaCharge:
    """The quota usage of one request, and the throttle time that follows from it.

    The charge looks quotas up when it needs them, so that changes apply at once. The time of a request
    is the time that the event loop works on it, and that threads work on its batches. Other threads,
    and waiting, do not count.
    """

    __slots__ = (
        "_client_id",
        "_is_settled",
        "_limits",
        "_manager",
        "_resumed_at",
        "_seconds",
        "_user",
        "is_obeyed",
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
        self.throttle_ms = 0
        """Time for which the node mutes the client, in milliseconds."""
        self.is_obeyed = False
        """True while the client is muted."""
        self._manager = manager
        self._limits = limits
        self._user = user
        self._client_id = client_id[:NAME_MAX]
        self._seconds = 0.0
        self._is_settled = False
        self._resumed_at = 0.0

    def exempt(self) -> None:
        """Exempt the request from all quotas, because no client sent it."""
        self._limits = {}

    # -- bytes

    def produce(self) -> None:
        """The request brings records."""
        self._throttle(self._count(PRODUCED, self.size).wait_ms)

    def fetch_bytes_max(self) -> float | None:
        """What goes at most in one answer: what is good for all windows but one."""
        limit = self._limit(CONSUMED)
        return None if limit is None else limit.rate * self._manager.bytes_windows_seconds

    def takes_records(self, size: int) -> bool:
        """Whether the client gets these records now. If it does not, it has not taken them either.

        Who has taken nothing gets them in any case and waits after that: a batch that is larger than
        what its quota allows in all windows would never come, as it never does in Kafka.
        """
        is_first = not self._count(CONSUMED, 0).per_second
        taken = self._count(CONSUMED, size)
        self._throttle(taken.wait_ms)
        if not self.settle() or (is_first and taken.wait_ms):
            return True
        self._count(CONSUMED, -size)
        return False

    def gives_records(self, size: int) -> None:
        """The client gets these records, whatever it has taken: it waits after them."""
        self._throttle(self._count(CONSUMED, size).wait_ms)

    # -- changes of the cluster

    def change_partitions(self, count: int, *, strict: bool) -> None:
        """The request makes or deletes partitions (KIP-599).

        Parameters: `strict` says that its client knows what it is to do on the error; others are done
        what they ask for, and wait after it. Raises THROTTLING_QUOTA_EXCEEDED.
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
        """Do work, and count the time that the event loop is busy with it."""
        return await in_timed_steps(work, self._resumed, self._paused)

    def _resumed(self, now: float) -> None:
        self._resumed_at = now

    def _paused(self, now: float) -> None:
        self._count_seconds(now - self._resumed_at)

    def worked(self, began: float) -> None:
        """Count the time since then, in seconds of trio's clock."""
        self._count_seconds(trio.current_time() - began)

    def _count_seconds(self, seconds: float) -> None:
        if self._is_settled:
            self._count(REQUESTS, seconds * PERCENT)  # no more can be made of it
        else:
            self._seconds += seconds

    def worked_in_thread(self, seconds: float) -> None:
        """Count the time that a thread worked for the client on data that may cost much."""
        self._seconds += seconds

    def settle(self) -> int:
        """The work is done: returns for how long nothing more of the client is read, in milliseconds."""
        if not self._is_settled:
            self._is_settled = True
            taken = self._count(REQUESTS, self._seconds * PERCENT)
            self._throttle(min(taken.wait_ms, self._manager.request_wait_ms_max))
        return self.throttle_ms

    def _throttle(self, wait_ms: int) -> None:
        self.throttle_ms = min(max(self.throttle_ms, wait_ms), THROTTLE_MS_MAX)

    def _count(self, key: QuotaKey, value: float) -> Taken:
        """Count what is taken."""
        limit = self._limit(key)
        if limit is None:
            return NOTHING
        now_ms = self._manager.now_ms
        rate = self._manager.rates[key].of((limit.user, limit.client_id), now_ms)
        rate.count(value, now_ms)
        return Taken(rate.per_second(now_ms), rate.wait_ms(limit.rate, now_ms))

    def _limit(self, key: QuotaKey) -> Limit | None:
        limits = self._limits.get(key)
        return limits.find(self._user, self._client_id) if limits else None
