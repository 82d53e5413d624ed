"""Lookup of the nodes of a broker under test: leaders and coordinators."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.node.node import Node


def any_node(broker: Broker) -> Node:
    """Return a running node; the first node if all are down."""
    return next(iter(broker.running_nodes), broker.node)


def leader_of(broker: Broker, topic: str, index: int) -> Node:
    """Return the leader of a partition; any other node if the leader is down or does not exist."""
    partition = any_node(broker).cluster.partition(topic, index)
    return _node(broker, partition.leader if partition else None)


def coordinator_of_group(broker: Broker, group: str) -> Node:
    """Return the coordinator of a group; any other node if it is down."""
    return _node(broker, any_node(broker).groups.coordinator_id(group))


def _node(broker: Broker, node_id: int | None) -> Node:
    found = (each for each in broker.running_nodes if each.id == node_id)
    return next(found, any_node(broker))


def coordinator_of_transactions(broker: Broker, transactional_id: str) -> Node:
    """Return the coordinator of a transactional ID; any other node if it is down."""
    return _node(broker, any_node(broker).transactions.coordinator_id(transactional_id))
