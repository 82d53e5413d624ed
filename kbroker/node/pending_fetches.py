"""Limit of the partitions of pending fetches, over all connections."""

from __future__ import annotations

from collections import Counter

# A fetch of at most this number of partitions may always wait, and does not count.
PARTITIONS_FREE = 8
# Fraction of the limit that the fetches of one address may use.
SHARE_OF_HOST = 0.5


class PendingFetches:
    """Number of partitions of the fetches that wait for records.

    A pending fetch holds about 0.6 kB for each of its partitions. Above the limit, a fetch is
    answered at once, and its client is throttled instead.

    Args:
        limit: Maximum number of partitions.

    Attributes:
        partitions: Current number of partitions.
    """

    def __init__(self, limit: int) -> None:
        self.partitions = 0
        self._limit = limit
        self._of_host: Counter[str] = Counter()

    def try_add(self, host: str, partitions: int) -> bool:
        """Count a fetch, and return True if it may wait.

        Args:
            host: Address of the client.
            partitions: Number of partitions that the client fetches.
        """
        if partitions <= PARTITIONS_FREE:
            return True
        of_host = self._of_host[host] + partitions
        if self.partitions + partitions > self._limit or of_host > self._limit * SHARE_OF_HOST:
            if of_host == partitions:
                del self._of_host[host]
            return False
        self.partitions += partitions
        self._of_host[host] = of_host
        return True

    def remove(self, host: str, partitions: int) -> None:
        """Stop counting a fetch that `try_add` accepted."""
        if partitions > PARTITIONS_FREE:
            self.partitions -= partitions
            self._of_host[host] -= partitions
            if not self._of_host[host]:
                del self._of_host[host]
