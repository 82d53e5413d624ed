"""Partitions by endpoint of a streams application, for interactive queries (KIP-1071)."""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.protocol.messages.streams_groups import StreamsGroupHeartbeatResponse

from ..common.topics import KnownTopics
from .group import StreamsGroup, StreamsGroupMember
from .tasks import Tasks, keys_of
from .topics import ConfiguredTopology

Response = StreamsGroupHeartbeatResponse


def partitions_by_endpoint(
    group: StreamsGroup,
    members: Iterable[StreamsGroupMember],
    configured: ConfiguredTopology,
    topics: KnownTopics,
) -> list[Response.EndpointPartitions]:
    """Return a row for each member that has an endpoint.

    Rows are cached until their member changes, because there may be many.

    Args:
        group: The group, which caches the rows.
        members: The members after the step.
        configured: Topology of the group.
        topics: Topics of the cluster.
    """
    rows = []
    for each in members:
        if each.endpoint is None:
            continue
        row = group.endpoint_rows.get(each.id)
        if row is None:
            row = group.endpoint_rows[each.id] = _row(each, each.endpoint, configured, topics)
        rows.append(row)
    return rows


def _row(
    member: StreamsGroupMember,
    endpoint: tuple[str, int],
    configured: ConfiguredTopology,
    topics: KnownTopics,
) -> Response.EndpointPartitions:
    host, port = endpoint
    return Response.EndpointPartitions(
        user_endpoint=Response.Endpoint(host=host, port=port),
        active_partitions=_partitions(keys_of(member.assigned.active), configured, topics),
        standby_partitions=_partitions(member.assigned.standby, configured, topics),
    )


def _partitions(
    tasks: Tasks, configured: ConfiguredTopology, topics: KnownTopics
) -> list[Response.TopicPartition]:
    """Return the partitions that tasks read. A topic without such a partition has no row."""
    rows = []
    for subtopology, partitions in tasks.items():
        known = (configured.subtopologies or {}).get(subtopology)
        for topic in sorted(known.sources) if known is not None else ():
            count = topics.count_of(topic) or 0
            existing = sorted(each for each in partitions if each < count)
            if existing:
                rows.append(Response.TopicPartition(topic=topic, partitions=existing))
    return rows
