"""Which of the topics that a request names its client may use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from kbroker.protocol.schema import ZERO_UUID
from kbroker.security.acls import AclOperation, Resource

from .context import TOPIC, Context

Row = TypeVar("Row")


async def split(
    ctx: Context, operation: AclOperation, topics: Iterable[Row]
) -> tuple[list[Row], list[Row]]:
    """The rows of topics, named by their names or ids, with which the client may do that, and the
    others.

    An id that is nobody's is not denied: that there is none is no secret.
    """
    permitted: list[Row] = []
    denied: list[Row] = []
    async for row in ctx.time_slice.each(topics):
        (permitted if is_permitted(ctx, operation, row) else denied).append(row)
    return permitted, denied


def is_permitted(ctx: Context, operation: AclOperation, row: Any) -> bool:
    """Whether the client may do that with the topic of a row."""
    name = name_of(ctx, row)
    return not name or ctx.allows(operation, Resource(TOPIC, name))


def name_of(ctx: Context, row: Any) -> str:
    """The name of the topic that a row is about; empty where there is none of its id."""
    topic_id = getattr(row, "topic_id", ZERO_UUID)
    if topic_id == ZERO_UUID:
        return str(row.name)
    topic = ctx.node.cluster.topics_by_id.get(topic_id)
    return "" if topic is None else topic.name
