"""Audit of one topic."""

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

# Identity of records with equal key, value, headers and timestamp.
EXACT = Identity(By.RECORD, with_time=True)


@dataclass(slots=True)
class TopicReport:
    """Report of the audit of one topic."""

    topic: str
    committed: bool
    compacted: bool
    partitions: list[PartitionFacts]
    # Number of distinct keys.
    keys: int
    # False if `keys` is an estimate, see `Distinct`.
    keys_exact: bool
    # Records that repeat an earlier one: in key, value, headers and timestamp, or in the identity
    # that the audit was given.
    repeated: int
    findings: Findings

    @property
    def records(self) -> int:
        """Number of records in all partitions."""
        return sum(one.records for one in self.partitions)


async def audit_topic(
    source: Source, *, unique: Identity | None = None, listed: int = LISTED
) -> TopicReport:
    """Read a topic from its start to its current end and report its contents.

    Memory is bounded, see `Spill` and `Distinct`.

    Args:
        source: The topic.
        unique: Identity by which records must be unique; repetitions are findings. Without it,
            exact repetitions are only counted.
        listed: Maximum number of findings to list per kind.

    Returns:
        The report.

    Raises:
        ClientError: The topic cannot be read.
        KafkaError: The broker returned an error.
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
    """Return the number of repeated records, and add them to `findings` if given."""
    count = 0
    for difference in spill.repeated():
        count += difference.right - difference.left
        if findings is not None:
            for place in difference.places:
                what = f"an earlier record has the same {identity}"
                findings.add(Finding(Kind.DUPLICATE, topic, what, *place))
    return count
