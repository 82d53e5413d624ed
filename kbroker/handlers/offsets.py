"""OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from kbroker.context import Context
from kbroker.coordinator.shapes import (
    commit_refused,
    fetch_refused,
    fetch_response,
    groups_to_fetch,
)
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import KafkaError
from kbroker.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kbroker.registry import handles
from kbroker.shards import ShardPending


@handles(ApiKey.OFFSET_COMMIT, versions="0-10")
def offset_commit(
    ctx: Context, request: OffsetCommitRequest
) -> OffsetCommitResponse | ShardPending | None:
    """Behaviour: answers when the offsets are as durable as any acknowledged record.

    Versions: 10 names topics by id.
    """
    groups = ctx.node.groups
    try:
        shard = groups.shard(request.group_id)
    except KafkaError as error:
        return commit_refused(request, error.code)
    return groups.run(shard, shard.coordinator.commit_offsets(request, groups.now(), ctx.version))


@handles(ApiKey.OFFSET_FETCH, versions="0-10")
def offset_fetch(
    ctx: Context, request: OffsetFetchRequest
) -> OffsetFetchResponse | Coroutine[Any, Any, OffsetFetchResponse]:
    """Behaviour: committed offsets; -1 where there is none.

    Versions: 8 asks for several groups, 10 names topics by id.
    """
    rows: list[OffsetFetchResponse.Group] = []
    waits: dict[int, ShardPending] = {}
    groups = ctx.node.groups
    for group in groups_to_fetch(request, ctx.version):
        try:
            shard = groups.shard(group.group_id)
        except KafkaError as error:
            rows.append(fetch_refused(group, error.code, ctx.version))
            continue
        row = groups.release(shard, shard.coordinator.fetch_offsets(group, ctx.version))
        if isinstance(row, ShardPending):
            waits[len(rows)] = row
            row = OffsetFetchResponse.Group(group_id=group.group_id)
        assert row is not None
        rows.append(row)
    if waits:
        return _when_all_committed(rows, waits, ctx.version)
    return fetch_response(rows, ctx.version)


async def _when_all_committed(
    rows: list[OffsetFetchResponse.Group], waits: dict[int, ShardPending], version: int
) -> OffsetFetchResponse:
    """Fill in the groups whose latest commits were not durable yet."""
    for position, pending in waits.items():
        rows[position] = await pending.wait() or rows[position]
    return fetch_response(rows, version)


@handles(ApiKey.OFFSET_DELETE, versions="0")
def offset_delete(
    ctx: Context, request: OffsetDeleteRequest
) -> OffsetDeleteResponse | ShardPending | None:
    """Behaviour: offsets of topics that no member is subscribed to go (KIP-496)."""
    groups = ctx.node.groups
    try:
        shard = groups.shard(request.group_id)
    except KafkaError as error:
        return OffsetDeleteResponse(error_code=error.code)
    return groups.run(shard, shard.coordinator.delete_offsets(request))
