"""Current leaders in responses to clients that sent a request to the wrong node (KIP-951)."""

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

# Errors whose response row names the current leader.
WRONG_LEADER = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})

# A partition: the name or the ID of its topic, and its index.
Place: TypeAlias = tuple[str | UUID, int]
Response: TypeAlias = (
    ProduceResponse | FetchResponse | ShareFetchResponse | ShareAcknowledgeResponse
)
Row: TypeAlias = (
    ProduceResponse.Partition
    | FetchResponse.Partition
    | ShareFetchResponse.Partition
    | ShareAcknowledgeResponse.Partition
)


def add_current_leaders(
    ctx: Context, response: Response, rows: Iterable[tuple[str | UUID, int, Row]]
) -> None:
    """Add the current leader to each row with an error in `WRONG_LEADER`, and its address.

    If this node lost leadership and does not know the new leader yet, the row gets no leader: the
    client would only retry on this node.

    Args:
        ctx: Context of the request.
        response: The response to extend.
        rows: All rows of `response`, with the name or ID of their topic and their partition.
    """
    kind: Any = type(response)
    leaders: dict[int, None] = {}
    for key, index, row in rows:
        partition = _partition(ctx, key, index) if row.error_code in WRONG_LEADER else None
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

    Args:
        ctx: Context of the request.
        rows: Rows as for `add_current_leaders`.
    """
    for key, index, row in rows:
        if row.error_code in WRONG_LEADER and awaits_new_leader(ctx, (key, index)):
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
