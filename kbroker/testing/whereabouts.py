"""Which node of a broker under test has what its test asks for."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.node.node import Node


def any_node(broker: Broker) -> Node:
    """A node that runs; when all are down, the first one."""
    return next(iter(broker.running_nodes), broker.node)


def leader_of(broker: Broker, topic: str, index: int) -> Node:
    """The node that leads a partition; when it is down, or there is none, any other."""
    partition = any_node(broker).cluster.partition(topic, index)
    return _node(broker, partition.leader if partition else None)


def coordinator_of_group(broker: Broker, group: str) -> Node:
    """The node that coordinates a group; when it is down, any other."""
    return _node(broker, any_node(broker).groups.coordinator_id(group))


def _node(broker: Broker, node_id: int | None) -> Node:
    found = (each for each in broker.running_nodes if each.id == node_id)
    return next(found, any_node(broker))


def coordinator_of_transactions(broker: Broker, transactional_id: str) -> Node:
    """The node that coordinates the transactions of an id; when it is down, any other."""
    return _node(broker, any_node(broker).transactions.coordinator_id(transactional_id))
