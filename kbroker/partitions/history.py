"""What changed lately in each of many objects, in bounded memory."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

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
