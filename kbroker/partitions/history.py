"""What changed lately in each of many objects, in bounded memory, and what that is in words."""

from __future__ import annotations

import time
from collections import deque
from typing import Generic, NamedTuple, TypeVar

from kbroker.cluster import NO_LEADER, Partition, PartitionChange
from kbroker.text.printable import printable

K = TypeVar("K")
C = TypeVar("C")

CHANGES_MAX = 32
OBJECTS_MAX = 10_000


class History(Generic[K, C]):
    """The last `CHANGES_MAX` changes of each object, oldest first.

    Of more than `OBJECTS_MAX` objects, those whose last change is longest ago are forgotten. An
    object may be gone: why, its history says.
    """

    def __init__(self) -> None:
        self._changes: dict[K, deque[C]] = {}

    def note(self, key: K, change: C) -> None:
        """Something changed in the object `key`."""
        changes = self._changes.pop(key, None)
        if changes is None:
            changes = deque(maxlen=CHANGES_MAX)
            if len(self._changes) >= OBJECTS_MAX:
                del self._changes[next(iter(self._changes))]
        changes.append(change)
        self._changes[key] = changes

    def of(self, key: K) -> list[C]:
        """What is known of an object."""
        return list(self._changes.get(key, ()))


class Line(NamedTuple):
    """One change, or something else that happened, at a moment of log time."""

    at_ms: int
    text: str

    def __str__(self) -> str:
        return f"{clock_time(self.at_ms)}.{self.at_ms % 1000:03d} {printable(self.text)}"


def clock_time(at_ms: int) -> str:
    """A moment of log time as logs show it: the time of day, to the second."""
    return time.strftime("%H:%M:%S", time.localtime(at_ms / 1000))


def change_of(change: PartitionChange) -> str:
    """What changed in a partition's place in the cluster, in words."""
    after = change.after
    if after.leader == NO_LEADER:
        return f"lost its leader, node {change.before.leader}"
    return placing(after)


def placing(partition: Partition) -> str:
    """A partition's place in the cluster, in words."""
    in_sync = ", ".join(map(str, partition.isr))
    return f"node {partition.leader} leads in epoch {partition.leader_epoch}, in sync: {in_sync}"
