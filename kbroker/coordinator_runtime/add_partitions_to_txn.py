"""AddPartitionsToTxn requests to transaction coordinators on other nodes (KIP-890)."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import NamedTuple, TypeAlias

import trio

from kbroker.cluster.peers import Peers
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)

# Timeout of a request to the coordinator, in seconds. In the meantime, later requests on the
# producer's connection wait.
ANSWER_SECONDS = 5

TopicPartition: TypeAlias = tuple[str, int]


class Writer(NamedTuple):
    """A transactional producer as it identifies itself in requests."""

    transactional_id: str
    producer_id: int
    epoch: int


async def add_partitions(
    peers: Peers,
    coordinator_id: int,
    writer: Writer,
    partitions: Collection[TopicPartition],
    *,
    verify_only: bool,
) -> dict[TopicPartition, ErrorCode]:
    """Ask the transaction coordinator to verify or add partitions, and return the error codes.

    Args:
        peers: Connections to the other nodes.
        coordinator_id: Node of the transaction coordinator.
        writer: Transactional producer.
        partitions: Partitions to verify or add.
        verify_only: Only verify that the producer has added the partitions (transaction version 1).
            Otherwise the coordinator adds the partitions durably (transaction version 2).

    Returns:
        Error codes by partition; COORDINATOR_NOT_AVAILABLE if there was no response.
    """
    request = _request(writer, partitions, verify_only=verify_only)
    codes: dict[TopicPartition, ErrorCode] = {}
    with suppress(OSError), trio.move_on_after(ANSWER_SECONDS):
        codes = _codes(await peers.ask(coordinator_id, request))
    unknown = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return {partition: codes.get(partition, unknown) for partition in partitions}


def _request(
    writer: Writer, partitions: Collection[TopicPartition], *, verify_only: bool
) -> AddPartitionsToTxnRequest:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    asked = AddPartitionsToTxnRequest.Transaction(
        transactional_id=writer.transactional_id,
        producer_id=writer.producer_id,
        producer_epoch=writer.epoch,
        verify_only=verify_only,
        topics=[
            AddPartitionsToTxnRequest.Topic(name=name, partitions=indexes)
            for name, indexes in topics.items()
        ],
    )
    return AddPartitionsToTxnRequest(transactions=[asked])


def _codes(answer: AddPartitionsToTxnResponse) -> dict[TopicPartition, ErrorCode]:
    return {
        (topic.name, row.partition_index): ErrorCode(row.partition_error_code)
        for transaction in answer.results_by_transaction
        for topic in transaction.topic_results
        for row in topic.results_by_partition
    }
