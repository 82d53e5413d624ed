"""Count of distinct keys in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable

# Number of hashes kept. Up to this number, the count is exact.
KEPT = 100_000
_HALF, _ALL = 1 << 63, 1 << 64


class Distinct:
    """Counter of distinct hashes: exact up to `kept`, an estimate above.

    It keeps the `kept` smallest hashes ("k minimum values"). Hashes are distributed uniformly, so
    the largest one kept determines the estimate. Its standard error is 1/sqrt(kept), 0.3 % by
    default. Memory: at most about 16 MB.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._hashes: set[int] = set()
        # Larger hashes are ignored.
        self._below = _HALF

    def add(self, hashes: Iterable[int]) -> None:
        """Add hashes (signed 64-bit integers)."""
        below = self._below
        self._hashes.update(one for one in hashes if one < below)
        if len(self._hashes) > 2 * self._kept:
            self._shrink()

    def _shrink(self) -> None:
        if len(self._hashes) > self._kept:
            smallest = sorted(self._hashes)[: self._kept]
            self._hashes, self._below = set(smallest), smallest[-1]

    @property
    def is_exact(self) -> bool:
        """True if `count` is exact."""
        self._shrink()
        return self._below == _HALF

    def count(self) -> int:
        """Return the number of distinct hashes."""
        if self.is_exact:
            return len(self._hashes)
        return round((self._kept - 1) * _ALL / (max(self._hashes) + _HALF))
