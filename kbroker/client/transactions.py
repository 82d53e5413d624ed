"""Operations on transactions for operators: list, describe and abort (KIP-664)."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

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
from .errors import CannotAbort, ClientError, NoSuchTransaction, check, error_code
from .topics import Partition, by_leader

ONGOING = "Ongoing"
# All states of a transactional ID.
STATES = (
    *("Empty", ONGOING, "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"),
    *("PrepareEpochFence", "Dead"),
)
# How long retriable errors are retried, for example while a transaction completes.
RETRY_TIMEOUT_SECONDS = 15
TIMEOUT_MS = 60_000
NO_LEADER = -1
NOT_OPEN = -1

Row: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    """A transactional ID in a ListTransactions response."""

    id: str
    producer_id: int
    state: str
    coordinator: int

    def row(self) -> Row:
        """Return the fields for commands and the console."""
        return {
            "transactional_id": self.id,
            "producer_id": self.producer_id,
            "state": self.state,
            "coordinator": self.coordinator,
        }


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction as its coordinator describes it; times are in ms, -1 if unset."""

    id: str
    coordinator: int
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    partitions: list[Partition]

    def row(self) -> Row:
        """Return the fields for commands and the console."""
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
    """An open transaction as one partition leader describes it.

    Attributes:
        start_offset: Offset of the transaction's first record.
        last_timestamp: Timestamp of the transaction's newest record, in ms since the epoch.
    """

    partition: Partition
    producer_id: int
    producer_epoch: int
    start_offset: int
    last_timestamp: int
    coordinator_epoch: int

    def row(self) -> Row:
        """Return the fields for commands and the console."""
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
    """Return the matching transactions of all coordinators, sorted by transactional ID.

    Args:
        cluster: The cluster to query.
        states: Only these states, or all if empty.
        producer_ids: Only these producer IDs, or all if empty.
        longer_than_ms: Minimum duration in ms; requires Kafka 3.8 or newer.

    Raises:
        KafkaError: A broker rejects the request.
        ClientError: A state is unknown, or a broker cannot be reached.
    """
    # Brokers ignore unknown states, so the result would look as if no transaction matched.
    unknown = next((each for each in states if each not in STATES), None)
    if unknown is not None:
        raise ClientError(f"unknown state {unknown!r} (valid: {', '.join(STATES)})")
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
    """Return the state of a transaction.

    Raises:
        NoSuchTransaction: The transactional ID does not exist.
        KafkaError: The coordinator rejects the request.
    """
    node_id = await cluster.coordinator_id(transactional_id, TRANSACTION)
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    answer = await (await cluster.node(node_id)).ask(request)
    (row,) = answer.transaction_states
    if row.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        raise NoSuchTransaction(
            f"transactional ID {transactional_id!r} does not exist at {cluster.address}",
            hint="list all IDs with `kbroker cluster txn list`",
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
    """Return the open transactions of partitions; skip partitions without a leader.

    Raises:
        NoSuchTopic: A topic does not exist.
        KafkaError: A leader rejects the request.
    """
    found: list[OpenTransaction] = []
    for partition, row in await _described(cluster, partitions):
        found += _open_transactions_in(partition, row)
    return sorted(found, key=lambda one: (one.partition, one.start_offset))


class ActiveProducer(NamedTuple):
    """An idempotent or transactional producer that a partition leader remembers.

    Attributes:
        last_timestamp: Timestamp of the producer's newest record, in ms since the epoch.
    """

    producer_id: int
    last_timestamp: int


async def active_producers(cluster: ClusterClient, partition: Partition) -> list[ActiveProducer]:
    """Return the producers with IDs that have written to a partition, newest record first.

    Raises:
        NoSuchTopic: The topic does not exist.
        KafkaError: The leader rejects the request.
    """
    found = (await producers_by_partition(cluster, [partition])).get(partition, [])
    return sorted(found, key=lambda one: one.last_timestamp, reverse=True)


async def producers_by_partition(
    cluster: ClusterClient, partitions: Iterable[Partition]
) -> dict[Partition, list[ActiveProducer]]:
    """Return the producers with IDs that have written to partitions; skip those without a leader.

    Raises:
        NoSuchTopic: A topic does not exist.
        KafkaError: A leader rejects the request.
    """
    return {
        partition: [
            ActiveProducer(each.producer_id, each.last_timestamp) for each in row.active_producers
        ]
        for partition, row in await _described(cluster, partitions)
    }


async def _described(
    cluster: ClusterClient, partitions: Iterable[Partition]
) -> list[tuple[Partition, DescribeProducersResponse.Partition]]:
    """Ask the leaders for the producers of partitions; skip partitions without a leader."""
    found: list[tuple[Partition, DescribeProducersResponse.Partition]] = []
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
                found.append(((topic.name, row.partition_index), row))
    return found


def _open_transactions_in(
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
    """Return transactions that are open in a partition but unknown to every coordinator.

    Args:
        cluster: The cluster to query.
        partitions: Partitions to check.
        before_ms: Ignore transactions with a record at or after this time (ms since the epoch), as
            they may have just started.

    Raises:
        NoSuchTopic: A topic does not exist.
        KafkaError: A broker rejects a request.
    """
    suspects = [
        one
        for one in await open_transactions(cluster, partitions)
        if one.last_timestamp < before_ms
    ]
    if not suspects:
        return []
    known = await _managed_partitions(cluster, {one.producer_id for one in suspects})
    return [one for one in suspects if (one.producer_id, one.partition) not in known]


async def _managed_partitions(
    cluster: ClusterClient, producer_ids: Iterable[int]
) -> dict[tuple[int, Partition], str]:
    """Return the transactional IDs by producer ID and partition that their coordinators know."""
    return {
        (described.producer_id, partition): described.id
        for listed in await list_transactions(cluster, producer_ids=producer_ids)
        for described in [await describe_transaction(cluster, listed.id)]
        for partition in described.partitions
    }


async def find_hanging_transaction(
    cluster: ClusterClient, partition: Partition, start_offset: int, *, force: bool = False
) -> OpenTransaction:
    """Return the hanging transaction that starts at an offset of a partition.

    Args:
        cluster: The cluster to query.
        partition: The partition.
        start_offset: Offset of the transaction's first record.
        force: Also return a transaction that its coordinator manages.

    Raises:
        NoSuchTransaction: No open transaction starts at the offset.
        CannotAbort: A coordinator manages the transaction.
        NoSuchTopic: The topic does not exist.
        KafkaError: A broker rejects a request.
    """
    name, index = partition
    opened = await open_transactions(cluster, [partition])
    found = next((each for each in opened if each.start_offset == start_offset), None)
    if found is None:
        raise NoSuchTransaction(
            f"{name}-{index}: no open transaction starts at offset {start_offset}",
            hint=f"list hanging transactions with `kbroker cluster txn find-hanging --topic {name} "
            "--older-than 0s`",
        )
    if force:
        return found
    known = await _managed_partitions(cluster, [found.producer_id])
    transactional_id = known.get((found.producer_id, partition))
    if transactional_id is not None:
        raise CannotAbort(
            f"{name}-{index}: the transaction at offset {start_offset} is not hanging: it belongs "
            f"to transactional ID {transactional_id!r}",
            hint=f"abort it with `kbroker cluster txn abort {shlex.quote(transactional_id)}`",
        )
    return found


async def find_ongoing_transaction(cluster: ClusterClient, transactional_id: str) -> Transaction:
    """Return the open transaction of a transactional ID, which `fence_producer` can abort.

    Raises:
        NoSuchTransaction: The transactional ID does not exist.
        CannotAbort: The transactional ID has no open transaction.
        KafkaError: The coordinator rejects the request.
    """
    found = await describe_transaction(cluster, transactional_id)
    if found.state != ONGOING:
        raise CannotAbort(
            f"transactional ID {transactional_id!r} has no open transaction, its state is "
            f"{found.state}",
            hint="list open transactions with `kbroker cluster txn list --state Ongoing`",
        )
    return found


async def fence_producer(cluster: ClusterClient, transactional_id: str) -> None:
    """Fence the producer of a transactional ID and abort its open transaction.

    The function sends InitProducerId, like a newer instance of the producer (KIP-98).

    Raises:
        KafkaError: The coordinator rejects the request.
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
    """Write an abort marker into one partition, bypassing the coordinator. Raises KafkaError."""
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
