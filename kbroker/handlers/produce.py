"""Produce: record batches for the partitions that this node leads."""

from __future__ import annotations

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.protocol.records import claims_transaction
from kbroker.runtime.time_slices import Later

from .context import Context
from .produce_operation import (
    ROWS_AT_ONCE,
    ROWS_OF_ONE,
    Answer,
    ProduceOperation,
    names_transaction,
)
from .registry import handles


@handles(ApiKey.PRODUCE, versions="0-13")
def produce(ctx: Context, request: ProduceRequest) -> Answer | Later[Answer]:
    """Append batches in their order of arrival.

    acks=all gets its response when all batches are below the high watermark, acks=1 when they are
    durable on this node.

    Compressed batches are decompressed first, to validate their records. A batch whose codec
    differs from the topic's `compression.type` is recompressed. While that work is offloaded, the
    next request of the connection waits. A transactional batch is appended only if the
    transaction contains its partition.

    Versions: 0 to 2 carry message sets, which are converted as in Kafka before 4.0. librdkafka
    before 2.11.1 compresses only if version 0 is listed (KAFKA-18659). 11 knows
    TRANSACTION_ABORTABLE. From 12 on, a write adds its partition to the transaction (KIP-890).
    13 names topics by ID (KIP-516).

    Differs from Kafka: acks=1 waits for the fsync like acks=all (with `flush.policy=fsync`). If the
    ISR is too small after the append, the error at the timeout is NOT_ENOUGH_REPLICAS_AFTER_APPEND
    instead of REQUEST_TIMED_OUT.
    """
    if ctx.quota_charge is not None:
        ctx.quota_charge.produce()
    operation = ProduceOperation(ctx, request)
    if ctx.rows > ROWS_AT_ONCE:
        return operation.append_in_time_slices()
    one = request.topic_data[0].partition_data if ctx.rows == ROWS_OF_ONE else []
    if claims_transaction(one[0].records) if one else names_transaction(request):
        operation.check_transaction()
    if request.transactional_id is not None:
        missing = operation.missing_in_transaction()
        if missing:
            return operation.verify_and_append(missing)
    if one:
        return operation.append_one()
    return operation.append_all()
