"""Decommissioning of a node: moves all its partitions to the other nodes."""

from __future__ import annotations

from collections.abc import Iterable

import trio

from kbroker.cluster import Cluster
from kbroker.cluster.placement import TopicPartition, drain
from kbroker.cluster.reassignment import target
from kbroker.coordinator import some_of
from kbroker.node.node import Node
from kbroker.protocol.errors import ErrorCode, KafkaError

from .local_node import LocalNode

# Seconds between two checks whether partitions have moved.
POLL_SECONDS = 0.05


async def decommission(other: Node, local: LocalNode) -> None:
    """Move all partitions away from a node, and return when the node has no partitions.

    The node gets no new partitions from now on. After an error or a cancellation, it gets some again.

    Args:
        other: Another node, which is running.
        local: The node to decommission.

    Raises:
        ValueError: Partitions cannot move, because only this node has all of their records and it is
            down.
    """
    cluster = other.cluster
    if local.is_running:
        local.node.membership.cordon(True)
    try:
        while placed := _find_placed(cluster, local.id):
            _check_movable(cluster, placed, local)
            await _move(cluster, local.id)
            await trio.sleep(POLL_SECONDS)
    except BaseException:
        if local.is_running:
            local.node.cordon_as_configured()
        raise


def _find_placed(cluster: Cluster, node_id: int) -> list[TopicPartition]:
    """Return the partitions with a replica on a node."""
    return [
        (topic.name, partition.index)
        for topic in cluster.topics.values()
        for partition in topic.partitions
        if node_id in partition.replicas
    ]


def _check_movable(cluster: Cluster, placed: Iterable[TopicPartition], local: LocalNode) -> None:
    if local.is_running:
        return
    stuck = [
        f"{name}-{index}"
        for name, index in placed
        if cluster.topics[name].partitions[index].isr == [local.id]
    ]
    if stuck:
        raise ValueError(
            f"cannot remove node {local.id}: it is down and has the only in-sync replica of "
            f"{some_of(stuck)}; start it"
        )


async def _move(cluster: Cluster, node_id: int) -> None:
    """Start reassignments of the partitions that still have a replica on the node."""
    placed = {
        (topic.name, partition.index): list(target(partition))
        for topic in cluster.topics.values()
        for partition in topic.partitions
    }
    racks = {each.node_id: each.rack for each in cluster.nodes.values() if each.ready}
    # Use cordoned nodes only if there are no others.
    targets = {each: rack for each, rack in racks.items() if each in cluster.open_ids} or racks
    for (name, index), nodes in drain(placed, node_id, targets).items():
        try:
            await cluster.reassign(
                name, index, nodes, factor_may_change=True, cause=f"node {node_id} is removed"
            )
        except KafkaError as error:
            if error.code not in (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ErrorCode.CONCURRENT_TRANSACTIONS,
            ):
                raise
