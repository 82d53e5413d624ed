"""Moves of partitions between brokers (KIP-455), and brokers that are gone for good."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kbroker.protocol.messages.cluster import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    UnregisterBrokerRequest,
)
from kbroker.protocol.messages.log_dirs import DescribeLogDirsRequest
from kbroker.protocol.messages.metadata import MetadataResponse

from .cluster import ClusterClient
from .configs import Resource, describe_configs
from .errors import check
from .topics import Partition

PREFERRED = 0
AT_ONCE = 1000
"""Partitions of one request."""
FACTORS_OF_INTERNAL_TOPICS = {
    "__consumer_offsets": "offsets.topic.replication.factor",
    "__transaction_state": "transaction.state.log.replication.factor",
}


class Placement(NamedTuple):
    """Where all partitions are, the racks of the brokers that run and take partitions, and the
    brokers that run and were drained: they take none."""

    replicas: dict[Partition, list[int]]
    racks: dict[int, str | None]
    drained: set[int]


async def placement(cluster: ClusterClient) -> Placement:
    """Where all partitions are; of those that move, where they will be. Raises KafkaError."""
    metadata: MetadataResponse = await cluster.metadata()
    removing = await under_way(cluster)
    replicas = {
        (topic.name or "", part.partition_index): part.replica_nodes
        for topic in metadata.topics
        for part in topic.partitions
    }
    for partition, leaving in removing.items():
        replicas[partition] = [each for each in replicas[partition] if each not in leaving]
    drained = await _drained(cluster, [row.node_id for row in metadata.brokers])
    racks = {row.node_id: row.rack for row in metadata.brokers if row.node_id not in drained}
    return Placement(replicas, racks, drained)


async def _drained(cluster: ClusterClient, node_ids: Iterable[int]) -> set[int]:
    """The brokers of which all directories are cordoned (KIP-1066). Raises KafkaError."""
    drained = set()
    for node_id in node_ids:
        answer = await (await cluster.node(node_id)).ask(DescribeLogDirsRequest(topics=[]))
        if answer.results and all(row.is_cordoned for row in answer.results):
            drained.add(node_id)
    return drained


async def internal_factors(cluster: ClusterClient) -> dict[str, int]:
    """How many replicas the internal topics are to have: what the brokers are set to, at most.

    Raises KafkaError.
    """
    factors = dict.fromkeys(FACTORS_OF_INTERNAL_TOPICS, 1)
    for broker in (await cluster.metadata([])).brokers:
        name = str(broker.node_id)
        (settings,) = (await describe_configs(cluster, Resource.BROKER, [name])).values()
        values = {each.name: each.value for each in settings}
        for topic, setting in FACTORS_OF_INTERNAL_TOPICS.items():
            factors[topic] = max(factors[topic], int(values.get(setting) or 1))
    return factors


async def under_way(cluster: ClusterClient) -> dict[Partition, list[int]]:
    """The partitions that move now, and the brokers that they leave. Raises KafkaError."""
    answer = await (await cluster.controller()).ask(ListPartitionReassignmentsRequest(topics=None))
    check(answer.error_code, answer.error_message)
    return {
        (topic.name, part.partition_index): part.removing_replicas
        for topic in answer.topics
        for part in topic.partitions
    }


async def begin_moves(cluster: ClusterClient, moves: Mapping[Partition, Sequence[int]]) -> None:
    """Let partitions move to other brokers. Raises KafkaError for the first that is refused."""
    names = sorted(moves)
    for first in range(0, len(names), AT_ONCE):
        topics: dict[str, AlterPartitionReassignmentsRequest.Topic] = {}
        for name, index in names[first : first + AT_ONCE]:
            row = topics.setdefault(name, AlterPartitionReassignmentsRequest.Topic(name=name))
            row.partitions.append(
                AlterPartitionReassignmentsRequest.Partition(
                    partition_index=index, replicas=list(moves[name, index])
                )
            )
        request = AlterPartitionReassignmentsRequest(topics=list(topics.values()))
        answer = await (await cluster.controller()).ask(request)
        check(answer.error_code, answer.error_message)
        for topic in answer.responses:
            for part in topic.partitions:
                check(part.error_code, part.error_message)


async def elect_preferred(cluster: ClusterClient) -> None:
    """Let the first replica of each partition lead where it is in sync. Raises KafkaError."""
    request = ElectLeadersRequest(election_type=PREFERRED, topic_partitions=None)
    answer = await (await cluster.controller()).ask(request)
    check(answer.error_code)


async def unregister_broker(cluster: ClusterClient, node_id: int) -> None:
    """Unregister a broker that is permanently down. Raises KafkaError."""
    answer = await (await cluster.controller()).ask(UnregisterBrokerRequest(broker_id=node_id))
    check(answer.error_code, answer.error_message)
