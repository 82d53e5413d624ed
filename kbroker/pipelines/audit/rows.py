"""Records as columns, and pieces of a partition: what an audit compares."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from kbroker.protocol.records import Record

Headers = tuple[tuple[str, bytes | None], ...]

FOREVER = 1 << 62
"""An offset behind every record."""


class Row(NamedTuple):
    """One record."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Rows(NamedTuple):
    """Records in the order of their offsets, as columns of the same length; times are ms."""

    offsets: list[int]
    timestamps: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Headers]

    @classmethod
    def of(cls, records: Sequence[Record]) -> Rows:
        """The columns of records."""
        if not records:
            return cls([], [], [], [], [])
        keys, values, timestamps, headers, offsets = zip(*records, strict=True)
        return cls(
            list(offsets), list(timestamps), list(keys), list(values), list(map(tuple, headers))
        )

    @property
    def size(self) -> int:
        """How many records there are."""
        return len(self.offsets)

    def between(self, first: int, end: int) -> Rows:
        """The records with offsets from `first` on and below `end`."""
        start, stop = bisect_left(self.offsets, first), bisect_left(self.offsets, end)
        if start == 0 and stop == len(self.offsets):
            return self
        return Rows(*(column[start:stop] for column in self))  # type: ignore[arg-type]

    def rows(self) -> Iterator[Row]:
        """The records one by one."""
        return map(Row._make, zip(*self, strict=True))


class Reason(StrEnum):
    """Why there is no record at an offset."""

    CONTROL = "control"
    """A control record: the end of a transaction."""
    ABORTED = "aborted"
    """A record of an aborted transaction, for readers of committed records."""
    COMPACTION = "compaction"
    """The topic is compacted, a newer record has the same key (or was a tombstone)."""
    DELETED = "deleted"
    """The start of the log moved: retention, or DeleteRecords."""
    DAMAGED = "damaged"
    """The batch cannot be read; that is a finding of its own."""
    UNKNOWN = "unknown"
    """Nothing explains it; that is a finding."""


class Gap(NamedTuple):
    """Offsets from `first` on and below `end` at which there is no record."""

    first: int
    end: int
    reason: Reason


@dataclass(slots=True)
class Piece:
    """What one side has below the offset `end`, from where the piece before it ended."""

    rows: Rows
    end: int
    gaps: list[Gap] = field(default_factory=list)

    def reason(self, offset: int) -> Reason | None:
        """Why there is no record at `offset`; None when the side does not say."""
        found = bisect_left(self.gaps, offset + 1, key=lambda gap: gap.first) - 1
        if found >= 0 and offset < self.gaps[found].end:
            return self.gaps[found].reason
        return None
