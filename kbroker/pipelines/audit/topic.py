"""What a topic holds."""

from __future__ import annotations

from dataclasses import dataclass

from .distinct import Distinct
from .findings import LISTED, Finding, Findings, Kind
from .hashing import spill_hashes
from .identity import By, Identity
from .keys import name_keys
from .partition import PartitionFacts
from .reader import Source, open_topic
from .rows import Rows
from .spill import Spill

EXACT = Identity(By.RECORD, with_time=True)
"""Equal key, value, headers and timestamp."""


@dataclass(slots=True)
class TopicReport:
    """What an audit of one topic says."""

    topic: str
    committed: bool
    compacted: bool
    partitions: list[PartitionFacts]
    keys: int
    """How many different keys there are."""
    keys_exact: bool
    """Else `keys` is an estimate, see `Distinct`."""
    repeated: int
    """Records that are there again: equal in key, value, headers and timestamp, or in what the
    audit was told that identifies a record."""
    findings: Findings

    @property
    def records(self) -> int:
        """Records of all partitions."""
        return sum(one.records for one in self.partitions)


async def audit_topic(
    source: Source, *, unique: Identity | None = None, listed: int = LISTED
) -> TopicReport:
    """Read a topic from its start to its present end and say what is in it.

    Parameters: `unique` is what identifies a record, and then a record that comes again is a
    finding; without it exact repetitions are only counted. At most `listed` findings of each kind
    are listed. Memory is bounded, see `Spill` and `Distinct`. Raises ClientError or KafkaError.
    """
    findings = Findings(listed)
    reader = await open_topic(source, findings)
    identity = unique or EXACT
    keys = Distinct()
    with Spill() as spill:

        def note_keys(rows: Rows) -> None:
            keys.add(map(hash, rows.keys))

        await spill_hashes(reader, identity, spill, note_keys)
        repeated = _repeated(spill, source.topic, str(identity), findings if unique else None)
    await name_keys(source, findings)
    return TopicReport(
        source.topic,
        source.committed,
        reader.compacted,
        reader.facts,
        keys.count(),
        keys.is_exact,
        repeated,
        findings,
    )


def _repeated(spill: Spill, topic: str, identity: str, findings: Findings | None) -> int:
    """How many records come again; they are findings if there are any to be."""
    count = 0
    for difference in spill.repeated():
        count += difference.right - difference.left
        if findings is not None:
            for place in difference.places:
                what = f"there is a record before it with the same {identity}"
                findings.add(Finding(Kind.DUPLICATE, topic, what, *place))
    return count
