"""Keys of the records in listed findings, looked up after the audit."""

from __future__ import annotations

import trio

from kbroker.client.consumer import reading
from kbroker.client.errors import ClientError
from kbroker.protocol.errors import KafkaError

from .findings import Finding, Findings, Kind
from .reader import Source

# Kinds of findings that do not refer to a record.
KEYLESS = frozenset({Kind.CRC, Kind.DAMAGED, Kind.GAP, Kind.MISPLACED})
# Time limit in seconds for the lookup, which is only informative.
SECONDS_MAX = 10


async def name_keys(source: Source, findings: Findings) -> None:
    """Add keys to the listed findings of a topic, as far as their records still exist."""
    with trio.move_on_after(SECONDS_MAX):
        for finding in findings.listed:
            is_about_record = finding.kind not in KEYLESS and finding.key is None
            if is_about_record and finding.topic == source.topic:
                await _name_key(source, finding)


async def _name_key(source: Source, finding: Finding) -> None:
    if finding.partition is None or finding.offset is None:
        return
    place = {(finding.topic, finding.partition): (finding.offset, finding.offset + 1)}
    try:
        async with reading(source.cluster, place) as channel:
            async for found in channel:
                finding.key = found[0].record.key
    except (ClientError, KafkaError):
        return  # the record no longer exists
