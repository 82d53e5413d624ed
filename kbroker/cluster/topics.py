"""Topics in client requests: lookup by name or ID, and creation with defaults."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kbroker.config import BrokerConfig, ConfigError, validate_topic_configs
from kbroker.protocol.errors import ErrorCode, KafkaError

from . import Cluster, Topic
from .cluster import MAX_NEW_PARTITIONS

logger = logging.getLogger(__name__)

# Partition count or replication factor that selects the broker's default.
DEFAULT = -1


def find_topic(cluster: Cluster, name: str, topic_id: uuid.UUID, *, by_id: bool) -> Topic:
    """Return the topic of a request.

    Raises:
        KafkaError: UNKNOWN_TOPIC_ID or UNKNOWN_TOPIC_OR_PARTITION.
    """
    topic = cluster.topics_by_id.get(topic_id) if by_id else cluster.topics.get(name)
    if topic is None and by_id:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with the id {topic_id}")
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic '{name}'")
    return topic


@dataclass(slots=True)
class NewTopic:
    """A topic that a client wants to create.

    `assignments` maps a partition to its nodes, the leader first. If it is set, `partitions` and
    `replication_factor` must be `DEFAULT`.
    """

    name: str
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)
    configs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(slots=True)
class TopicPlan:
    """A valid new topic: its placement and its settings.

    `assignments` yields the nodes of each partition lazily, because thousands of placements take
    long. It raises INVALID_REPLICA_ASSIGNMENT if a client's assignment is invalid.
    """

    name: str
    assignments: Iterator[list[int]]
    configs: dict[str, str]


def plan_topic(cluster: Cluster, config: BrokerConfig, new: NewTopic) -> TopicPlan:
    """Validate a new topic and apply defaults. Raises KafkaError with Kafka's error codes."""
    cluster.check_new_topic(new.name)
    configs = _check_configs(new.configs, config)
    if new.assignments:
        if new.partitions != DEFAULT or new.replication_factor != DEFAULT:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "provide either assignments, or partitions and replication factor, not both",
            )
        check_new_partitions(len(new.assignments))
        placed = _check_assignments(cluster, new.assignments)
    else:
        factor = _replication_factor(cluster, config, new)
        partitions = config.num_partitions if new.partitions == DEFAULT else new.partitions
        placed = cluster.place_partitions(_check_count(partitions), factor)
    return TopicPlan(new.name, placed, configs)


def _check_count(partitions: int) -> int:
    if partitions <= 0:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"invalid number of partitions {partitions}; use at least 1",
        )
    check_new_partitions(partitions)
    return partitions


def check_new_partitions(count: int) -> None:
    """Raise POLICY_VIOLATION if a request creates too many partitions."""
    if count > MAX_NEW_PARTITIONS:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"too many new partitions: {count}; create {MAX_NEW_PARTITIONS}, then add more",
        )


def _replication_factor(cluster: Cluster, config: BrokerConfig, new: NewTopic) -> int:
    wanted = new.replication_factor
    if wanted == DEFAULT:
        wanted = config.default_replication_factor
    elif wanted <= 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"invalid replication factor {wanted}; use at least 1",
        )
    nodes = max(len(cluster.open_ids), 1)
    if wanted > nodes and config.replication_factor_clamp:
        logger.warning(
            "topic %s: replication factor %d lowered to %d, the number of nodes "
            "(replication.factor.clamp=true)",
            new.name,
            wanted,
            nodes,
        )
        return nodes
    return wanted


def _check_configs(configs: Mapping[str, str | None], broker: BrokerConfig) -> dict[str, str]:
    try:
        validate_topic_configs(configs, broker)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
    return {name: value for name, value in configs.items() if value is not None}


def _check_assignments(
    cluster: Cluster, assignments: Mapping[int, Sequence[int]]
) -> Iterator[list[int]]:
    if sorted(assignments) != list(range(len(assignments))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions must be numbered from 0 without gaps"
        )
    factor = len(assignments[0])
    return (check_replicas(cluster, assignments[i], factor) for i in range(len(assignments)))


def check_replicas(cluster: Cluster, nodes: Sequence[int], factor: int) -> list[int]:
    """Return `nodes` as a list if they are valid replicas of one partition, else raise."""
    if not nodes or len(nodes) != factor:
        reason = f"a partition has {len(nodes)} replicas, others {factor}; list equally many"
    elif len(set(nodes)) != len(nodes):
        reason = "a node is listed twice for one partition; list it once"
    elif not set(nodes) <= set(cluster.node_ids):
        reason = f"unknown node in replicas {list(nodes)} (valid: {cluster.node_ids})"
    else:
        return list(nodes)
    raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)


async def create_topic(
    cluster: Cluster, config: BrokerConfig, new: NewTopic, *, cause: str
) -> Topic:
    """Create a topic and return it when it is usable. Raises the errors of `plan_topic`."""
    plan = plan_topic(cluster, config, new)
    return await cluster.create_topic(plan.name, [*plan.assignments], plan.configs, cause=cause)
