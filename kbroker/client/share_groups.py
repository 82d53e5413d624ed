"""Offsets of share groups (KIP-932)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequest,
)

from .cluster import ClusterClient
from .errors import check, error_code
from .groups import ask_coordinator
from .topics import Partition


class SharedOffset(NamedTuple):
    """Share-partition start offset (SPSO) and lag; None if not known yet."""

    start: int | None
    lag: int | None


async def share_offsets(cluster: ClusterClient, name: str) -> dict[Partition, SharedOffset]:
    """Return the offsets of all partitions that a share group has state for. Raises KafkaError."""
    cls = DescribeShareGroupOffsetsRequest
    request = cls(groups=[cls.Group(group_id=name, topics=None)])
    answer = await ask_coordinator(
        cluster, name, request, lambda answer: int(answer.groups[0].error_code)
    )
    (group,) = answer.groups
    check(group.error_code, group.error_message)
    offsets = {}
    for topic in group.topics:
        for row in topic.partitions:
            check(row.error_code, row.error_message)
            offsets[topic.topic_name, row.partition_index] = SharedOffset(
                row.start_offset if row.start_offset >= 0 else None,
                row.lag if row.lag >= 0 else None,
            )
    return dict(sorted(offsets.items()))


async def alter_share_offsets(
    cluster: ClusterClient, name: str, offsets: Mapping[Partition, int]
) -> dict[Partition, ErrorCode]:
    """Set the start offsets of a share group without members.

    Args:
        cluster: The cluster of the group.
        name: Group ID.
        offsets: New start offset by partition.

    Returns:
        The error code by partition.
    """
    cls = AlterShareGroupOffsetsRequest
    rows: dict[str, list[AlterShareGroupOffsetsRequest.Partition]] = {}
    for (topic, index), offset in offsets.items():
        row = cls.Partition(partition_index=index, start_offset=offset)
        rows.setdefault(topic, []).append(row)
    topics = [cls.Topic(topic_name=name, partitions=some) for name, some in rows.items()]
    request = cls(group_id=name, topics=topics)
    answer = await ask_coordinator(cluster, name, request, lambda answer: int(answer.error_code))
    code = error_code(answer.error_code)
    if code:
        return dict.fromkeys(offsets, code)
    return {
        (topic.topic_name, row.partition_index): error_code(row.error_code)
        for topic in answer.responses
        for row in topic.partitions
    }


async def delete_share_offsets(
    cluster: ClusterClient, name: str, topics: Iterable[str]
) -> dict[str, ErrorCode]:
    """Delete the state of topics in a share group without members; return error codes by topic."""
    cls = DeleteShareGroupOffsetsRequest
    rows = [cls.Topic(topic_name=topic) for topic in sorted(topics)]
    if not rows:
        return {}
    request = cls(group_id=name, topics=rows)
    answer = await ask_coordinator(cluster, name, request, lambda answer: int(answer.error_code))
    code = error_code(answer.error_code)
    if code:
        return dict.fromkeys((row.topic_name for row in rows), code)
    return {row.topic_name: error_code(row.error_code) for row in answer.responses}
