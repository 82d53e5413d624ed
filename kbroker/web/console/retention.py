"""Records that a change of a topic's retention would delete, for previews of the change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from kbroker.client.errors import ClientError
from kbroker.client.offset_spec import END, START, Kind, OffsetSpec, find
from kbroker.client.topic_details import choose_partitions
from kbroker.protocol.errors import KafkaError

from .bodies import ITEMS_MAX
from .sessions import Viewer
from .topics import partition_sizes

CLEANUP_POLICY, RETENTION_MS, RETENTION_BYTES = "cleanup.policy", "retention.ms", "retention.bytes"


class Deletion(TypedDict, total=False):
    """Upper limit of what the new value of a setting deletes; the broker deletes whole segments.

    Attributes:
        setting: `retention.ms` or `retention.bytes`.
        policy: The topic's cleanup policy, if it does not include `delete`; all other fields are missing.
        before_ms: For `retention.ms`: records before this time are too old.
        records: Number of the records at the beginning of the partitions that are too old.
        total_records: Number of all records.
        bytes: For `retention.bytes`: size beyond the limit in all partitions.
        total_bytes: Size of all partitions.
    """

    setting: str
    policy: str
    before_ms: int
    records: int
    total_records: int
    bytes: int
    total_bytes: int


async def deletions(
    viewer: Viewer, topic: str, new_values: Mapping[str, str | None], policy: str, now_ms: int
) -> list[Deletion]:
    """Return what new values of settings would delete.

    Args:
        viewer: The viewer, who may lack the permission to describe the topic.
        topic: Name of the topic.
        new_values: New effective values by setting.
        policy: The effective cleanup policy after the change.
        now_ms: Current time of the log clock, in ms since the epoch.

    Returns:
        A row for each retention setting, except without a limit. Empty if the viewer may not
        describe the topic, or if it has too many partitions.
    """
    limits = {
        name: int(value)
        for name in (RETENTION_MS, RETENTION_BYTES)
        if (value := new_values.get(name)) is not None and int(value) >= 0
    }
    if limits and "delete" not in (each.strip() for each in policy.split(",")):
        return [{"setting": name, "policy": policy} for name in limits]
    rows: list[Deletion] = []
    try:
        if RETENTION_MS in limits:
            rows += await _older_records(viewer, topic, now_ms - limits[RETENTION_MS])
        if RETENTION_BYTES in limits:
            rows.append(await _excess_bytes(viewer, topic, limits[RETENTION_BYTES]))
    except (ClientError, KafkaError):
        return []
    return rows


async def _older_records(viewer: Viewer, topic: str, before_ms: int) -> list[Deletion]:
    chosen = await choose_partitions(viewer.cluster, topic, ())
    if len(chosen) > ITEMS_MAX:
        return []
    starts = await find(viewer.cluster, chosen, START)
    ends = await find(viewer.cluster, chosen, END)
    new = await find(viewer.cluster, chosen, OffsetSpec(Kind.TIME, before_ms))
    return [
        {
            "setting": RETENTION_MS,
            "before_ms": before_ms,
            "records": sum(max(new[one] - starts[one], 0) for one in chosen),
            "total_records": sum(ends[one] - starts[one] for one in chosen),
        }
    ]


async def _excess_bytes(viewer: Viewer, topic: str, limit: int) -> Deletion:
    (row,) = await viewer.cluster.topics([topic])
    sizes = await partition_sizes(viewer.cluster, {topic: len(row.partitions)})
    return {
        "setting": RETENTION_BYTES,
        "bytes": sum(max(each - limit, 0) for each in sizes.values()),
        "total_bytes": sum(sizes.values()),
    }
