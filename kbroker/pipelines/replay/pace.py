"""Pacing of a replay: as fast as possible, at a fixed rate, or with the original intervals.

Times are seconds of a monotonic clock that the caller reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kbroker.protocol.records import NO_TIMESTAMP, TIMESTAMP_MIN, Record

# Maximum delay in seconds that is caught up by a burst; longer delays shift the schedule.
LATE_SECONDS = 1.0


class Pace(Protocol):
    """Schedule that determines when records are due."""

    @property
    def in_order(self) -> bool:
        """True if records of several partitions must come in timestamp order."""

    def due(self, records: Sequence[Record], now: float) -> int:
        """Return how many of the next records are due; they count as written."""

    def next_at(self, record: Record) -> float:
        """Return the time at which the next record is due."""

    def seconds(self, records: int, first_ms: int, latest_ms: int) -> float:
        """Return the duration of a replay of `records` with this first and last timestamp."""


class Unpaced:
    """Pace without waits: every record is due at once."""

    in_order = False

    def due(self, records: Sequence[Record], now: float) -> int:
        return len(records)

    def next_at(self, record: Record) -> float:
        return 0.0

    def seconds(self, records: int, first_ms: int, latest_ms: int) -> float:
        return 0.0


class Rate:
    """Fixed rate: record n is due n / `per_second` seconds after the first."""

    in_order = True

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._written = 0
        self._start: float | None = None

    def due(self, records: Sequence[Record], now: float) -> int:
        if self._start is None:
            self._start = now
        late = now - self._due_at(self._start)
        if late > LATE_SECONDS:
            self._start += late
        count = 0
        while count < len(records) and self._due_at(self._start) <= now:
            count += 1
            self._written += 1
        return count

    def next_at(self, record: Record) -> float:
        assert self._start is not None, "`due` comes first"
        return self._due_at(self._start)

    def _due_at(self, start: float) -> float:
        return start + self._written / self._per_second

    def seconds(self, records: int, first_ms: int, latest_ms: int) -> float:
        return max(records - 1, 0) / self._per_second


class Speed:
    """Original intervals between timestamps, divided by `factor`.

    A record without a timestamp, or with an earlier one than a previous record, is due at once.
    """

    in_order = True

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._start: float | None = None
        self._first_ms: int | None = None
        self._latest_ms = TIMESTAMP_MIN

    def due(self, records: Sequence[Record], now: float) -> int:
        if not records:
            return 0
        if self._start is None:
            self._start = now
        late = now - self.next_at(records[0])
        if late > LATE_SECONDS:
            self._start += late
        count = 0
        for record in records:
            if self.next_at(record) > now:
                break
            if record.timestamp != NO_TIMESTAMP:
                if self._first_ms is None:
                    self._first_ms, self._start = record.timestamp, now
                self._latest_ms = max(self._latest_ms, record.timestamp)
            count += 1
        return count

    def next_at(self, record: Record) -> float:
        assert self._start is not None, "`due` comes first"
        if self._first_ms is None:
            return self._start
        if record.timestamp == NO_TIMESTAMP:
            reached_ms = self._latest_ms
        else:
            reached_ms = max(record.timestamp, self._latest_ms)
        passed_ms = reached_ms - self._first_ms
        return self._start + passed_ms / 1000 / self._factor

    def seconds(self, records: int, first_ms: int, latest_ms: int) -> float:
        return (latest_ms - first_ms) / 1000 / self._factor
