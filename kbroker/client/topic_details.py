"""Topic details as reported by commands and the console."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from kbroker.protocol.messages.metadata import MetadataResponse

from .cluster import ClusterClient
from .configs import Resource, describe_configs
from .errors import NoSuchPartition
from .list_offsets import EARLIEST, LATEST, list_offsets
from .topics import Partition

if TYPE_CHECKING:
    from uuid import UUID

Row: TypeAlias = dict[str, Any]


def topic_row(row: MetadataResponse.Topic) -> Row:
    """Return a summary row of a topic."""
    return {
        "name": row.name,
        "partitions": len(row.partitions),
        "replicas": max((len(part.replica_nodes) for part in row.partitions), default=0),
        "topic_id": id_text(row.topic_id),
        "internal": row.is_internal,
    }


def id_text(topic_id: UUID) -> str | None:
    """Return a topic ID in the format of Kafka's tools; None if the broker has no topic IDs."""
    if not topic_id.int:
        return None
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


async def topic_details(cluster: ClusterClient, names: Sequence[str]) -> list[Row]:
    """Return partitions and overridden configurations of topics.

    Raises:
        NoSuchTopic: A topic does not exist.
        KafkaError: A broker rejects a request.
    """
    rows = await topic_partitions(cluster, names)
    settings = await describe_configs(cluster, Resource.TOPIC, names)
    return [
        row
        | {
            "configs": {
                each.name: each.value for each in sorted(settings[row["name"]]) if each.is_own
            }
        }
        for row in rows
    ]


async def topic_partitions(cluster: ClusterClient, names: Sequence[str]) -> list[Row]:
    """Return the partitions of topics with their offsets; the caller needs only DESCRIBE.

    Raises:
        NoSuchTopic: A topic does not exist.
        KafkaError: A broker rejects a request.
    """
    topics = await cluster.topics(names)
    parts = [(row.name or "", part.partition_index) for row in topics for part in row.partitions]
    starts = await list_offsets(cluster, dict.fromkeys(parts, EARLIEST))
    ends = await list_offsets(cluster, dict.fromkeys(parts, LATEST))

    def partition(name: str, part: MetadataResponse.Partition) -> Row:
        start, end = starts[name, part.partition_index], ends[name, part.partition_index]
        return {
            "partition": part.partition_index,
            "leader": part.leader_id,
            "leader_epoch": part.leader_epoch,
            "replicas": part.replica_nodes,
            "isr": part.isr_nodes,
            "offline": part.offline_replicas,
            "start_offset": None if start.error else start.offset,
            "end_offset": None if end.error else end.offset,
            "error": end.error.name if end.error else None,
        }

    return [
        {
            "name": row.name,
            "topic_id": id_text(row.topic_id),
            "internal": row.is_internal,
            "replication_factor": len(row.partitions[0].replica_nodes),
            "partitions": [
                partition(row.name or "", part)
                for part in sorted(row.partitions, key=lambda part: part.partition_index)
            ],
        }
        for row in topics
    ]


async def choose_partitions(
    cluster: ClusterClient, name: str, partitions: tuple[int, ...]
) -> list[Partition]:
    """Return the given partitions of a topic, or all.

    Args:
        cluster: The cluster of the topic.
        name: Name of the topic.
        partitions: Partition numbers; empty for all.

    Raises:
        NoSuchTopic: The topic does not exist.
        NoSuchPartition: A partition does not exist.
    """
    (row,) = await cluster.topics([name])
    existing = sorted(part.partition_index for part in row.partitions)
    for index in partitions:
        if index not in existing:
            raise NoSuchPartition(
                name, index, len(existing), hint=f"`kbroker topic describe {name}` lists them"
            )
    return [(name, index) for index in sorted(partitions or existing)]
