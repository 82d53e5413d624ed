"""Records, size and lag of many topics, with a bounded number of requests."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import TypeVar

from kbroker.protocol.errors import KafkaError
from kbroker.protocol.messages.metadata import MetadataResponse

from .cluster import ClusterClient
from .configs import Resource, describe_configs
from .errors import ClientError
from .group_overview import GroupOverview, group_overviews
from .groups import list_groups
from .list_offsets import EARLIEST, LATEST, list_offsets
from .log_dirs import describe_log_dirs
from .topic_details import Row, topic_row

T = TypeVar("T")

CLEANUP_POLICY = "cleanup.policy"


async def topic_overviews(
    cluster: ClusterClient, topics: Sequence[MetadataResponse.Topic], *, policies: bool = True
) -> list[Row]:
    """Return a row per topic: `topic_row`, and what its partitions and groups contain.

    Values that brokers do not report are None, for example without the permission or while a
    broker is down. The number of requests depends on the number of brokers and groups, and not on
    the number of topics.

    Args:
        cluster: The cluster of the topics.
        topics: Topics from the metadata.
        policies: Also query the cleanup policies.

    Returns:
        Rows with these additional fields:
        - `records`: Offsets between start and end; compacted topics have fewer records.
        - `bytes`: Size of all replicas on disk.
        - `lag`: Sum of the lags of all groups.
        - `groups`: Groups with committed offsets.
        - `cleanup_policy`: The setting, if `policies` is True.
    """
    rows = await topic_sizes(cluster, topics)
    if not rows:
        return []
    groups = await _or_none(_groups(cluster))
    consumption = None if groups is None else _consumption(groups)
    names = [row["name"] for row in rows]
    known = await _or_none(_policies(cluster, names)) if policies else None
    for row in rows:
        row |= _consumption_of(row["name"], consumption)
        if policies:
            row["cleanup_policy"] = None if known is None else known.get(row["name"])
    return rows


async def topic_sizes(
    cluster: ClusterClient, topics: Sequence[MetadataResponse.Topic]
) -> list[Row]:
    """Return a row per topic: `topic_row`, and the fields `records` and `bytes` of `topic_overviews`.

    Args:
        cluster: The cluster of the topics.
        topics: Topics from the metadata.
    """
    if not topics:
        return []
    records = await _or_none(_records(cluster, topics))
    sizes = await _or_none(_sizes(cluster))
    return [
        topic_row(topic)
        | {
            "records": None if records is None else records.get(topic.name or ""),
            "bytes": None if sizes is None else sizes.get(topic.name or "", 0),
        }
        for topic in topics
    ]


async def _or_none(work: Awaitable[T]) -> T | None:
    """Return the result, or None if a broker rejects a request or cannot be reached."""
    try:
        return await work
    except (KafkaError, ClientError, OSError):
        return None


async def _records(
    cluster: ClusterClient, topics: Sequence[MetadataResponse.Topic]
) -> dict[str, int]:
    """Return the number of offsets of each topic whose partitions all have a leader."""
    parts = [(row.name or "", part.partition_index) for row in topics for part in row.partitions]
    starts = await list_offsets(cluster, dict.fromkeys(parts, EARLIEST))
    ends = await list_offsets(cluster, dict.fromkeys(parts, LATEST))
    unknown = {one[0] for one in parts if starts[one].error or ends[one].error}
    counts = dict.fromkeys((row.name or "" for row in topics), 0)
    for one in parts:
        counts[one[0]] += max(ends[one].offset - starts[one].offset, 0)
    return {name: count for name, count in counts.items() if name not in unknown}


async def _sizes(cluster: ClusterClient) -> dict[str, int]:
    """Return the size in bytes of all replicas of each topic."""
    sizes: dict[str, int] = {}
    for found in await describe_log_dirs(cluster):
        for (name, _), size in found.sizes.items():
            sizes[name] = sizes.get(name, 0) + size
    return sizes


async def _groups(cluster: ClusterClient) -> list[GroupOverview]:
    return await group_overviews(cluster, await list_groups(cluster), with_members=False)


async def _policies(cluster: ClusterClient, names: list[str]) -> dict[str, str | None]:
    described = await describe_configs(cluster, Resource.TOPIC, names, keys=[CLEANUP_POLICY])
    return {name: next((each.value for each in some), None) for name, some in described.items()}


def _consumption(groups: Sequence[GroupOverview]) -> dict[str, Row]:
    """Return the fields `lag` and `groups` of each topic that groups read."""
    rows: dict[str, Row] = {}
    for group in groups:
        for (topic, _), lag in (group.lags or {}).items():
            row = rows.setdefault(topic, {"lag": None, "groups": []})
            if group.listed.name not in row["groups"][-1:]:
                row["groups"].append(group.listed.name)
            if lag is not None:
                row["lag"] = (row["lag"] or 0) + lag
    return rows


def _consumption_of(name: str, known: Mapping[str, Row] | None) -> Row:
    if known is None:
        return {"lag": None, "groups": None}
    return known.get(name, {"lag": None, "groups": []})
