"""A bounded history of the recent changes of many objects, and their descriptions."""

from __future__ import annotations

import time
from collections import deque
from typing import Generic, NamedTuple, TypeVar

from kbroker.cluster import NO_LEADER, Partition, PartitionChange
from kbroker.text.printable import printable

K = TypeVar("K")
C = TypeVar("C")

# Changes that are kept per object.
CHANGES_MAX = 32
OBJECTS_MAX = 10_000


class History(Generic[K, C]):
    """The last `CHANGES_MAX` changes of each object, oldest first.

    If there are more than `OBJECTS_MAX` objects, the least recently changed one is removed. The
    history of a deleted object is kept.
    """

    def __init__(self) -> None:
        self._changes: dict[K, deque[C]] = {}

    def add(self, key: K, change: C) -> None:
        """Add a change of the object `key`."""
        changes = self._changes.pop(key, None)
        if changes is None:
            changes = deque(maxlen=CHANGES_MAX)
            if len(self._changes) >= OBJECTS_MAX:
                del self._changes[next(iter(self._changes))]
        changes.append(change)
        self._changes[key] = changes

    def of(self, key: K) -> list[C]:
        """Return the known changes of an object."""
        return list(self._changes.get(key, ()))


class Line(NamedTuple):
    """A change or another event at a time of the log clock."""

    at_ms: int
    text: str

    def __str__(self) -> str:
        return f"{clock_time(self.at_ms)}.{self.at_ms % 1000:03d} {printable(self.text)}"


def clock_time(at_ms: int) -> str:
    """Format a time of the log clock as in logs: local time of day, in seconds."""
    return time.strftime("%H:%M:%S", time.localtime(at_ms / 1000))


def describe_change(change: PartitionChange) -> str:
    """Describe a change of the leader, leader epoch or ISR of a partition."""
    after = change.after
    if after.leader == NO_LEADER:
        return f"lost its leader, node {change.before.leader}"
    return describe_state(after)


def describe_state(partition: Partition) -> str:
    """Describe the leader, leader epoch and ISR of a partition."""
    in_sync = ", ".join(map(str, partition.isr))
    return f"node {partition.leader} leads in epoch {partition.leader_epoch}, in sync: {in_sync}"
