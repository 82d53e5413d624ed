"""How fast replicas that are behind may be copied (KIP-73).

`leader.replication.throttled.rate` and `follower.replication.throttled.rate` bound the bytes per
second of those replicas that a topic's `*.replication.throttled.replicas` names. Replicas in sync
are never held back: producers wait for them.
"""

from __future__ import annotations

import math

BURST_SECONDS = 1.0
"""How much may go at once after a pause: what the rate gives in this time."""


class Throttle:
    """A rate in bytes per second; times are seconds that only rise.

    What is taken may exceed what is left, because an answer's size is known afterwards; the next
    ones wait until that is made good.
    """

    __slots__ = ("_left", "_seen", "rate")

    def __init__(self, rate: float = math.inf) -> None:
        self.rate = rate
        self._left = rate * BURST_SECONDS
        self._seen = -math.inf

    def set_rate(self, rate: float) -> None:
        """Obey another rate from now on."""
        if rate != self.rate:
            self.rate = rate
            self._left = rate * BURST_SECONDS

    def wait_seconds(self, now: float) -> float:
        """How long the next bytes have to wait; 0 when they need not."""
        self._refill(now)
        if self._left > 0:
            return 0.0
        return (1 - self._left) / self.rate if self.rate > 0 else math.inf

    def took(self, size: int, now: float) -> None:
        """Count bytes that went through."""
        self._refill(now)
        self._left -= size

    def _refill(self, now: float) -> None:
        if self.rate == math.inf:
            return
        passed = now - self._seen if self._seen > -math.inf else 0.0
        self._seen = now
        self._left = min(self._left + passed * self.rate, self.rate * BURST_SECONDS)


def names_replica(throttled: tuple[str, ...], index: int, node_id: int) -> bool:
    """Whether a topic's list of throttled replicas has that of one partition on one node."""
    return "*" in throttled or f"{index}:{node_id}" in throttled
