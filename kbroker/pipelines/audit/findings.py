"""What an audit finds: each kind counted, the first ones listed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from kbroker.client.ndjson import bytes_field

LISTED = 20
"""How many findings are listed unless the caller says otherwise."""


class Kind(StrEnum):
    """What can be wrong."""

    CRC = "crc"
    """A batch does not match its CRC."""
    DAMAGED = "damaged"
    """A batch or a file that cannot be read."""
    GAP = "gap"
    """Offsets without a record, and nothing explains them."""
    SEQUENCE = "sequence"
    """The sequence numbers of an idempotent producer jump or repeat."""
    DUPLICATE = "duplicate"
    """A record that has to be unique in its topic, and is not."""
    MISSING = "missing"
    """A record of the topic that the other side does not have."""
    EXTRA = "extra"
    """A record of the other side that the topic does not have."""
    DOUBLED = "doubled"
    """A record that the other side has more often than the topic."""
    DIFFERENT = "different"
    """A record that both sides have, with other content."""
    MISPLACED = "misplaced"
    """A file of a lake whose name or directory does not say what is in it."""


@dataclass(slots=True)
class Finding:
    """One thing that is wrong, at a record or range of offsets, or in a file."""

    kind: Kind
    topic: str
    what: str
    partition: int | None = None
    offset: int | None = None
    count: int = 1
    """Records that it stands for."""
    key: bytes | None = None
    """Key of the record; None for none, and where it is not known."""

    def __str__(self) -> str:
        place = self.topic
        if self.partition is not None:
            place += f"-{self.partition}"
        if self.offset is not None:
            place += f" at {self.offset}"
        key = "" if self.key is None else f" (key {shown(self.key)})"
        return f"{self.kind}: {place}: {self.what}{key}"

    def as_json(self) -> dict[str, object]:
        """The finding as JSON says it."""
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
    counts: Counter[Kind] = field(default_factory=Counter)
    """Records (or batches, or files) of each kind."""
    listed: list[Finding] = field(default_factory=list)
    _listed_of: Counter[Kind] = field(default_factory=Counter)

    def add(self, finding: Finding) -> None:
        """Count a finding, and list it while there is room."""
        self.counts[finding.kind] += finding.count
        if self._listed_of[finding.kind] < self.limit:
            self._listed_of[finding.kind] += 1
            self.listed.append(finding)

    def __bool__(self) -> bool:
        return bool(self.counts)

    def words(self) -> str:
        """All of it in words."""
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """A line with the counts, and one for each finding that is listed."""
        if not self:
            return ["nothing found"]
        counts = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.counts.items()))
        lines = [f"found: {counts}", *map(str, self.listed)]
        if len(self.listed) < sum(self.counts.values()):
            lines.append("(not all of them are listed)")
        return lines


class AuditError(AssertionError):
    """An audit that had to be clean is not; the message has the findings in words."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings.words())
        self.findings = findings


def shown(data: bytes, length_max: int = 60) -> str:
    """Bytes as a person reads them, cut when they are long."""
    text = repr(data)[1:]
    return text if len(text) <= length_max else f"{text[:length_max]}... ({len(data)} bytes)"
