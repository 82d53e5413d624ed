"""Histograms of durations with integer counts, cheap enough to update for each request."""

from __future__ import annotations

# Number of buckets; the last one counts all durations above one minute.
BUCKETS = 28


class Timings:
    """Histogram of durations in powers of two of microseconds.

    Attributes:
        counts: `counts[n]` is the number of durations from ``2**(n-1)`` to below ``2**n``
            microseconds.
        seconds: Sum of all durations, in seconds.
    """

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.seconds = 0.0

    def record(self, seconds: float, times: int = 1) -> None:
        """Count a duration.

        Args:
            seconds: The duration.
            times: How often it occurred.
        """
        self.seconds += seconds * times
        bucket = int(seconds * 1e6).bit_length()
        self.counts[bucket if bucket < BUCKETS else -1] += times
