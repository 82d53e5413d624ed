"""Records as columns, and pieces of a partition, as compared by an audit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from kbroker.protocol.records import Record

Headers = tuple[tuple[str, bytes | None], ...]

# Offset after every record.
FOREVER = 1 << 62


class Row(NamedTuple):
    """One record."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Rows(NamedTuple):
    """Records in offset order as columns of equal length; times in ms."""

    offsets: list[int]
    timestamps: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Headers]

    @classmethod
    def of(cls, records: Sequence[Record]) -> Rows:
        """Return the columns of records."""
        if not records:
            return cls([], [], [], [], [])
        keys, values, timestamps, headers, offsets = zip(*records, strict=True)
        return cls(
            list(offsets), list(timestamps), list(keys), list(values), list(map(tuple, headers))
        )

    @property
    def size(self) -> int:
        """Number of records."""
        return len(self.offsets)

    def between(self, first: int, end: int) -> Rows:
        """Return the records with offsets from `first` to `end` (exclusive)."""
        start, stop = bisect_left(self.offsets, first), bisect_left(self.offsets, end)
        if start == 0 and stop == len(self.offsets):
            return self
        return Rows(*(column[start:stop] for column in self))  # type: ignore[arg-type]

    def rows(self) -> Iterator[Row]:
        """Iterate over the records."""
        return map(Row._make, zip(*self, strict=True))


class Reason(StrEnum):
    """Reasons why an offset has no record."""

    # A control record: the end of a transaction.
    CONTROL = "control"
    # A record of an aborted transaction, if only committed records are read.
    ABORTED = "aborted"
    # The topic is compacted and has a newer record with the same key, or the record was a
    # tombstone.
    COMPACTION = "compaction"
    # The log start offset advanced: retention or DeleteRecords.
    DELETED = "deleted"
    # The batch is corrupt, which is a finding of its own.
    DAMAGED = "damaged"
    # No reason is known, which is a finding.
    UNKNOWN = "unknown"


class Gap(NamedTuple):
    """Offsets from `first` to `end` (exclusive) without a record."""

    first: int
    end: int
    reason: Reason


@dataclass(slots=True)
class Piece:
    """Records of one side from the end of the previous piece to `end` (exclusive)."""

    rows: Rows
    end: int
    gaps: list[Gap] = field(default_factory=list)

    def reason(self, offset: int) -> Reason | None:
        """Return why there is no record at `offset`, or None if unknown."""
        found = bisect_left(self.gaps, offset + 1, key=lambda gap: gap.first) - 1
        if found >= 0 and offset < self.gaps[found].end:
            return self.gaps[found].reason
        return None
