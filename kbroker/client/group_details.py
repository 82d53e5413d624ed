"""Group details as reported by commands and the console: offsets, lag and members per partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, TypeAlias

from .cluster import ClusterClient
from .dead_letters import dead_letter_queue
from .groups import SHARE, STREAMS, Group, Member, committed_offsets, describe_group
from .list_offsets import EARLIEST, LATEST, list_offsets
from .share_groups import SharedOffset, share_offsets
from .topics import Partition
from .topology_descriptions import topology_description

Row: TypeAlias = dict[str, Any]

# Fields of each partition row.
FIELDS = (
    "topic",
    "partition",
    "current_offset",
    "log_start_offset",
    "log_end_offset",
    "lag",
    "member_id",
    "instance_id",
    "client_id",
    "host",
)


async def group_details(cluster: ClusterClient, name: str) -> Row:
    """Return a group with its partitions and lag.

    The rows include the partitions without a committed offset of all topics that the group reads:
    topics with any committed offset, and topics of which members have partitions. The lag of such a
    partition is unknown. `without_offset` counts those that hold records. A share group has no such
    rows, because it starts to read by itself.

    Raises:
        NoSuchGroup: The group does not exist.
        KafkaError: The broker rejects a request.
    """
    found = await describe_group(cluster, name)
    if found.type == SHARE:
        rows = await _share_rows(cluster, found, await share_offsets(cluster, name))
    else:
        rows = await _partition_rows(cluster, found, await committed_offsets(cluster, name))
    lags = [row["lag"] for row in rows if row["lag"] is not None]
    topics: dict[str, Row] = {}
    for row in rows:
        entry = topics.setdefault(
            row["topic"],
            {"topic": row["topic"], "partitions": 0, "lag": None, "without_offset": 0},
        )
        entry["partitions"] += 1
        entry["without_offset"] += found.type != SHARE and lacks_offset(row)
        if row["lag"] is not None:
            entry["lag"] = (entry["lag"] or 0) + row["lag"]
    return {
        "group": found.name,
        "coordinator": found.coordinator,
        "state": found.state,
        "type": found.type,
        "assignor": found.assignor,
        "members": len(found.members),
        "total_lag": sum(lags) if lags else None,
        "without_offset": sum(each["without_offset"] for each in topics.values()),
        "topics": list(topics.values()),
        "partitions": rows,
    }


def lacks_offset(row: Row) -> bool:
    """Return True if a partition holds records, and the group has no committed offset for it."""
    start, end = row["log_start_offset"], row["log_end_offset"]
    has_records = start is not None and end is not None and start < end
    return row["current_offset"] is None and has_records


def lag_text(lag: int | None, without_offset: int) -> str:
    """Return a lag, and the number of partitions that it does not include.

    Args:
        lag: Number of unread records; None if no partition has a committed offset.
        without_offset: Number of partitions with records and without a committed offset.
    """
    text = "-" if lag is None else str(lag)
    if not without_offset:
        return text
    return f"{text}, {without_offset} partition{'s' * (without_offset > 1)} without offsets"


async def details_by_type(cluster: ClusterClient, name: str, group_type: str) -> Row:
    """Return details that only groups of one type have.

    Args:
        cluster: The cluster of the group.
        name: Group ID.
        group_type: Type of the group.

    Returns:
        The field `dead_letter_queue` of a share group, or `topology_description` of a streams group.

    Raises:
        KafkaError: The broker rejects a request.
    """
    if group_type == SHARE:
        queue = await dead_letter_queue(cluster, name)
        return {"dead_letter_queue": None if queue is None else asdict(queue)}
    if group_type == STREAMS:
        found = await topology_description(cluster, name)
        nodes = [node._asdict() for node in found.nodes]
        return {"topology_description": {"status": found.status, "nodes": nodes}}
    return {}


async def _partition_rows(
    cluster: ClusterClient, found: Group, committed: Mapping[Partition, int]
) -> list[Row]:
    """Return a row per partition of the group's topics, then a row per member without partitions."""
    owners = {one: member for member in found.members for one in member.partitions}
    existing = await _existing(cluster, {name for name, _ in (*committed, *owners)})
    partitions = sorted({*committed, *owners, *existing})
    starts, ends = await _bounds(cluster, existing)
    rows: list[Row] = []
    for one in partitions:
        current, end, member = committed.get(one), ends.get(one), owners.get(one)
        lag = None if current is None or end is None else max(end - current, 0)
        row: Row = {"topic": one[0], "partition": one[1], "current_offset": current}
        row |= {"log_start_offset": starts.get(one), "log_end_offset": end, "lag": lag}
        rows.append(row | _member_fields(member))
    blank = dict.fromkeys(FIELDS)
    idle = [member for member in found.members if not member.partitions]
    return rows + [blank | _member_fields(member) for member in idle]


async def _share_rows(
    cluster: ClusterClient, found: Group, offsets: Mapping[Partition, SharedOffset]
) -> list[Row]:
    """Return the rows of a share group: partitions with all their members, then idle members."""
    owners: dict[Partition, list[Member]] = {}
    for member in found.members:
        for one in member.partitions:
            owners.setdefault(one, []).append(member)
    partitions = sorted({*offsets, *owners})
    existing = await _existing(cluster, {name for name, _ in partitions})
    starts, ends = await _bounds(cluster, [one for one in partitions if one in existing])
    rows: list[Row] = []
    for one in partitions:
        known = offsets.get(one)
        row: Row = {"topic": one[0], "partition": one[1]}
        row["current_offset"] = None if known is None else known.start
        row |= {"log_start_offset": starts.get(one), "log_end_offset": ends.get(one)}
        row["lag"] = None if known is None else known.lag
        members = owners.get(one, [])
        row |= _member_fields(members[0] if len(members) == 1 else None)
        if len(members) > 1:
            row["member_id"] = ",".join(member.id for member in members)
        rows.append(row)
    blank = dict.fromkeys(FIELDS)
    idle = [member for member in found.members if not member.partitions]
    return rows + [blank | _member_fields(member) for member in idle]


def _member_fields(member: Member | None) -> Row:
    return {
        "member_id": member.id if member else None,
        "instance_id": member.instance_id if member else None,
        "client_id": member.client_id if member else None,
        "host": member.host if member else None,
    }


async def _existing(cluster: ClusterClient, topics: Iterable[str]) -> set[Partition]:
    """Return the partitions of the topics that still exist."""
    metadata = await cluster.metadata(sorted(topics))
    return {
        (topic.name or "", part.partition_index)
        for topic in metadata.topics
        for part in topic.partitions
    }


async def _bounds(
    cluster: ClusterClient, partitions: Iterable[Partition]
) -> tuple[dict[Partition, int], dict[Partition, int]]:
    """Return start and end offsets of existing partitions."""
    wanted = sorted(partitions)
    found = [
        await list_offsets(cluster, dict.fromkeys(wanted, timestamp))
        for timestamp in (EARLIEST, LATEST)
    ]
    starts, ends = (
        {one: row.offset for one, row in each.items() if not row.error} for each in found
    )
    return starts, ends
