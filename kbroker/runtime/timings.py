"""How long things took, counted in whole numbers: cheap enough for what happens with each request."""

from __future__ import annotations

BUCKETS = 28
"""The last one is for all that took more than a minute."""


class Timings:
    """A count for each power of two of microseconds: `counts[n]` took less than ``2**n`` of them, and
    at least half of that. `seconds` is the sum of all."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.seconds = 0.0

    def took(self, seconds: float, times: int = 1) -> None:
        """Something took so long, so many times."""
        self.seconds += seconds * times
        bucket = int(seconds * 1e6).bit_length()
        self.counts[bucket if bucket < BUCKETS else -1] += times
