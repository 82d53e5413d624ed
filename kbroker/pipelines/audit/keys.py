"""The keys of records that are listed as findings, read when everything else is done."""

from __future__ import annotations

import trio

from kbroker.client.consumer import reading
from kbroker.client.errors import ClientError
from kbroker.protocol.errors import KafkaError

from .findings import Finding, Findings, Kind
from .reader import Source

KEYLESS = frozenset({Kind.CRC, Kind.DAMAGED, Kind.GAP, Kind.MISPLACED})
"""Findings that are about no record."""
SECONDS_MAX = 10
"""How long looking for keys may take: they only help to understand."""


async def name_keys(source: Source, findings: Findings) -> None:
    """Give the listed findings of a topic the keys of their records, as far as they are there."""
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
        return  # it is not there any more
