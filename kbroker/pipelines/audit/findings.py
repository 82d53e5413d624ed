"""Findings of an audit: all are counted by kind, and the first ones are listed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from kbroker.client.ndjson import bytes_field

# Default number of findings listed per kind.
LISTED = 20


class Kind(StrEnum):
    """Kinds of findings."""

    # A batch does not match its CRC.
    CRC = "crc"
    # A batch or file is unreadable.
    DAMAGED = "damaged"
    # Offsets without a record and without a known reason.
    GAP = "gap"
    # The sequence numbers of an idempotent producer skip or repeat.
    SEQUENCE = "sequence"
    # A record that must be unique in its topic occurs again.
    DUPLICATE = "duplicate"
    # The other side lacks a record of the topic.
    MISSING = "missing"
    # The topic lacks a record of the other side.
    EXTRA = "extra"
    # The other side has a record more often than the topic.
    DOUBLED = "doubled"
    # Both sides have a record, with different content.
    DIFFERENT = "different"
    # The name or directory of a lake file does not match its content.
    MISPLACED = "misplaced"


@dataclass(slots=True)
class Finding:
    """One problem, at a record, a range of offsets, or in a file."""

    kind: Kind
    topic: str
    what: str
    partition: int | None = None
    offset: int | None = None
    # Number of records affected.
    count: int = 1
    # Key of the record; None if it has no key or the key is unknown.
    key: bytes | None = None

    def __str__(self) -> str:
        place = self.topic
        if self.partition is not None:
            place += f"-{self.partition}"
        if self.offset is not None:
            place += f" at {self.offset}"
        key = "" if self.key is None else f" (key {shown(self.key)})"
        return f"{self.kind}: {place}: {self.what}{key}"

    def as_json(self) -> dict[str, object]:
        """Return the finding as a JSON object."""
        return {
            "kind": str(self.kind),
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "count": self.count,
            "what": self.what,
            **bytes_field("key", self.key),
        }


@dataclass(slots=True)
class Findings:
    """Findings of one audit; at most `limit` of each kind are listed."""

    limit: int = LISTED
    # Affected records (or batches, or files) by kind.
    counts: Counter[Kind] = field(default_factory=Counter)
    listed: list[Finding] = field(default_factory=list)
    _listed_of: Counter[Kind] = field(default_factory=Counter)

    def add(self, finding: Finding) -> None:
        """Count a finding, and list it unless the limit is reached."""
        self.counts[finding.kind] += finding.count
        if self._listed_of[finding.kind] < self.limit:
            self._listed_of[finding.kind] += 1
            self.listed.append(finding)

    def __bool__(self) -> bool:
        return bool(self.counts)

    def text(self) -> str:
        """Return all findings as text."""
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Return a line with the counts, followed by one line per listed finding."""
        if not self:
            return ["nothing found"]
        counts = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.counts.items()))
        lines = [f"found: {counts}", *map(str, self.listed)]
        if len(self.listed) < sum(self.counts.values()):
            lines.append("(not all of them are listed)")
        return lines


class AuditError(AssertionError):
    """The audit has findings; the message lists them."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings.text())
        self.findings = findings


def shown(data: bytes, length_max: int = 60) -> str:
    """Return bytes in readable form, shortened if necessary."""
    text = repr(data)[1:]
    return text if len(text) <= length_max else f"{text[:length_max]}... ({len(data)} bytes)"
