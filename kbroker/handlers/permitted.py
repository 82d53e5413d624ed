"""Authorization of the topics that a request names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from kbroker.protocol.schema import ZERO_UUID
from kbroker.security.acls import AclOperation, Resource

from .context import TOPIC, Context

Row = TypeVar("Row")


async def split_permitted(
    ctx: Context, operation: AclOperation, topics: Iterable[Row]
) -> tuple[list[Row], list[Row]]:
    """Return the rows of permitted topics and the rows of denied topics.

    Rows name topics by name or ID. An unknown ID is permitted: the handler reports it.

    Args:
        ctx: Context of the request.
        operation: Operation that the client needs.
        topics: Rows of the request.
    """
    permitted: list[Row] = []
    denied: list[Row] = []
    async for row in ctx.time_slice.each(topics):
        (permitted if is_permitted(ctx, operation, row) else denied).append(row)
    return permitted, denied


def is_permitted(ctx: Context, operation: AclOperation, row: Any) -> bool:
    """Return True if the client may perform an operation on the topic of a row."""
    name = name_of(ctx, row)
    return not name or ctx.allows(operation, Resource(TOPIC, name))


def name_of(ctx: Context, row: Any) -> str:
    """Return the topic name of a row, or an empty string if its topic ID is unknown."""
    topic_id = getattr(row, "topic_id", ZERO_UUID)
    if topic_id == ZERO_UUID:
        return str(row.name)
    topic = ctx.node.cluster.topics_by_id.get(topic_id)
    return "" if topic is None else topic.name
