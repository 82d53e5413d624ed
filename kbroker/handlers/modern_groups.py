"""Code shared by the handlers of consumer, share and streams groups (KIP-848, 932, 1071)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from kbroker.coordinator import GroupCoordinator
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.security.acls import AclOperation, Resource

from .context import GROUP, TOPIC, Context
from .deduplicate import distinct
from .groups import Part, collect_rows

# Response row of one group: each API has its own class, with the same error fields.
Row = TypeVar("Row")


def require_feature(ctx: Context, name: str) -> None:
    """Check that a group type is enabled in the cluster.

    Args:
        ctx: Context of the request.
        name: Feature of the group type, such as ``share.version``.

    Raises:
        KafkaError: UNSUPPORTED_VERSION: the finalized level of the feature is 0.
    """
    if not ctx.node.cluster.features.get(name):
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"The cluster has {name} 0; when all nodes are upgraded, run: kafka-features upgrade "
            f"--feature {name}=1",
        )


async def require_known_topics(ctx: Context, names: Iterable[str]) -> None:
    """Check that the client may describe all topics that it named.

    Raises:
        KafkaError: TOPIC_AUTHORIZATION_FAILED.
    """
    async for name in ctx.time_slice.each(distinct(names)):
        ctx.require_topic(AclOperation.DESCRIBE, name)


async def may_know_all(ctx: Context, names: Iterable[str]) -> bool:
    """Return True if the client may describe all these topics, which it did not name itself."""
    async for name in ctx.time_slice.each(distinct(names)):
        if not ctx.allows(AclOperation.DESCRIBE, Resource(TOPIC, name), is_filter=True):
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
    """Return one row for each distinct group, after its pending writes are committed.

    Args:
        ctx: Context of the request.
        request: Message with `group_ids` and `include_authorized_operations`.
        row_class: Class of the rows.
        check: Raises KafkaError if the client may not describe a group.
        describe: Returns the row of a group.
        visible: Returns a row without the parts that the client may not see.
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
    return await collect_rows(ctx.time_slice, parts)
