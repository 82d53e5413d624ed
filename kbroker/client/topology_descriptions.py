"""Topology descriptions of streams groups (KIP-1331)."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from kbroker.protocol.messages.streams_groups import (
    StreamsGroupDescribeRequest,
    TopologyDescription,
    TopologyDescriptionNode,
)

from .cluster import ClusterClient
from .errors import check
from .groups import ask_coordinator

# Types of nodes by their number.
NODE_TYPES = {1: "source", 2: "processor", 3: "sink"}


class Status(IntEnum):
    """Statuses of a topology description; the first one comes from brokers before Kafka 4.4."""

    NOT_REQUESTED = 0
    NOT_STORED = 1
    ERROR = 2
    AVAILABLE = 3


class TopologyNode(NamedTuple):
    """A node of the processing graph.

    Attributes:
        subtopology: ID of the subtopology; None for the nodes of a global state store.
        name: Name of the node.
        type: "source", "processor" or "sink".
        topics: Topics of a source or sink; empty if a sink chooses the topic for each record.
        stores: State stores of a processor.
        successors: Names of the nodes that receive the records of this node.
    """

    subtopology: str | None
    name: str
    type: str
    topics: list[str]
    stores: list[str]
    successors: list[str]


class DescribedTopology(NamedTuple):
    """The processing graph of a streams application; it has no nodes unless it is available.

    Attributes:
        status: Name of a `Status`.
        nodes: Nodes, grouped by subtopology.
    """

    status: str
    nodes: list[TopologyNode]


async def topology_description(cluster: ClusterClient, group: str) -> DescribedTopology:
    """Return the topology description of a streams group.

    Args:
        cluster: The cluster of the group.
        group: Group ID.

    Raises:
        KafkaError: The coordinator rejects the request.
    """
    request = StreamsGroupDescribeRequest(group_ids=[group], include_topology_description=True)
    answer = await ask_coordinator(
        cluster, group, request, lambda answer: int(answer.groups[0].error_code)
    )
    (row,) = answer.groups
    check(row.error_code, row.error_message)
    nodes = _nodes(row.topology_description) if row.topology_description is not None else ()
    return DescribedTopology(Status(row.topology_description_status).name, list(nodes))


def _nodes(description: TopologyDescription) -> Iterator[TopologyNode]:
    for subtopology in description.subtopologies:
        for node in subtopology.nodes:
            yield _node(node, subtopology.subtopology_id)
    for store in description.global_stores:
        yield _node(store.source, None)
        yield _node(store.processor, None)


def _node(row: TopologyDescriptionNode, subtopology: str | None) -> TopologyNode:
    return TopologyNode(
        subtopology,
        row.name,
        NODE_TYPES.get(row.node_type, f"type {row.node_type}"),
        list(row.source_topics) or ([row.sink_topic] if row.sink_topic else []),
        list(row.stores),
        list(row.successors),
    )
