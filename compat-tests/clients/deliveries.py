"""What the members of a group read and committed, in one order."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any


class Deliveries:
    """What counts as skipped and as doubled.

    A record is *doubled* if it was read again, and *again after its commit* if its group had acknowledged a
    commit behind it before: that must not be even where a broker is killed. It is *skipped* if nobody has
    read it though a commit behind it was acknowledged.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.read: Counter[tuple[int, int]] = Counter()
        self.committed: Counter[int] = Counter()
        self.again_after_commit = 0
        self.commits = 0
        self.lost: Counter[str] = Counter()

    def deliver(self, partition: int, offset: int) -> None:
        with self._lock:
            self.read[partition, offset] += 1
            self.again_after_commit += offset < self.committed[partition]

    def commit(self, partition: int, offset: int) -> None:
        """A commit was acknowledged."""
        with self._lock:
            self.commits += 1
            self.committed[partition] = max(self.committed[partition], offset)

    def lose(self, why: str) -> None:
        """Partitions went without a commit: it was refused, or the member was fenced."""
        with self._lock:
            self.lost[why] += 1

    def report(self) -> dict[str, Any]:
        with self._lock:
            skipped = sum(
                (partition, offset) not in self.read
                for partition, end in self.committed.items()
                for offset in range(end)
            )
            return {
                "read": len(self.read),
                "doubled": sum(self.read.values()) - len(self.read),
                "again_after_commit": self.again_after_commit,
                "skipped": skipped,
                "commits": self.commits,
                "lost": dict(self.lost),
            }
