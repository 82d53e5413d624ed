"""InitProducerId: an id for an idempotent producer."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from kbroker.context import Context
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from kbroker.registry import handles


@handles(ApiKey.INIT_PRODUCER_ID, versions="0-5")
def init_producer_id(
    ctx: Context, request: InitProducerIdRequest
) -> InitProducerIdResponse | Coroutine[Any, Any, InitProducerIdResponse]:
    """Behaviour: a new producer id with epoch 0, never given before in this cluster.

    Differs from Kafka: there are no transactions yet, so a transactional id fails with
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED, which clients do not retry.
    """
    if request.transactional_id is None:
        return _new_id(ctx)
    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not request.transactional_id:
        code = ErrorCode.INVALID_REQUEST
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


async def _new_id(ctx: Context) -> InitProducerIdResponse:
    return InitProducerIdResponse(producer_id=await ctx.node.producer_ids.next(), producer_epoch=0)
