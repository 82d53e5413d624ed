"""ShareAcknowledge: acknowledgements of share group members without a fetch (KIP-932)."""

from __future__ import annotations

from kbroker.node.share_sessions import FINAL_EPOCH, INITIAL_EPOCH
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.share_groups import (
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
)

from .context import Context
from .current_leader import WRONG_LEADER, add_current_leaders
from .registry import handles
from .share_acknowledgements import acknowledge, check_member


@handles(ApiKey.SHARE_ACKNOWLEDGE, versions="1-2")
async def share_acknowledge(
    ctx: Context, request: ShareAcknowledgeRequest
) -> ShareAcknowledgeResponse:
    """Accept, release, reject or renew acquired records, and respond when the change is stored.

    Session epoch -1 closes the member's share session and releases its acquired records.

    Versions: 2 can renew acquisition locks (KIP-1222), and returns the lock timeout.
    """
    sessions = ctx.node.share.sessions
    try:
        group_id, member_id = check_member(ctx, request)
        epoch = request.share_session_epoch
        if epoch == INITIAL_EPOCH:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        if epoch == FINAL_EPOCH:
            session = sessions.find(group_id, member_id)
        else:
            session = sessions.advance(group_id, member_id, epoch)
    except KafkaError as error:
        return ShareAcknowledgeResponse(error_code=error.code)
    outcomes = await acknowledge(ctx, request)
    if epoch == FINAL_EPOCH and sessions.is_current(session):
        ctx.node.share.release(session)
        sessions.end(session)
    response = ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=ctx.node.share.partitions.settings(group_id).delivery.lock_ms
    )
    topics: dict[object, ShareAcknowledgeResponse.Topic] = {}
    rejected = []
    async for (topic_id, index), outcome in ctx.time_slice.each(outcomes.items()):
        topic = topics.get(topic_id)
        if topic is None:
            topic = topics[topic_id] = ShareAcknowledgeResponse.Topic(topic_id=topic_id)
            response.responses.append(topic)
        row = ShareAcknowledgeResponse.Partition(
            partition_index=index, error_code=outcome.code, error_message=outcome.message
        )
        topic.partitions.append(row)
        if row.error_code in WRONG_LEADER:
            rejected.append((topic_id, index, row))
    add_current_leaders(ctx, response, rejected)
    return response
