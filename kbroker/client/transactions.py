"""Transactions as operators see them: how they stand, and ends of those that hang (KIP-664)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import trio

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    WriteTxnMarkersRequest,
)

from .cluster import RETRY_BACKOFF_SECONDS, TRANSACTION, ClusterClient
from .errors import NoSuchTransaction, check, error_code
from .topics import Partition, by_leader

ONGOING = "Ongoing"
RETRY_TIMEOUT_SECONDS = 15
"""How long an EndTxn is retried while the end of the transaction is being written."""
TIMEOUT_MS = 60_000
NO_LEADER = -1
NOT_OPEN = -1

Row: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    """A transactional id as ListTransactions shows it."""

    id: str
    producer_id: int
    state: str
    coordinator: int

    def row(self) -> Row:
        """As commands and the console tell of it."""
        return {
            "transactional_id": self.id,
            "producer_id": self.producer_id,
            "state": self.state,
            "coordinator": self.coordinator,
        }


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id as its coordinator describes it; times are ms, -1 for none."""

    id: str
    coordinator: int
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    partitions: list[Partition]

    def row(self) -> Row:
        """As commands and the console tell of it."""
        return {
            "transactional_id": self.id,
            "coordinator": self.coordinator,
            "state": self.state,
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
            "timeout_ms": self.timeout_ms,
            "start_timestamp": self.start_ms if self.start_ms >= 0 else None,
            "partitions": [f"{name}-{index}" for name, index in self.partitions],
        }


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """What one partition knows of a transaction that is open in it.

    `start_offset` is its first record, `last_timestamp` (ms) the time of its newest one.
    """

    partition: Partition
    producer_id: int
    producer_epoch: int
    start_offset: int
    last_timestamp: int
    coordinator_epoch: int

    def row(self) -> Row:
        """As commands and the console tell of it."""
        topic, index = self.partition
        return {
            "topic": topic,
            "partition": index,
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
            "start_offset": self.start_offset,
            "last_timestamp": self.last_timestamp,
            "coordinator_epoch": self.coordinator_epoch,
        }


async def list_transactions(
    cluster: ClusterClient,
    *,
    states: Sequence[str] = (),
    producer_ids: Iterable[int] = (),
    longer_than_ms: int = -1,
) -> list[ListedTransaction]:
    """All transactional ids of all brokers that match, by name.

    Parameters: `longer_than_ms` asks for transactions that have been open for longer; brokers
    before Kafka 3.8 cannot tell. Raises KafkaError, ClientError.
    """
    request = ListTransactionsRequest(
        state_filters=list(states),
        producer_id_filters=list(producer_ids),
        duration_filter=longer_than_ms,
    )
    oldest = 1 if longer_than_ms >= 0 else 0
    found = [
        ListedTransaction(row.transactional_id, row.producer_id, row.transaction_state, node_id)
        async for node_id, answer in cluster.ask_coordinators(request, oldest=oldest)
        for row in answer.transaction_states
    ]
    return sorted(found, key=lambda one: one.id)


async def describe_transaction(cluster: ClusterClient, transactional_id: str) -> Transaction:
    """How a transaction stands. Raises NoSuchTransaction, KafkaError."""
    node_id = await cluster.coordinator_id(transactional_id, TRANSACTION)
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    answer = await (await cluster.node(node_id)).ask(request)
    (row,) = answer.transaction_states
    if row.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        raise NoSuchTransaction(
            f"there is no transactional id {transactional_id!r} at {cluster.address}; "
            "`kbroker cluster txn list` shows all of them"
        )
    check(row.error_code)
    return Transaction(
        row.transactional_id,
        node_id,
        row.transaction_state,
        row.producer_id,
        row.producer_epoch,
        row.transaction_timeout_ms,
        row.transaction_start_time_ms,
        sorted((topic.topic, index) for topic in row.topics for index in topic.partitions),
    )


async def open_transactions(
    cluster: ClusterClient, partitions: Iterable[Partition]
) -> list[OpenTransaction]:
    """The transactions that are open in partitions; those without a leader are left out.

    Raises NoSuchTopic, KafkaError.
    """
    found: list[OpenTransaction] = []
    for node_id, owned in (await by_leader(cluster, partitions)).items():
        if node_id == NO_LEADER:
            continue
        topics: dict[str, list[int]] = {}
        for name, index in owned:
            topics.setdefault(name, []).append(index)
        request = DescribeProducersRequest(
            topics=[
                DescribeProducersRequest.Topic(name=name, partition_indexes=indexes)
                for name, indexes in topics.items()
            ]
        )
        answer = await (await cluster.node(node_id)).ask(request)
        for topic in answer.topics:
            for row in topic.partitions:
                check(row.error_code, row.error_message)
                found += _open_in((topic.name, row.partition_index), row)
    return sorted(found, key=lambda one: (one.partition, one.start_offset))


def _open_in(
    partition: Partition, row: DescribeProducersResponse.Partition
) -> Iterable[OpenTransaction]:
    for producer in row.active_producers:
        if producer.current_txn_start_offset != NOT_OPEN:
            yield OpenTransaction(
                partition,
                producer.producer_id,
                producer.producer_epoch,
                producer.current_txn_start_offset,
                producer.last_timestamp,
                producer.coordinator_epoch,
            )


async def hanging_transactions(
    cluster: ClusterClient, partitions: Iterable[Partition], *, before_ms: int
) -> list[OpenTransaction]:
    """Transactions that are open in a partition, and which no coordinator will ever end there.

    Parameters: `before_ms` is a time (log clock): what has newer records is not suspected, because
    it may just have been begun. Raises as `open_transactions`.
    """
    suspects = [
        one
        for one in await open_transactions(cluster, partitions)
        if one.last_timestamp < before_ms
    ]
    if not suspects:
        return []
    producer_ids = {one.producer_id for one in suspects}
    known = {
        (described.producer_id, partition)
        for listed in await list_transactions(cluster, producer_ids=producer_ids)
        for described in [await describe_transaction(cluster, listed.id)]
        for partition in described.partitions
    }
    return [one for one in suspects if (one.producer_id, one.partition) not in known]


async def fence_producer(cluster: ClusterClient, transactional_id: str) -> None:
    """Refuse the producer of a transactional id from now on; what it has open is aborted.

    It is what a newer instance of the producer does (KIP-98). Raises KafkaError.
    """
    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS
    )
    deadline = trio.current_time() + RETRY_TIMEOUT_SECONDS
    while True:
        coordinator = await cluster.coordinator(transactional_id, TRANSACTION)
        answer = await coordinator.ask(request, newest=5)
        code = error_code(answer.error_code)
        if not code.retriable or trio.current_time() > deadline:
            return check(code, transactional_id)
        await trio.sleep(RETRY_BACKOFF_SECONDS)


async def abort_transaction(cluster: ClusterClient, transaction: OpenTransaction) -> None:
    """Write an abort marker into one partition, past the coordinator. Raises KafkaError."""
    name, index = transaction.partition
    topic = WriteTxnMarkersRequest.Topic(name=name, partition_indexes=[index])
    marker = WriteTxnMarkersRequest.Marker(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        coordinator_epoch=max(transaction.coordinator_epoch, 0),
        transaction_result=False,
        topics=[topic],
    )
    (node_id,) = await by_leader(cluster, [transaction.partition])
    request = WriteTxnMarkersRequest(markers=[marker])
    answer = await (await cluster.node(node_id)).ask(request)
    (row,) = answer.markers[0].topics[0].partitions
    check(error_code(row.error_code), f"{name}-{index}")
