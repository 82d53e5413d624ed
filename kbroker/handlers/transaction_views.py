"""DescribeTransactions, ListTransactions and DescribeProducers (KIP-664)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kbroker.cluster.model import check_topic_name
from kbroker.coordinator import TransactionMetadata, TransactionState
from kbroker.coordinator.consumer.patterns import compile_pattern
from kbroker.coordinator.transactions.transaction import by_topic
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from kbroker.security.acls import AclOperation, Resource
from kbroker.storage.producer_state import Producer

from .context import TRANSACTIONAL_ID, Context
from .deduplicate import distinct, distinct_partitions
from .registry import handles

STATES = {state.label for state in TransactionState}


@handles(ApiKey.DESCRIBE_TRANSACTIONS, versions="0", read_only=True)
async def describe_transactions(
    ctx: Context, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    """Return the state of transactional IDs.

    Differs from Kafka: an ID that is named several times has one row.
    """
    ids = distinct(request.transactional_ids)
    return DescribeTransactionsResponse(
        transaction_states=[_transaction_row(ctx, each) async for each in ctx.time_slice.each(ids)]
    )


def _transaction_row(
    ctx: Context, transactional_id: str
) -> DescribeTransactionsResponse.Transaction:
    row = DescribeTransactionsResponse.Transaction(transactional_id=transactional_id)
    if not transactional_id:
        row.error_code = ErrorCode.INVALID_REQUEST
        return row
    try:
        ctx.require_transaction(AclOperation.DESCRIBE, transactional_id)
        known = ctx.node.transactions.shard(transactional_id).coordinator.transactions
    except KafkaError as error:
        row.error_code = error.code
        return row
    transaction = known.get(transactional_id)
    if transaction is None:
        row.error_code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        return row
    row.transaction_state = transaction.state.label
    row.transaction_timeout_ms = transaction.timeout_ms
    row.transaction_start_time_ms = transaction.started_ms
    row.producer_id, row.producer_epoch = transaction.producer_id, transaction.epoch
    row.topics = [
        DescribeTransactionsResponse.Topic(topic=topic, partitions=indexes)
        for topic, indexes in by_topic(transaction.partitions).items()
        if ctx.may_list_topic(topic)
    ]
    return row


@handles(ApiKey.LIST_TRANSACTIONS, versions="0-2", read_only=True)
async def list_transactions(
    ctx: Context, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    """List the transactional IDs of this coordinator that match all filters.

    Versions: 1 filters by duration, 2 by a regular expression for the whole ID (KIP-1152).

    Errors: INVALID_REGULAR_EXPRESSION also if a complex expression meets a very long ID.
    """
    if ctx.node.transactions.is_loading:
        return ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    response = ListTransactionsResponse(
        unknown_state_filters=sorted(set(request.state_filters) - STATES)
    )
    wanted = _TransactionFilter(
        frozenset(request.state_filters),
        frozenset(request.producer_id_filters),
        request.duration_filter,
        ctx.node.clock.log_ms(),
    )
    known_ids = ctx.node.transactions.known()
    try:
        fits = _id_filter(request.transactional_id_pattern)
        response.transaction_states = [
            ListTransactionsResponse.Transaction(
                transactional_id=transactional_id,
                producer_id=known.producer_id,
                transaction_state=known.state.label,
            )
            async for _, transactional_id, known in ctx.time_slice.each(known_ids)
            if wanted.matches(known) and _may_see(ctx, transactional_id) and fits(transactional_id)
        ]
    except KafkaError as error:
        response.error_code = error.code
    return response


def _may_see(ctx: Context, transactional_id: str) -> bool:
    resource = Resource(TRANSACTIONAL_ID, transactional_id)
    return ctx.allows(AclOperation.DESCRIBE, resource, is_filter=True)


def _id_filter(pattern: str | None) -> Callable[[str], object]:
    """Return a predicate for IDs that match a RE2 pattern.

    Raises:
        KafkaError: INVALID_REGULAR_EXPRESSION. The predicate raises it too, for an ID that is too
            long for the pattern.
    """
    if not pattern:
        return lambda _: True
    return compile_pattern(pattern).matches


class _TransactionFilter(NamedTuple):
    """Filters of ListTransactions. An empty or negative filter matches everything."""

    states: frozenset[str]
    producer_ids: frozenset[int]
    longer_than_ms: int
    now_ms: int

    def matches(self, transaction: TransactionMetadata) -> bool:
        if self.states and transaction.state.label not in self.states:
            return False
        if self.producer_ids and transaction.producer_id not in self.producer_ids:
            return False
        open_ms = self.now_ms - transaction.started_ms
        return self.longer_than_ms < 0 or open_ms > self.longer_than_ms


@handles(ApiKey.DESCRIBE_PRODUCERS, versions="0", read_only=True)
async def describe_producers(
    ctx: Context, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    """Return the active producers of partitions, by producer ID (KIP-664).

    Differs from Kafka: a partition that is named several times has one row.
    """
    asked = ((topic.name, topic.partition_indexes) for topic in request.topics)
    topics = await distinct_partitions(ctx.time_slice, asked)
    return DescribeProducersResponse(
        topics=[
            DescribeProducersResponse.Topic(
                name=name,
                partitions=[
                    await _producers_of(ctx, name, index)
                    async for index in ctx.time_slice.each(indexes)
                ],
            )
            async for name, indexes in ctx.time_slice.each(topics.items())
        ]
    )


async def _producers_of(ctx: Context, name: str, index: int) -> DescribeProducersResponse.Partition:
    row = DescribeProducersResponse.Partition(partition_index=index)
    try:
        ctx.require_topic(AclOperation.READ, name)
        check_topic_name(name)
        ctx.node.cluster.existing(name, index)
        producers = sorted(ctx.node.partitions.named_replica(name, index).log.producers)
    except KafkaError as error:
        row.error_code, row.error_message = error.code, error.message
        return row
    row.active_producers = [_producer_row(*each) async for each in ctx.time_slice.each(producers)]
    return row


def _producer_row(producer_id: int, state: Producer) -> DescribeProducersResponse.Producer:
    return DescribeProducersResponse.Producer(
        producer_id=producer_id,
        producer_epoch=state.epoch,
        last_sequence=state.batches[-1].last_sequence if state.batches else -1,
        last_timestamp=state.timestamp,
        coordinator_epoch=state.coordinator_epoch,
        current_txn_start_offset=state.transaction_start,
    )
