"""Topics as clients ask for them: look-up by name or id, creation with defaults filled in."""

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

DEFAULT = -1
"""A count or factor that asks for the broker's default."""


def find_topic(cluster: Cluster, name: str, topic_id: uuid.UUID, *, by_id: bool) -> Topic:
    """Return the topic that a request names.

    Raises KafkaError: UNKNOWN_TOPIC_ID or UNKNOWN_TOPIC_OR_PARTITION.
    """
    topic = cluster.topics_by_id.get(topic_id) if by_id else cluster.topics.get(name)
    if topic is None and by_id:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with the id {topic_id}")
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic '{name}'")
    return topic


@dataclass(slots=True)
class NewTopic:
    """What a client says of a topic to create.

    `assignments` maps a partition to its nodes, leader first; it excludes the two numbers.
    """

    name: str
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)
    configs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(slots=True)
class TopicPlan:
    """A topic that may be made: where its partitions go and what it overrides.

    `assignments` gives the nodes of each partition as it is asked for, because of thousands that
    takes a while. Raises INVALID_REPLICA_ASSIGNMENT for those that a client has chosen.
    """

    name: str
    assignments: Iterator[list[int]]
    configs: dict[str, str]


def plan_topic(cluster: Cluster, config: BrokerConfig, new: NewTopic) -> TopicPlan:
    """Check a topic and fill in the defaults. Raises KafkaError for each rule of Kafka's."""
    cluster.check_new_topic(new.name)
    configs = _check_configs(new.configs, config)
    if new.assignments:
        if new.partitions != DEFAULT or new.replication_factor != DEFAULT:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "give an assignment, or a number of partitions and a replication factor, not both",
            )
        check_new_partitions(len(new.assignments))
        placed = _check_assignments(cluster, new.assignments)
    else:
        partitions = config.num_partitions if new.partitions == DEFAULT else new.partitions
        placed = cluster.place_partitions(
            _check_count(partitions), _replication_factor(cluster, config, new)
        )
    return TopicPlan(new.name, placed, configs)


def _check_count(partitions: int) -> int:
    if partitions <= 0:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS, f"a topic has at least one partition, not {partitions}"
        )
    check_new_partitions(partitions)
    return partitions


def check_new_partitions(count: int) -> None:
    """Raise POLICY_VIOLATION for more new partitions than one request may ask for."""
    if count > MAX_NEW_PARTITIONS:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{count} new partitions at once; make {MAX_NEW_PARTITIONS}, then add more",
        )


def _replication_factor(cluster: Cluster, config: BrokerConfig, new: NewTopic) -> int:
    wanted = new.replication_factor
    if wanted == DEFAULT:
        wanted = config.default_replication_factor
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
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions must count from 0 without a gap"
        )
    factor = len(assignments[0])
    return (check_replicas(cluster, assignments[i], factor) for i in range(len(assignments)))


def check_replicas(cluster: Cluster, nodes: Sequence[int], factor: int) -> list[int]:
    """Return `nodes` as a list if one partition can live there, else raise."""
    if not nodes or len(nodes) != factor:
        reason = f"a partition has {len(nodes)} replicas, others {factor}"
    elif len(set(nodes)) != len(nodes):
        reason = "a node is named twice for one partition"
    elif not set(nodes) <= set(cluster.node_ids):
        reason = f"unknown node in {list(nodes)}; there are {cluster.node_ids}"
    else:
        return list(nodes)
    raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)


async def create_topic(
    cluster: Cluster, config: BrokerConfig, new: NewTopic, *, cause: str
) -> Topic:
    """Create a topic; it is usable when this returns. Raises what `plan_topic` raises."""
    plan = plan_topic(cluster, config, new)
    return await cluster.create_topic(plan.name, [*plan.assignments], plan.configs, cause=cause)
