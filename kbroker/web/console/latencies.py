"""Percentiles of response times over the last ten minutes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kbroker.node.request_metrics import RequestMetrics
from kbroker.protocol.api_keys import ApiKey
from kbroker.runtime.timings import BUCKETS

from .rings import Ring

PERCENTILES = (50, 99)
# APIs whose requests wait for records or for other members, so that their time says nothing.
WAITING = frozenset(
    (
        ApiKey.FETCH,
        ApiKey.SHARE_FETCH,
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
    )
)
PRODUCE = frozenset((ApiKey.PRODUCE,))
OTHERS = frozenset(ApiKey) - WAITING - PRODUCE


class Latencies:
    """Percentiles of the response times of some APIs, in microseconds.

    Args:
        keys: The APIs.
    """

    def __init__(self, keys: Collection[ApiKey]) -> None:
        self._keys = sorted(keys)
        self._rings = {percent: Ring() for percent in PERCENTILES}
        self._counts = [0] * BUCKETS

    def sample(self, metrics: Sequence[RequestMetrics], number: int) -> None:
        """Add the percentiles of all responses since the last sample.

        Args:
            metrics: Request metrics of each node of this process.
            number: Number of the sample.
        """
        counts = [0] * BUCKETS
        for each in metrics:
            for key in self._keys:
                if each.requests[key]:
                    fresh = each.times[key].counts
                    counts = [one + more for one, more in zip(counts, fresh, strict=True)]
        fresh = [max(new - old, 0) for new, old in zip(counts, self._counts, strict=True)]
        self._counts = counts
        for percent, ring in self._rings.items():
            ring.add(percentile(fresh, percent) if number > 1 else None, number)

    def values(self) -> dict[str, list[int | None]]:
        """Return the samples by name of the percentile, such as `p99`."""
        return {f"p{percent}": ring.values() for percent, ring in self._rings.items()}


def percentile(counts: Sequence[int], percent: int) -> int | None:
    """Estimate a percentile of a histogram in microseconds; None without values.

    Args:
        counts: See `Timings.counts`; values are assumed to be spread evenly in their bucket.
        percent: The percentile.
    """
    rank = sum(counts) * percent / 100
    if not rank:
        return None
    for power, count in enumerate(counts):
        if count >= rank:
            least = (1 << power) >> 1 if power else 0
            return round(least + ((1 << power) - least) * rank / count)
        rank -= count
    return 1 << len(counts)
