"""Deletion of committed offsets of groups of all types."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kbroker.protocol.errors import ErrorCode

from .cluster import ClusterClient
from .errors import ClientError
from .groups import committed_offsets, delete_offsets, is_share_group
from .seek import is_selected
from .share_groups import delete_share_offsets, share_offsets
from .topics import Partition


class WholeTopicsOnly(ClientError):
    """Offsets of a share group are deleted for all partitions of a topic at once."""

    def __init__(self, group: str) -> None:
        super().__init__(
            f"share group {group!r}: offsets can be deleted for whole topics only; pass topics "
            "without partitions"
        )


async def offsets_to_delete(
    cluster: ClusterClient, group: str, topics: Mapping[str, set[int] | None]
) -> dict[Partition, int | None]:
    """Return the offsets of a group in selected partitions; None for an offset that is not set yet.

    Args:
        cluster: The cluster of the group.
        group: Group ID.
        topics: Partition numbers by topic, None for all partitions of the topic.

    Raises:
        WholeTopicsOnly: Partitions of a share group are selected.
        KafkaError: The broker rejects a request.
    """
    if not await is_share_group(cluster, group):
        known: Mapping[Partition, int | None] = await committed_offsets(cluster, group)
    elif any(numbers is not None for numbers in topics.values()):
        raise WholeTopicsOnly(group)
    else:
        shared = await share_offsets(cluster, group)
        known = {one: each.start for one, each in shared.items()}
    return {one: offset for one, offset in known.items() if is_selected(topics, one)}


async def delete_group_offsets(
    cluster: ClusterClient, group: str, partitions: Collection[Partition]
) -> dict[Partition, ErrorCode]:
    """Delete the offsets of a group in the partitions that `offsets_to_delete` returned.

    Offsets that members commit in other partitions in the meantime stay.

    Args:
        cluster: The cluster of the group.
        group: Group ID.
        partitions: The partitions; all those with offsets in a topic if it is a share group.

    Returns:
        The error code by partition.

    Raises:
        KafkaError: The broker rejects a request.
    """
    if not partitions:
        return {}
    if await is_share_group(cluster, group):
        outcomes = await delete_share_offsets(cluster, group, {topic for topic, _ in partitions})
        return {one: outcomes[one[0]] for one in partitions if one[0] in outcomes}
    return await delete_offsets(cluster, group, partitions)
