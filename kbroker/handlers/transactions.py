"""InitProducerId: an id for an idempotent producer. DescribeProducers: who wrote to a partition."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from kbroker.cluster.model import check_topic_name
from kbroker.context import Context
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from kbroker.registry import handles
from kbroker.storage.producer_state import Producer


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


@handles(ApiKey.DESCRIBE_PRODUCERS, versions="0")
def describe_producers(
    ctx: Context, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    """Behaviour: the producers that partitions remember, by id (KIP-664)."""
    return DescribeProducersResponse(
        topics=[
            DescribeProducersResponse.Topic(
                name=topic.name,
                partitions=[
                    _producers_of(ctx, topic.name, index) for index in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )


def _producers_of(ctx: Context, name: str, index: int) -> DescribeProducersResponse.Partition:
    row = DescribeProducersResponse.Partition(partition_index=index)
    try:
        check_topic_name(name)
        ctx.node.cluster.existing(name, index)
        producers = sorted(ctx.node.named_replica(name, index).log.producers)
    except KafkaError as error:
        row.error_code, row.error_message = error.code, error.message
        return row
    row.active_producers = [_producer(*each) for each in producers]
    return row


def _producer(producer_id: int, state: Producer) -> DescribeProducersResponse.Producer:
    return DescribeProducersResponse.Producer(
        producer_id=producer_id,
        producer_epoch=state.epoch,
        last_sequence=state.batches[-1].last_sequence if state.batches else -1,
        last_timestamp=state.timestamp,
        coordinator_epoch=state.coordinator_epoch,
        current_txn_start_offset=state.transaction_start,
    )
