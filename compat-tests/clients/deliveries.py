"""Record of everything that the members of a group read and committed."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any


class Deliveries:
    """Counts skipped and duplicate records.

    A record is *doubled* if it was read again. It is *again after its commit* if a commit beyond it
    was already acknowledged, which must not happen even if a broker is killed. It is *skipped* if a
    commit beyond it was acknowledged but nobody read it.

    A doubled record is *explained* if a member that had read it lost the partition before it could
    commit it: the member was fenced, or its last commit failed. Each such loss explains one further
    read.

    Attributes:
        phase: Prefix of the reasons for which members lose partitions.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.read: Counter[tuple[int, int]] = Counter()
        self.readers: Counter[str] = Counter()
        self.committed: Counter[int] = Counter()
        self.again_after_commit = 0
        self.commits = 0
        self.lost: Counter[str] = Counter()
        self.phase = ""
        # Offsets that a member has read but not committed, by partition.
        self._open: dict[tuple[str, int], list[int]] = defaultdict(list)
        self._lost_reads: Counter[tuple[int, int]] = Counter()

    def deliver(self, member: str, partition: int, offset: int) -> None:
        with self._lock:
            self.read[partition, offset] += 1
            self.readers[member] += 1
            self.again_after_commit += offset < self.committed[partition]
            self._open[member, partition].append(offset)

    def commit(self, member: str, partition: int, offset: int) -> None:
        """Record an acknowledged commit."""
        with self._lock:
            self.commits += 1
            self.committed[partition] = max(self.committed[partition], offset)
            known = self._open[member, partition]
            self._open[member, partition] = [each for each in known if each >= offset]

    def lose(self, member: str, why: str, partitions: Iterable[int]) -> None:
        """Record partitions lost without a commit: it failed, or the member was fenced."""
        with self._lock:
            self.lost[f"{self.phase}{why}"] += 1
            for partition in partitions:
                lost = self._open.pop((member, partition), [])
                self._lost_reads.update((partition, offset) for offset in lost)

    @property
    def java_read(self) -> int:
        """Number of records that members with the Java client read."""
        with self._lock:
            return sum(self.readers[each] for each in self.readers if "java" in each)

    def report(self) -> dict[str, Any]:
        with self._lock:
            skipped = sum(
                (partition, offset) not in self.read
                for partition, end in self.committed.items()
                for offset in range(end)
            )
            explained = sum(
                min(times - 1, self._lost_reads[place]) for place, times in self.read.items()
            )
            return {
                "read": len(self.read),
                "doubled": sum(self.read.values()) - len(self.read),
                "explained": explained,
                "again_after_commit": self.again_after_commit,
                "skipped": skipped,
                "commits": self.commits,
                "lost": dict(self.lost),
                "java_read": self.java_read,
            }
