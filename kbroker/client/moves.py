"""Partition reassignments (KIP-455) and removal of brokers that are permanently down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from kbroker.protocol.errors import KafkaError
from kbroker.protocol.messages.cluster import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    UnregisterBrokerRequest,
)
from kbroker.protocol.messages.log_dirs import DescribeLogDirsRequest
from kbroker.protocol.messages.metadata import MetadataResponse

from .cluster import ClusterClient
from .configs import Operation, Resource, alter_configs, describe_configs
from .errors import check, error_code
from .topics import Partition

# Election types.
PREFERRED, UNCLEAN = 0, 1
# Setting that makes a broker accept no partitions, and its value for all log directories.
CORDONED, EVERY_DIRECTORY = "cordoned.log.dirs", "*"
# Partitions per reassignment request.
PARTITIONS_PER_REQUEST = 1000
FACTORS_OF_INTERNAL_TOPICS = {
    "__consumer_offsets": "offsets.topic.replication.factor",
    "__transaction_state": "transaction.state.log.replication.factor",
}


# New replicas by partition.
Moves: TypeAlias = Mapping[Partition, list[int]]


class Placement(NamedTuple):
    """Replica placement of the cluster.

    Attributes:
        replicas: Replicas by partition, after ongoing reassignments.
        racks: Rack by ID of the live brokers that accept partitions.
        drained: Live brokers whose log directories are all cordoned; they accept no partitions.
    """

    replicas: dict[Partition, list[int]]
    racks: dict[int, str | None]
    drained: set[int]


async def placement(cluster: ClusterClient) -> Placement:
    """Return the replica placement after ongoing reassignments. Raises KafkaError."""
    metadata: MetadataResponse = await cluster.metadata()
    removing = await list_reassignments(cluster)
    replicas = {
        (topic.name or "", part.partition_index): part.replica_nodes
        for topic in metadata.topics
        for part in topic.partitions
    }
    for partition, leaving in removing.items():
        replicas[partition] = [each for each in replicas[partition] if each not in leaving]
    drained = await drained_brokers(cluster, [row.node_id for row in metadata.brokers])
    racks = {row.node_id: row.rack for row in metadata.brokers if row.node_id not in drained}
    return Placement(replicas, racks, drained)


async def drained_brokers(cluster: ClusterClient, node_ids: Iterable[int]) -> set[int]:
    """Return the brokers whose log directories are all cordoned (KIP-1066). Raises KafkaError."""
    drained = set()
    for node_id in node_ids:
        answer = await (await cluster.node(node_id)).ask(DescribeLogDirsRequest(topics=[]))
        if answer.results and all(row.is_cordoned for row in answer.results):
            drained.add(node_id)
    return drained


async def internal_factors(cluster: ClusterClient) -> dict[str, int]:
    """Return the replication factor of the internal topics: the highest one that a broker has set.

    Raises:
        KafkaError: A broker rejects the request.
    """
    factors = dict.fromkeys(FACTORS_OF_INTERNAL_TOPICS, 1)
    for broker in (await cluster.metadata([])).brokers:
        name = str(broker.node_id)
        (settings,) = (await describe_configs(cluster, Resource.BROKER, [name])).values()
        values = {each.name: each.value for each in settings}
        for topic, setting in FACTORS_OF_INTERNAL_TOPICS.items():
            factors[topic] = max(factors[topic], int(values.get(setting) or 1))
    return factors


async def list_reassignments(cluster: ClusterClient) -> dict[Partition, list[int]]:
    """Return the ongoing reassignments with the replicas they remove. Raises KafkaError."""
    answer = await (await cluster.controller()).ask(ListPartitionReassignmentsRequest(topics=None))
    check(answer.error_code, answer.error_message)
    return {
        (topic.name, part.partition_index): part.removing_replicas
        for topic in answer.topics
        for part in topic.partitions
    }


async def reassign_partitions(
    cluster: ClusterClient, moves: Mapping[Partition, Sequence[int] | None]
) -> None:
    """Start to move partitions to other brokers, or cancel such moves.

    Args:
        cluster: The cluster to change.
        moves: New replicas by partition, the preferred leader first; None cancels a reassignment.

    Raises:
        KafkaError: The controller rejects partitions; the message has the first one, and how many
            were accepted.
    """
    names = sorted(moves)
    rejected: list[tuple[Partition, int, str | None]] = []
    for first in range(0, len(names), PARTITIONS_PER_REQUEST):
        topics: dict[str, AlterPartitionReassignmentsRequest.Topic] = {}
        for name, index in names[first : first + PARTITIONS_PER_REQUEST]:
            row = topics.setdefault(name, AlterPartitionReassignmentsRequest.Topic(name=name))
            replicas = moves[name, index]
            row.partitions.append(
                AlterPartitionReassignmentsRequest.Partition(
                    partition_index=index, replicas=None if replicas is None else list(replicas)
                )
            )
        request = AlterPartitionReassignmentsRequest(topics=list(topics.values()))
        answer = await (await cluster.controller()).ask(request)
        check(answer.error_code, answer.error_message)
        rejected += [
            ((topic.name, part.partition_index), part.error_code, part.error_message)
            for topic in answer.responses
            for part in topic.partitions
            if part.error_code
        ]
    if rejected:
        ((name, index), code, message), *_ = rejected
        reason = message or error_code(code).name
        accepted = len(names) - len(rejected)
        raise KafkaError(
            error_code(code),
            f"{name}-{index}: {reason} ({len(rejected):,} of {len(names):,} partitions rejected, "
            f"{accepted:,} accepted)"
            if len(names) > 1
            else reason,
        )


async def elect_preferred(cluster: ClusterClient) -> int:
    """Elect the preferred leader of every partition where it is in sync.

    Returns:
        The number of partitions with a new leader.

    Raises:
        KafkaError: The controller rejects the request.
    """
    request = ElectLeadersRequest(election_type=PREFERRED, topic_partitions=None)
    answer = await (await cluster.controller()).ask(request)
    check(answer.error_code)
    return sum(
        not row.error_code
        for result in answer.replica_election_results
        for row in result.partition_result
    )


async def elect_leader(
    cluster: ClusterClient, partition: Partition, *, unclean: bool = False
) -> None:
    """Elect the leader of one partition.

    Args:
        cluster: The cluster to change.
        partition: Topic and partition number.
        unclean: Elect a replica that is not in sync if no other one is available, which loses
            records; else elect the preferred leader.

    Raises:
        KafkaError: The controller rejects the election, or no election is needed.
    """
    cls = ElectLeadersRequest
    topic, index = partition
    request = cls(
        election_type=UNCLEAN if unclean else PREFERRED,
        topic_partitions=[cls.Topic(topic=topic, partitions=[index])],
    )
    answer = await (await cluster.controller()).ask(request, oldest=1)
    for result in answer.replica_election_results:
        for row in result.partition_result:
            check(row.error_code, row.error_message)
    check(answer.error_code)


async def plan_moves(
    cluster: ClusterClient, plan: Callable[[Placement], Moves], *, dry_run: bool
) -> tuple[Placement, Moves]:
    """Plan moves from the current placement, and start them.

    Args:
        cluster: The cluster to change.
        plan: Returns the moves for a placement.
        dry_run: Only plan the moves.

    Returns:
        The placement before the moves, and the moves.

    Raises:
        KafkaError: A broker rejects a request.
    """
    found = await placement(cluster)
    moves = plan(found)
    if not dry_run:
        await reassign_partitions(cluster, moves)
    return found, moves


class DrainProblems(NamedTuple):
    """Partitions that a plan to drain a broker does not move, or moves with one replica less."""

    immovable: list[Partition]
    fewer: list[Partition]


def drain_problems(
    replicas: Mapping[Partition, Sequence[int]], moves: Moves, broker: int
) -> DrainProblems:
    """Return the problems of a plan to drain a broker.

    Args:
        replicas: Replicas by partition before the moves.
        moves: The planned moves.
        broker: Broker to drain.
    """
    return DrainProblems(
        [one for one, nodes in replicas.items() if broker in nodes and one not in moves],
        [one for one, nodes in moves.items() if len(nodes) < len(replicas[one])],
    )


def move_rows(replicas: Mapping[Partition, Sequence[int]], moves: Moves) -> list[dict[str, str]]:
    """Return moves as rows for commands and the console.

    Args:
        replicas: Replicas by partition before the moves.
        moves: New replicas by partition.
    """
    return [
        {
            "partition": f"{name}-{index}",
            "from": ", ".join(map(str, replicas[name, index])),
            "to": ", ".join(map(str, nodes)),
        }
        for (name, index), nodes in sorted(moves.items())
    ]


async def cordon_broker(cluster: ClusterClient, broker: int, *, cordoned: bool) -> bool:
    """Cordon or uncordon all log directories of a broker.

    Args:
        cluster: The cluster to change.
        broker: Broker ID.
        cordoned: True to assign no new partitions to the broker, False to allow them again.

    Returns:
        True if the broker has the new state; False if it is down, so that nothing is changed.

    Raises:
        KafkaError: The broker rejects the change.
    """
    if broker not in {row.node_id for row in (await cluster.metadata([])).brokers}:
        return False
    change = (Operation.SET, EVERY_DIRECTORY) if cordoned else (Operation.DELETE, None)
    await alter_configs(cluster, Resource.BROKER, str(broker), {CORDONED: change})
    return True


async def unregister_broker(cluster: ClusterClient, node_id: int) -> None:
    """Unregister a broker that is permanently down. Raises KafkaError."""
    answer = await (await cluster.controller()).ask(UnregisterBrokerRequest(broker_id=node_id))
    check(answer.error_code, answer.error_message)
