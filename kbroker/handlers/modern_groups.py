"""Code shared by the handlers of consumer, share and streams groups (KIP-848, 932, 1071)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from kbroker.coordinator import GroupCoordinator
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.security.acls import AclOperation, Resource

from .context import GROUP, TOPIC, Context
from .deduplicate import distinct
from .groups import Part, together

Row = TypeVar("Row")
"""The part of an answer that describes one group: each API has its own, with the same error fields."""


def require_feature(ctx: Context, name: str) -> None:
    """Raise KafkaError UNSUPPORTED_VERSION where nodes may run that do not know a kind of groups.

    Parameters: `name` is the feature of that kind, such as ``share.version``.
    """
    if not ctx.node.cluster.features.get(name):
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"The cluster runs {name} 0; when all nodes are up to date: kafka-features upgrade "
            f"--feature {name}=1",
        )


async def require_known_topics(ctx: Context, names: Iterable[str]) -> None:
    """Raise KafkaError TOPIC_AUTHORIZATION_FAILED where a client may not know of one of these topics."""
    async for name in ctx.time_slice.each(distinct(names)):
        ctx.require_topic(AclOperation.DESCRIBE, name)


async def may_know_all(ctx: Context, names: Iterable[str]) -> bool:
    """Whether a client may know of all these topics, which it has not named itself."""
    async for name in ctx.time_slice.each(distinct(names)):
        if not ctx.allows(AclOperation.DESCRIBE, Resource(TOPIC, name), is_looked_for=True):
            return False
    return True


async def describe_all(
    ctx: Context,
    request: Any,
    row_class: Callable[..., Row],
    *,
    check: Callable[[str], None],
    describe: Callable[[GroupCoordinator, str], Row],
    visible: Callable[[Context, Row], Awaitable[Row]],
) -> list[Row]:
    """The rows of a request that asks for groups by their ids: one each, once it is committed.

    Parameters:
      request: With `group_ids` and `include_authorized_operations`.
      check: Raises KafkaError for a group that the client is told nothing of.
      visible: The row as the client may see it.
    """
    groups = ctx.node.groups
    parts: list[Part[Row]] = []
    async for group_id in ctx.time_slice.each(distinct(request.group_ids)):
        lost: Any = row_class(group_id=group_id, error_code=ErrorCode.NOT_COORDINATOR)
        try:
            check(group_id)
            shard = groups.shard(group_id)
        except KafkaError as error:
            lost.error_code, lost.error_message = error.code, error.message
            parts.append((None, [lost]))
            continue
        row: Any = await visible(ctx, describe(shard.coordinator, group_id))
        if request.include_authorized_operations and not row.error_code:
            row.authorized_operations = ctx.operations(Resource(GROUP, group_id))
        if groups.serves(shard):
            parts.append((groups.release(shard, [row]), [lost]))
        else:
            parts.append((None, [lost]))
    return await together(ctx.time_slice, parts)
