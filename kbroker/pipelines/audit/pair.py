"""Comparison of two topics."""

from __future__ import annotations

from dataclasses import dataclass

from .compare import Compared, Comparison, Rules
from .findings import LISTED, Finding, Findings, Kind
from .hashing import spill_hashes
from .identity import Identity
from .keys import name_keys
from .partition import PartitionFacts
from .reader import Source, open_topic
from .rows import FOREVER
from .spill import Difference, Spill


@dataclass(slots=True)
class PairReport:
    """Report of comparing a topic with another side."""

    topic: str
    other: str
    # ``offset``, or the identity by which records were compared.
    by: str
    # Partitions of the topic.
    partitions: list[PartitionFacts]
    # Partitions of the other topic; empty for a lake.
    other_partitions: list[PartitionFacts]
    # Results by partition of the topic; empty if records were not compared by offset.
    compared: list[Compared]
    findings: Findings
    # Number of lake files read.
    files: int = 0
    # Number of records that the archiver could not read.
    poison: int = 0

    @property
    def records(self) -> int:
        """Number of records in the topic."""
        return sum(one.records for one in self.partitions)


async def compare_offsets(
    source: Source, other: Source, *, allow_lag: bool = False, listed: int = LISTED
) -> PairReport:
    """Compare each record of a topic with the record at the same offset of another topic.

    Args:
        source: The topic.
        other: The other topic.
        allow_lag: Do not report records after the end of the other partition.
        listed: Maximum number of findings to list per kind.

    Returns:
        The report.

    Raises:
        ClientError: A topic cannot be read.
        KafkaError: The broker returned an error.
    """
    findings = Findings(listed)
    right = await open_topic(other, findings)
    left = await open_topic(source, findings)
    others = {facts.partition: facts for facts in right.facts}
    compared = []
    for facts in left.facts:
        one = Compared(source.topic, facts.partition, other.topic)
        compared.append(one)
        theirs = others.pop(facts.partition, None)
        if theirs is None:
            what = f"{other.topic} has no such partition"
            findings.add(Finding(Kind.MISSING, source.topic, what, facts.partition))
            continue
        rules = Rules(facts.begin, facts.end, theirs.end if allow_lag else FOREVER)
        async with left.pieces(facts) as ours, right.pieces(theirs) as pieces:
            await Comparison(one, rules, findings).run(ours, pieces)
    for number in others:
        what = f"{other.topic} has this partition, but the topic does not"
        findings.add(Finding(Kind.EXTRA, source.topic, what, number))
    await name_keys(source, findings)
    return PairReport(
        source.topic, other.topic, "offset", left.facts, right.facts, compared, findings
    )


async def compare_contents(
    source: Source,
    other: Source,
    identity: Identity,
    *,
    distinct: bool = False,
    listed: int = LISTED,
) -> PairReport:
    """Compare the sets of records of two topics, regardless of their positions.

    Memory is bounded, see `Spill`.

    Args:
        source: The topic.
        other: The other topic.
        identity: Identity by which records are compared.
        distinct: Ignore how often a record occurs.
        listed: Maximum number of findings to list per kind.

    Returns:
        The report.

    Raises:
        ClientError: A topic cannot be read.
        KafkaError: The broker returned an error.
    """
    findings = Findings(listed)
    right = await open_topic(other, findings)
    left = await open_topic(source, findings)
    with Spill() as ours, Spill() as theirs:
        await spill_hashes(left, identity, ours)
        await spill_hashes(right, identity, theirs)
        for difference in ours.differences(theirs, distinct=distinct):
            _report(difference, source.topic, other.topic, str(identity), findings)
    await name_keys(source, findings)
    await name_keys(other, findings)
    return PairReport(
        source.topic, other.topic, str(identity), left.facts, right.facts, [], findings
    )


def _report(
    difference: Difference, topic: str, other: str, identity: str, findings: Findings
) -> None:
    left, right, places = difference
    if left > right:
        kind, where = Kind.MISSING, topic
        what = f"{other} does not have this {identity}"
    else:
        kind, where = Kind.DOUBLED if left else Kind.EXTRA, other
        what = f"{topic} does not have this {identity}"
    if left and right:
        what = f"this {identity} occurs {left} times in {topic}, {right} times in {other}"
    for place in places:
        findings.add(Finding(kind, where, what, *place))
