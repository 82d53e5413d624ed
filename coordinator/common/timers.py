"""Timers: one deadline per key."""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

K = TypeVar("K")


class _Entry:
    __slots__ = ("deadline_ms", "queued_ms")

    def __init__(self, deadline_ms: int) -> None:
        self.deadline_ms: int | None = deadline_ms
        self.queued_ms = deadline_ms


class Timers(Generic[K]):
    """At most one deadline per key, in milliseconds of the caller's clock.

    Most deadlines are postponed before they expire, because each heartbeat postpones one. So
    postponing only updates the entry: the heap keeps the earlier time and is corrected when that
    time comes. The heap has one live entry per key.
    """

    __slots__ = ("_entries", "_heap", "_sequence")

    def __init__(self) -> None:
        self._entries: dict[K, _Entry] = {}
        self._heap: list[tuple[int, int, K]] = []
        self._sequence = 0

    def schedule(self, key: K, deadline_ms: int) -> None:
        """Set the deadline of `key`, replacing an earlier one."""
        entry = self._entries.get(key)
        if entry is None:
            self._entries[key] = _Entry(deadline_ms)
        else:
            entry.deadline_ms = deadline_ms
            if deadline_ms >= entry.queued_ms:
                return
            entry.queued_ms = deadline_ms
        self._push(deadline_ms, key)

    def cancel(self, key: K) -> None:
        """Remove the deadline of `key`, if it has one."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.deadline_ms = None

    def deadline(self, key: K) -> int | None:
        """Return the deadline of `key`, or None if it has none."""
        entry = self._entries.get(key)
        return None if entry is None else entry.deadline_ms

    def next_deadline(self) -> int | None:
        """Return the earliest deadline, or None if there is none."""
        heap = self._heap
        while heap:
            queued_ms, _, key = heap[0]
            entry = self._entries.get(key)
            if entry is None or entry.queued_ms != queued_ms:
                heapq.heappop(heap)  # replaced by an earlier one
            elif entry.deadline_ms is None:
                heapq.heappop(heap)
                del self._entries[key]
            elif entry.deadline_ms > queued_ms:
                heapq.heappop(heap)
                entry.queued_ms = entry.deadline_ms
                self._push(entry.deadline_ms, key)
            else:
                return queued_ms
        return None

    def pop_due(self, now_ms: int) -> K | None:
        """Remove and return the key with the earliest passed deadline, or None."""
        deadline_ms = self.next_deadline()
        if deadline_ms is None or deadline_ms > now_ms:
            return None
        key = heapq.heappop(self._heap)[2]
        del self._entries[key]
        return key

    def __len__(self) -> int:
        """Return the number of keys that have a deadline."""
        return sum(entry.deadline_ms is not None for entry in self._entries.values())

    def _push(self, at_ms: int, key: K) -> None:
        self._sequence += 1  # equal deadlines expire in the order in which they were set
        heapq.heappush(self._heap, (at_ms, self._sequence, key))
