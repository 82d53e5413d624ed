"""Comparison of two sides of one partition by offset, in one pass over both."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from operator import lt

from .findings import Finding, Findings, Kind, shown
from .rows import FOREVER, Piece, Reason, Row, Rows

# Reasons why a side may have lost a record; corruption is reported separately.
LOSSES = frozenset({Reason.COMPACTION, Reason.DELETED, Reason.DAMAGED})


@dataclass(slots=True)
class Compared:
    """Result of comparing one partition of a topic with another side."""

    topic: str
    partition: int
    # Name of the other side.
    other: str
    # Records that are equal on both sides.
    equal: int = 0
    # Records missing on one side, by the reason of their loss.
    excused: Counter[Reason] = field(default_factory=Counter)
    # Records after the end of the other side, if it may lag.
    pending: int = 0


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules of a comparison, for the topic's offsets from `begin` to `end` (exclusive)."""

    begin: int
    end: int
    # Offset from which the other side may still lack records.
    other_end: int = FOREVER
    # Compare values; otherwise only whether a value is null.
    values: bool = True


class Comparison:
    """Comparison of the pieces of both sides."""

    def __init__(self, compared: Compared, rules: Rules, findings: Findings) -> None:
        self._compared = compared
        self._rules = rules
        self._findings = findings

    async def run(self, topic: AsyncIterator[Piece], other: AsyncIterator[Piece]) -> None:
        """Compare all records, reading both sides at the same pace."""
        left, right = _Side(topic), _Side(other)
        at = 0
        while at < FOREVER:
            await left.fill(at)
            await right.fill(at)
            end = min(left.piece.end, right.piece.end)
            self._compare(left.cut(end), right.cut(end), at)
            at = end

    def _compare(self, topic: Piece, other: Piece, at: int) -> None:
        """Compare the records between offset `at` and the end of both pieces."""
        ours, theirs = self._comparable(topic.rows), self._comparable(other.rows)
        if ours == theirs:
            self._compared.equal += ours.size
            return
        found = self._index_by_offset(theirs, at)
        for row in ours.rows():
            match = found.pop(row.offset, None)
            if match is None:
                self._handle_missing_row(row, other)
            elif match == row:
                self._compared.equal += 1
            else:
                self._add_finding(Kind.DIFFERENT, row, _difference(row, match))
        for row in found.values():
            self._handle_extra_row(row, topic)

    def _comparable(self, rows: Rows) -> Rows:
        if self._rules.values:
            return rows
        return rows._replace(values=[None if value is None else b"" for value in rows.values])

    def _index_by_offset(self, theirs: Rows, at: int) -> dict[int, Row]:
        """Return the other side's records by offset, and report duplicate offsets."""
        if theirs.size and theirs.offsets[0] >= at and _is_increasing(theirs.offsets):
            return {row.offset: row for row in theirs.rows()}
        found: dict[int, Row] = {}
        for row in theirs.rows():
            if row.offset < at or row.offset in found:
                self._add_finding(
                    Kind.DOUBLED, row, f"{self._compared.other} has this record again"
                )
            else:
                found[row.offset] = row
        return found

    def _handle_missing_row(self, row: Row, other: Piece) -> None:
        reason = other.reason(row.offset)
        if reason in LOSSES:
            self._compared.excused[reason] += 1
        elif row.offset >= self._rules.other_end:
            self._compared.pending += 1
        else:
            self._add_finding(Kind.MISSING, row, f"{self._compared.other} lacks this record")

    def _handle_extra_row(self, row: Row, topic: Piece) -> None:
        reason = Reason.DELETED if row.offset < self._rules.begin else topic.reason(row.offset)
        if reason in LOSSES:
            self._compared.excused[reason] += 1
            return
        why = {
            Reason.CONTROL: "but the topic has a transaction marker at this offset",
            Reason.ABORTED: "but in the topic its transaction was aborted",
        }.get(reason or Reason.UNKNOWN, "but the topic does not")
        if row.offset >= self._rules.end:
            why = f"but the topic ends at {self._rules.end}"
        self._add_finding(Kind.EXTRA, row, f"{self._compared.other} has this record, {why}")

    def _add_finding(self, kind: Kind, row: Row, what: str) -> None:
        compared = self._compared
        found = Finding(kind, compared.topic, what, compared.partition, row.offset, key=row.key)
        self._findings.add(found)


class _Side:
    """One side with one piece in memory."""

    def __init__(self, pieces: AsyncIterator[Piece]) -> None:
        self._pieces = pieces
        self.piece = Piece(Rows.of([]), 0)

    async def fill(self, at: int) -> None:
        """Read pieces until one ends after offset `at` or has records."""
        while self.piece.end <= at and not self.piece.rows.size:
            self.piece = await anext(self._pieces, Piece(Rows.of([]), FOREVER))

    def cut(self, end: int) -> Piece:
        """Remove and return the part before an offset."""
        piece = self.piece
        taken = Piece(piece.rows.between(0, end), end, piece.gaps)
        piece.rows = piece.rows.between(end, FOREVER)
        return taken


def _is_increasing(offsets: list[int]) -> bool:
    return all(map(lt, offsets, offsets[1:]))


def _difference(ours: Row, theirs: Row) -> str:
    """Describe the difference between two records."""
    if ours.key != theirs.key:
        return f"key {_shown(ours.key)} is {_shown(theirs.key)}"
    if ours.value != theirs.value:
        if (ours.value is None) != (theirs.value is None):
            return "a tombstone on one side, a value on the other"
        return f"value {_shown(ours.value)} is {_shown(theirs.value)}"
    if ours.headers != theirs.headers:
        return f"headers {list(ours.headers)} are {list(theirs.headers)}"
    return f"timestamp {ours.timestamp} is {theirs.timestamp}"


def _shown(data: bytes | None) -> str:
    return "null" if data is None else shown(data)
