"""Produce: append record batches as the leader."""

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
    """Behaviour: appends in arrival order; answers acks=all when all batches are below the high
    watermark, acks=1 when they are durable on this node.

    A compressed batch is opened before, to see that its records are there, and one in another codec
    than its topic's `compression.type` is recompressed; where that takes long, the next request of
    the connection waits for it. A transactional batch is appended only when the transaction knows
    of its partition.

    Versions: 0 to 2 carry messages of the formats before record batches, which are converted as
    Kafka did before 4.0. librdkafka before 2.11.1 compresses only when it sees 0 (KAFKA-18659).
    11 knows TRANSACTION_ABORTABLE. From 12 on partitions join the transaction by being written
    (KIP-890). 13 names topics by id (KIP-516).

    Differs from Kafka: acks=1 waits for the disk like acks=all (with `flush.policy=fsync`). Where
    too few replicas are in sync after the append, that and not the timeout is the error.
    """
    if ctx.quota_charge is not None:
        ctx.quota_charge.produce()
    operation = ProduceOperation(ctx, request)
    if ctx.rows > ROWS_AT_ONCE:
        return operation.do_in_turns()
    one = request.topic_data[0].partition_data if ctx.rows == ROWS_OF_ONE else []
    if claims_transaction(one[0].records) if one else names_transaction(request):
        operation.check_transaction()
    if request.transactional_id is not None:
        missing = operation.missing_in_transaction()
        if missing:
            return operation.ask_and_append(missing)
    if one:
        return operation.append_one()
    return operation.append_all()
