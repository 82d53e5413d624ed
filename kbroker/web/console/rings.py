"""Ring buffers of samples."""

from __future__ import annotations

from array import array

# Seconds between two samples, and the number of samples that are kept.
SAMPLE_SECONDS = 5
SAMPLES = 120
UNKNOWN = -1


class Ring:
    """Ring buffer of the last samples, oldest first; `UNKNOWN` for a missing sample."""

    __slots__ = ("_at", "_values", "seen_at")

    def __init__(self) -> None:
        self._values = array("q", [UNKNOWN]) * SAMPLES
        self._at = 0
        self.seen_at = 0

    def add(self, value: int | None, sample: int) -> None:
        """Add a sample; skipped samples in between count as unknown."""
        for _ in range(min(sample - self.seen_at - 1, SAMPLES) if self.seen_at else 0):
            self._put(UNKNOWN)
        self._put(UNKNOWN if value is None else value)
        self.seen_at = sample

    def _put(self, value: int) -> None:
        self._values[self._at] = value
        self._at = (self._at + 1) % SAMPLES

    def values(self) -> list[int | None]:
        """Return all samples, oldest first; None for an unknown sample."""
        ordered = [*self._values[self._at :], *self._values[: self._at]]
        return [None if each == UNKNOWN else each for each in ordered]


def rate(count: int, seconds: float) -> int:
    """Return a rate per second, rounded; 0 if no time passed or the count was reset."""
    return round(max(count, 0) / seconds) if seconds else 0
