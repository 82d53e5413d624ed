"""Where to go after a refusal: who leads instead, and where that node is (KIP-951)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias
from uuid import UUID

from kbroker.cluster import Partition
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.protocol.messages.produce import ProduceResponse
from kbroker.protocol.messages.share_groups import ShareAcknowledgeResponse, ShareFetchResponse

from .context import Context

TELLING = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})

Place: TypeAlias = tuple[str | UUID, int]
"""A partition: the name or the id of its topic, and its number."""
Response: TypeAlias = (
    ProduceResponse | FetchResponse | ShareFetchResponse | ShareAcknowledgeResponse
)
Row: TypeAlias = (
    ProduceResponse.Partition
    | FetchResponse.Partition
    | ShareFetchResponse.Partition
    | ShareAcknowledgeResponse.Partition
)


def tell_leaders(
    ctx: Context, response: Response, rows: Iterable[tuple[str | UUID, int, Row]]
) -> None:
    """Name the leader in each row that was refused for asking the wrong node, and their addresses.

    A node that has not heard who leads instead of itself names nobody: whoever is told that it is this
    one would ask again here, and later.

    `rows` are those of `response`, each with the name or the id of its topic and its partition.
    """
    kind: Any = type(response)
    leaders: dict[int, None] = {}
    for key, index, row in rows:
        partition = _partition(ctx, key, index) if row.error_code in TELLING else None
        if partition is not None and not ctx.node.partitions.awaits_new_leader(partition):
            row.current_leader = kind.Leader(
                leader_id=partition.leader, leader_epoch=partition.leader_epoch
            )
            leaders[partition.leader] = None
    for node_id in leaders:
        registration = ctx.node.cluster.registration(node_id)
        endpoint = ctx.endpoint_of(node_id)
        if registration is not None and endpoint is not None:
            response.node_endpoints.append(
                kind.Endpoint(
                    node_id=node_id, host=endpoint.host, port=endpoint.port, rack=registration.rack
                )
            )


def first_awaiting_leader(
    ctx: Context, rows: Iterable[tuple[str | UUID, int, Row]]
) -> Place | None:
    """Return the first rejected partition whose new leader this node does not know yet, or None.

    `rows`: as for `tell_leaders`.
    """
    for key, index, row in rows:
        if row.error_code in TELLING and awaits_new_leader(ctx, (key, index)):
            return key, index
    return None


def awaits_new_leader(ctx: Context, place: Place) -> bool:
    """Return True if this node lost the leadership of a partition and does not know the new leader."""
    partition = _partition(ctx, *place)
    return partition is not None and ctx.node.partitions.awaits_new_leader(partition)


def _partition(ctx: Context, key: str | UUID, index: int) -> Partition | None:
    cluster = ctx.node.cluster
    topic = cluster.topics.get(key) if isinstance(key, str) else cluster.topics_by_id.get(key)
    if topic is None or not 0 <= index < len(topic.partitions):
        return None
    return topic.partitions[index]
