"""Topology descriptions of streams groups (KIP-1331)."""

from __future__ import annotations

import pytest

from kbroker.coordinator.streams.descriptions import (
    DESCRIPTION_BYTES_MAX,
    DESCRIPTION_ENTRIES_MAX,
)
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.streams_groups import (
    TopologyDescription,
    TopologyDescriptionGlobalStore,
    TopologyDescriptionNode,
    TopologyDescriptionSubtopology,
)

from ..harness import Harness, subtopology, topology
from .groups import status_codes

Node = TopologyDescriptionNode
SOURCE = Node(name="source", node_type=1, source_topics=["orders"], successors=["count"])
PROCESSOR = Node(name="count", node_type=2, stores=["counts"], successors=["sink"])
SINK = Node(name="sink", node_type=3, sink_topic="totals")
NOT_STORED, AVAILABLE = 1, 3


def description(*nodes: Node) -> TopologyDescription:
    """Return a description of subtopology 0 with these nodes."""
    rows = [TopologyDescriptionSubtopology(subtopology_id="0", nodes=list(nodes))]
    return TopologyDescription(subtopologies=rows)


PLAIN = description(SOURCE, PROCESSOR, SINK)


def stored_description(h: Harness) -> tuple[int, TopologyDescription | None]:
    row = h.describe_streams()
    return row.topology_description_status, row.topology_description


def test_described_topology_is_stored_and_not_requested_again(h: Harness) -> None:
    assert h.streams_beat("a", 0).topology_description_required
    assert stored_description(h) == (NOT_STORED, None)
    assert not h.describe_topology(PLAIN).error_code
    assert stored_description(h) == (AVAILABLE, PLAIN)
    assert not h.streams_beat("b", 0).topology_description_required
    h.sleep(7_200_000)
    assert not h.streams_beat("c", 0).topology_description_required


def test_description_survives_restart_and_is_deleted_with_group(h: Harness) -> None:
    h.streams_beat("a", 0)
    h.describe_topology(PLAIN)
    again = h.restarted()
    assert stored_description(again) == (AVAILABLE, PLAIN)
    again.streams_beat("a", -1)
    assert again.delete_groups("g") == {"g": 0}
    assert again.streams_beat("a", 0).topology_description_required
    assert stored_description(again) == (NOT_STORED, None)


def test_description_changes_neither_epoch_nor_assignment(h: Harness) -> None:
    epoch = h.streams_beat("a", 0).member_epoch
    h.describe_topology(PLAIN)
    response = h.streams_beat("a", epoch, owned={"0": [0, 1, 2, 3]})
    assert (response.member_epoch, response.active_tasks) == (epoch, None)
    assert h.describe_streams().group_epoch == epoch


def test_same_description_is_stored_once(h: Harness) -> None:
    h.streams_beat("a", 0)
    h.describe_topology(PLAIN)
    records = len(h.log)
    assert not h.describe_topology(PLAIN).error_code
    assert len(h.log) == records
    other = description(SOURCE)
    assert not h.describe_topology(other).error_code
    assert stored_description(h) == (AVAILABLE, other)


def test_description_is_requested_in_growing_intervals(h: Harness) -> None:
    epoch = h.streams_beat("a", 0).member_epoch
    requests = []
    for second in range(0, 400, 10):
        if h.streams_beat("a", epoch).topology_description_required:
            requests.append(second)
        h.sleep(10_000)
    assert requests == [30, 90, 210]


def test_clients_of_version_0_are_not_asked(h: Harness) -> None:
    epoch = h.streams_beat("a", 0, version=0).member_epoch
    assert h.streams_beat("a", epoch).topology_description_required


def test_member_with_stale_topology_is_not_asked(h: Harness) -> None:
    h.streams_beat("a", 0, topology=topology(subtopology("0", "orders"), epoch=1))
    h.sleep(40_000)
    stale = h.streams_beat("b", 0)
    assert status_codes(stale) == [0]
    assert not stale.topology_description_required


def test_only_fields_of_node_types_are_stored(h: Harness) -> None:
    h.streams_beat("a", 0)
    sent = Node(
        name="source",
        node_type=1,
        source_topics=["orders", "orders"],
        stores=["counts"],
        sink_topic="totals",
        successors=["count"],
    )
    h.describe_topology(description(sent))
    assert stored_description(h) == (AVAILABLE, description(SOURCE))


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"member_id": " "}, ErrorCode.INVALID_REQUEST),
        ({"group": ""}, ErrorCode.INVALID_REQUEST),
        ({"group": "missing"}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"member_id": "b"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"epoch": 1}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_description_for_wrong_target_is_rejected(
    h: Harness, fields: dict[str, object], code: ErrorCode
) -> None:
    h.streams_beat("a", 0)
    assert h.describe_topology(PLAIN, **fields).error_code == code  # type: ignore[arg-type]
    assert stored_description(h) == (NOT_STORED, None)


def test_description_with_invalid_node_is_rejected(h: Harness) -> None:
    h.streams_beat("a", 0)
    response = h.describe_topology(description(Node(name="n", node_type=4)))
    assert response.error_message == "Unknown topology node type: 4"
    store = TopologyDescriptionGlobalStore(source=PROCESSOR, processor=PROCESSOR)
    response = h.describe_topology(TopologyDescription(global_stores=[store]))
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert stored_description(h) == (NOT_STORED, None)


@pytest.mark.parametrize(
    "large",
    [
        description(*[Node(name="n" * 30_000, node_type=1)] * (DESCRIPTION_BYTES_MAX // 29_000)),
        description(*[Node(node_type=1)] * DESCRIPTION_ENTRIES_MAX),
        description(Node(node_type=2, successors=["s"] * DESCRIPTION_ENTRIES_MAX)),
    ],
    ids=["bytes", "nodes", "successors"],
)
def test_too_large_description_is_rejected_permanently(
    h: Harness, large: TopologyDescription
) -> None:
    epoch = h.streams_beat("a", 0).member_epoch
    response = h.describe_topology(large)
    assert response.error_code == ErrorCode.STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED
    assert "maximum is" in (response.error_message or "")
    assert h.describe_streams().group_epoch == epoch
    again = h.restarted()
    again.sleep(40_000)
    assert not again.streams_beat("a", epoch).topology_description_required
    assert stored_description(again) == (NOT_STORED, None)
    # An epoch bump keeps the mark.
    again.streams_beat("b", 0)
    again.sleep(40_000)
    assert not again.restarted().streams_beat("b", 0).topology_description_required


def test_description_that_cannot_be_appended_is_not_stored(h: Harness) -> None:
    h.streams_beat("a", 0)
    h.append_fails = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert h.describe_topology(PLAIN).error_code == ErrorCode.NOT_COORDINATOR
    assert stored_description(h) == (NOT_STORED, None)
