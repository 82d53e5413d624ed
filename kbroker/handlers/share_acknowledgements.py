"""Acknowledgements in ShareFetch and ShareAcknowledge requests (KIP-932)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kbroker.coordinator import Acknowledgement
from kbroker.coordinator.share.delivery import REJECT, RENEW
from kbroker.coordinator_runtime.share_partitions import Outcome
from kbroker.node.share_sessions import TargetKey
from kbroker.partitions.waiters import Pending
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.share_state_log import SharePartitionKey
from kbroker.security.acls import AclOperation

from .context import Context
from .share_groups import require_share_groups

FIRST_VERSION_WITH_RENEWAL = 2
MEMBER_ID_CHARACTERS_MAX = 36


def check_member(ctx: Context, request: Any) -> tuple[str, str]:
    """Return the group ID and member ID of a request.

    Raises:
        KafkaError: Share groups are disabled, an ID is invalid, or the client may not read the
            group.
    """
    require_share_groups(ctx)
    group_id, member_id = request.group_id, request.member_id
    if group_id is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    ctx.require_group(AclOperation.READ, group_id)
    if not member_id or len(member_id) > MEMBER_ID_CHARACTERS_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    return group_id, member_id


async def acknowledge(ctx: Context, request: Any) -> dict[TargetKey, Outcome]:
    """Process the acknowledgements of a request, for each partition independently.

    If a partition has several rows, the last one counts. As in Kafka, a partition without
    acknowledgements has an outcome only if another partition has a valid one.

    Returns:
        The outcome of each partition, after everything is stored.
    """
    asked: dict[TargetKey, Sequence[Any]] = {}
    async for topic in ctx.time_slice.each(request.topics):
        async for row in ctx.time_slice.each(topic.partitions):
            asked[topic.topic_id, row.partition_index] = row.acknowledgement_batches
    outcomes: dict[TargetKey, Outcome | Pending[Outcome]] = {}
    has_nothing: list[TargetKey] = []
    has_valid = False
    async for key, rows in ctx.time_slice.each(asked.items()):
        try:
            await _check(ctx, request, key, rows)
            if rows:
                has_valid = True
                outcomes[key] = await _acknowledge(ctx, request, key, rows)
            else:
                has_nothing.append(key)
        except KafkaError as error:
            outcomes[key] = Outcome(error.code, error.message)
    if has_valid:
        outcomes.update(dict.fromkeys(has_nothing, Outcome()))
    return {
        key: await _outcome_of(each) async for key, each in ctx.time_slice.each(outcomes.items())
    }


async def _outcome_of(outcome: Outcome | Pending[Outcome]) -> Outcome:
    if isinstance(outcome, Pending):
        return await outcome.wait() or Outcome(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return outcome


async def _check(ctx: Context, request: Any, key: TargetKey, rows: Sequence[Any]) -> None:
    """Check the acknowledgements of a partition, and that the client may send them."""
    topic_id, index = key
    topic = ctx.node.cluster.topics_by_id.get(topic_id)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    last_type = RENEW if ctx.version >= FIRST_VERSION_WITH_RENEWAL else REJECT
    before = -1
    async for row in ctx.time_slice.each(rows):
        types = row.acknowledge_types
        if not (
            before <= row.first_offset <= row.last_offset
            and types
            and (len(types) == 1 or len(types) == row.last_offset - row.first_offset + 1)
            and min(types) >= 0
            and max(types) <= last_type
            and (request.is_renew_ack or RENEW not in types)
        ):
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        before = row.last_offset
    try:
        ctx.require_topic(AclOperation.READ, topic.name)
    except KafkaError as error:
        raise KafkaError(error.code) from None
    if not 0 <= index < len(topic.partitions):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


async def _acknowledge(
    ctx: Context, request: Any, key: TargetKey, rows: Sequence[Any]
) -> Outcome | Pending[Outcome]:
    acknowledgements = [
        Acknowledgement(row.first_offset, row.last_offset, row.acknowledge_types)
        async for row in ctx.time_slice.each(rows)
    ]
    shares = ctx.node.share.partitions
    share_partition = shares.known(SharePartitionKey(request.group_id, *key))
    if share_partition is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
        )
    return shares.acknowledge(share_partition, request.member_id, acknowledgements)
