"""Topology descriptions of streams groups (KIP-1331).

A member of a group without a description is asked for it by its heartbeat response. The description
is stored with the topology of the group, so both are deleted together.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.streams_groups import (
    StreamsGroupTopologyDescriptionUpdateRequest,
    StreamsGroupTopologyDescriptionUpdateResponse,
    TopologyDescription,
    TopologyDescriptionGlobalStore,
    TopologyDescriptionNode,
    TopologyDescriptionSubtopology,
)
from kbroker.protocol.versioned import decode_versioned, encode_versioned

from ..common.result import Now, Result, append_error
from ..state import ShardState
from .group import StreamsGroup
from .records import group_record, topology_record
from .topology import StreamsTopology

# Maximum size of a stored description in bytes.
DESCRIPTION_BYTES_MAX = 256 * 1024
# Maximum number of entries of a description: subtopologies, nodes, global stores, topics, state
# stores and successors.
DESCRIPTION_ENTRIES_MAX = 10_000

DESCRIPTION_VERSION = 0
SOURCE, PROCESSOR, SINK = 1, 2, 3

Request = StreamsGroupTopologyDescriptionUpdateRequest
Response = StreamsGroupTopologyDescriptionUpdateResponse
Node = TopologyDescriptionNode


def decode_description(stored: bytes) -> TopologyDescription:
    """Decode a stored description."""
    return decode_versioned(TopologyDescription, stored)


def requires_description(group: StreamsGroup, topology: StreamsTopology, now: Now) -> bool:
    """Return True if the member shall send the description of its topology.

    The next requests for it follow in growing intervals.
    """
    if topology.description is not None or group.description_epochs.failed == topology.epoch:
        return False
    return group.description_backoff.arm_if_not_active(topology.epoch, now.coordinator_ms)


def update_description(state: ShardState, request: Request) -> Result[Response]:
    """Handle a StreamsGroupTopologyDescriptionUpdate: store the description of a topology.

    A description above the limits is rejected permanently: its members are not asked for it again.
    """
    try:
        group, topology = _find_topology(state, request)
        _count_entries(request.topology_description)
        stored = _encode(request.topology_description)
    except _TooLargeError as error:
        return _reject_permanently(group, topology, str(error))
    except KafkaError as error:
        return _error_result(error.code, error.message)
    result = Result(Response())
    if stored != topology.description:
        result.records.append(topology_record(group.id, topology.with_description(stored)))
        result.on_failure = _on_failure
    return result


class _TooLargeError(Exception):
    """A description exceeds a limit."""


def _find_topology(state: ShardState, request: Request) -> tuple[StreamsGroup, StreamsTopology]:
    """Return the group and the topology that a member describes.

    Raises:
        KafkaError: INVALID_REQUEST, GROUP_ID_NOT_FOUND or UNKNOWN_MEMBER_ID.
    """
    for name, value in (("MemberId", request.member_id), ("GroupId", request.group_id)):
        if not value.strip():
            _invalid(f"{name} can't be empty.")
    group_id, member_id = request.group_id, request.member_id
    group = state.find_group(group_id, StreamsGroup)
    if group is None:
        problem = "not found" if state.groups.get(group_id) is None else "is not a streams group"
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {problem}.")
    if member_id not in group.members:
        raise KafkaError(
            ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group_id}."
        )
    topology = group.topology
    if topology is None or topology.epoch != request.topology_epoch:
        known = -1 if topology is None else topology.epoch
        _invalid(
            f"Topology epoch {request.topology_epoch} does not match the group's current topology "
            f"epoch {known}."
        )
    return group, topology


def _reject_permanently(
    group: StreamsGroup, topology: StreamsTopology, message: str
) -> Result[Response]:
    """Return the result that rejects the description of a topology from now on."""
    result = _error_result(ErrorCode.STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED, message)
    if group.description_epochs.failed != topology.epoch:
        result.records.append(group_record(group, failed_description_epoch=topology.epoch))
        result.on_failure = _on_failure
    return result


def _on_failure(code: ErrorCode, now: Now) -> Result[Response]:
    return _error_result(append_error(code), None)


def _error_result(code: ErrorCode, message: str | None) -> Result[Response]:
    return Result(Response(error_code=code, error_message=message))


# -- the description


def _count_entries(sent: TopologyDescription) -> None:
    """Check the number of entries.

    Raises:
        _TooLargeError: There are too many.
    """
    entries = len(sent.subtopologies) + len(sent.global_stores)
    nodes = [node for each in sent.subtopologies for node in each.nodes]
    nodes += [node for each in sent.global_stores for node in (each.source, each.processor)]
    for node in nodes:
        entries += 1 + len(node.source_topics) + len(node.stores) + len(node.successors)
    if entries > DESCRIPTION_ENTRIES_MAX:
        raise _TooLargeError(
            f"The topology description has {entries} nodes, topics, stores and successors; the "
            f"maximum is {DESCRIPTION_ENTRIES_MAX}."
        )


def _encode(sent: TopologyDescription) -> bytes:
    """Return the bytes to store.

    Raises:
        KafkaError: INVALID_REQUEST.
        _TooLargeError: There are too many bytes.
    """
    description = TopologyDescription(
        subtopologies=[
            TopologyDescriptionSubtopology(
                subtopology_id=each.subtopology_id, nodes=[_node(node) for node in each.nodes]
            )
            for each in sent.subtopologies
        ],
        global_stores=[_global_store(each) for each in sent.global_stores],
    )
    stored = encode_versioned(description, DESCRIPTION_VERSION)
    if len(stored) > DESCRIPTION_BYTES_MAX:
        raise _TooLargeError(
            f"The topology description has {len(stored)} bytes; the maximum is "
            f"{DESCRIPTION_BYTES_MAX}."
        )
    return stored


def _global_store(sent: TopologyDescriptionGlobalStore) -> TopologyDescriptionGlobalStore:
    source, processor = _node(sent.source), _node(sent.processor)
    if (source.node_type, processor.node_type) != (SOURCE, PROCESSOR):
        _invalid("Global store must be composed of a source and a processor node.")
    return TopologyDescriptionGlobalStore(source=source, processor=processor)


def _node(sent: Node) -> Node:
    """Return a node with only the fields that its type defines."""
    node = Node(name=sent.name, node_type=sent.node_type, successors=_distinct(sent.successors))
    if sent.node_type == SOURCE:
        node.source_topics = _distinct(sent.source_topics)
    elif sent.node_type == PROCESSOR:
        node.stores = _distinct(sent.stores)
    elif sent.node_type == SINK:
        node.sink_topic = sent.sink_topic
    else:
        _invalid(f"Unknown topology node type: {sent.node_type}")
    return node


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _invalid(message: str) -> NoReturn:
    raise KafkaError(ErrorCode.INVALID_REQUEST, message)
