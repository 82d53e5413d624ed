"""A rate limit for replicas that are not in sync (KIP-73).

`leader.replication.throttled.rate` and `follower.replication.throttled.rate` limit the bytes per
second of the replicas in a topic's `*.replication.throttled.replicas`. In-sync replicas are never
throttled: producers wait for them.
"""

from __future__ import annotations

import math

# Maximum burst after an idle period, as seconds of the rate.
BURST_SECONDS = 1.0


class Throttle:
    """A token bucket in bytes per second; times are seconds of a monotonic clock.

    The balance may become negative, because the size of a response is known afterwards; later
    requests wait until it is positive again.
    """

    __slots__ = ("_left", "_seen", "rate")

    def __init__(self, rate: float = math.inf) -> None:
        self.rate = rate
        self._left = rate * BURST_SECONDS
        self._seen = -math.inf

    def set_rate(self, rate: float) -> None:
        """Apply another rate."""
        if rate != self.rate:
            self.rate = rate
            self._left = rate * BURST_SECONDS

    def wait_seconds(self, now: float) -> float:
        """Return how long the next bytes must wait in seconds; 0 if not at all."""
        self._refill(now)
        if self._left > 0:
            return 0.0
        return (1 - self._left) / self.rate if self.rate > 0 else math.inf

    def count(self, size: int, now: float) -> None:
        """Count transferred bytes."""
        self._refill(now)
        self._left -= size

    def _refill(self, now: float) -> None:
        if self.rate == math.inf:
            return
        passed = now - self._seen if self._seen > -math.inf else 0.0
        self._seen = now
        self._left = min(self._left + passed * self.rate, self.rate * BURST_SECONDS)


def names_replica(throttled: tuple[str, ...], index: int, node_id: int) -> bool:
    """Return True if a list of throttled replicas names the replica of a partition on a node."""
    return "*" in throttled or f"{index}:{node_id}" in throttled
