"""Heartbeats of streams groups (KIP-1071): members, epochs, tasks, internal topics and timeouts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kbroker.coordinator import StreamsGroupSettings
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.streams_groups import StreamsGroupHeartbeatRequest

from ..harness import Harness, joining, subtopology, topology
from .groups import QUICK, active_tasks, group_state, status_codes

NONE: dict[str, Any] = {"owned": {}}


def details(response: Any) -> list[str]:
    return [each.status_detail for each in response.status]


def test_member_joins_stays_and_leaves(h: Harness) -> None:
    response = h.streams_beat("a", 0)
    assert (response.member_epoch, active_tasks(response)) == (2, {"0": [0, 1, 2, 3]})
    assert (response.heartbeat_interval_ms, status_codes(response)) == (5_000, [])
    assert active_tasks(h.streams_beat("a", 2)) is None
    assert group_state(h) == "Stable"
    assert h.streams_beat("a", -1).member_epoch == -1
    assert group_state(h) == "Empty"
    assert h.streams_beat("a", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_streams_group_is_counted_among_committing_groups(h: Harness) -> None:
    h.streams_beat("a", 0)
    h.streams_beat("b", 0)
    assert [members for _, members in h.coordinator.member_counts()] == [2]
    assert not list(h.coordinator.share_member_counts())


def test_internal_topics_are_requested_before_tasks_are_assigned(h: Harness) -> None:
    sent_topology = topology(
        subtopology("0", "orders", sinks=["between"]),
        subtopology("1", repartition={"between": 0}, changelogs=["log"]),
    )
    response = h.streams_beat("a", 0, topology=sent_topology)
    assert (status_codes(response), active_tasks(response), group_state(h)) == ([3], {}, "NotReady")
    assert h.missing == {"between": 4, "log": 4}
    assert details(h.streams_beat("a", 2)) == ["Internal topics are missing: between, log"]
    h.make_missing()
    response = h.streams_beat("a", 2)
    assert (status_codes(response), response.member_epoch) == ([], 3)
    assert active_tasks(response) == {"0": [0, 1, 2, 3], "1": [0, 1, 2, 3]}
    described = h.describe_streams().topology
    assert described is not None
    rows = described.subtopologies or []
    assert [each.partitions for row in rows for each in row.repartition_source_topics] == [4]


def test_created_grown_and_deleted_topics_change_tasks(h: Harness) -> None:
    sent_topology = topology(subtopology("0", "later"))
    response = h.streams_beat("a", 0, topology=sent_topology)
    assert (status_codes(response), active_tasks(response)) == ([1], {})
    h.create_topic("later", 2)
    assert active_tasks(h.streams_beat("a", 2)) == {"0": [0, 1]}
    h.create_topic("later", 3)
    response = h.streams_beat("a", 3)
    assert (response.member_epoch, active_tasks(response)) == (4, {"0": [0, 1, 2]})
    h.delete_topic("later")
    assert status_codes(h.streams_beat("a", 4)) == [1]
    assert group_state(h) == "NotReady"
    response = h.streams_beat("a", 4, owned={})
    assert (response.member_epoch, active_tasks(h.streams_beat("a", 5))) == (5, None)


def test_silent_member_is_removed(h: Harness) -> None:
    h.streams_beat("a", 0)
    h.streams_beat("b", 0)
    h.sleep(44_000)
    h.streams_beat("a", 2)
    events = h.sleep(1_000)
    assert [event.cause for event in events] == ["member b missed heartbeats"]
    assert [row.member_id for row in h.describe_streams().members] == ["a"]


def test_shutdown_request_is_sent_to_all_members(h: Harness) -> None:
    h.streams_beat("a", 0)
    h.streams_beat("b", 0)
    assert status_codes(h.streams_beat("a", 2, shutdown_application=True)) == [4]
    response = h.streams_beat("b", 3, shutdown_application=True)
    assert "member a encountered" in details(response)[0]
    for name in "ab":
        h.streams_beat(name, -1)
    assert status_codes(h.streams_beat("c", 0)) == []


def test_first_topology_determines_group(h: Harness) -> None:
    here = topology(subtopology("0", "orders"), epoch=3)
    h.streams_beat("a", 0, topology=here)
    response = h.streams_beat("b", 0, topology=topology(subtopology("0", "audit"), epoch=2))
    assert status_codes(response) == [0]
    for other in (topology(subtopology("0", "audit"), epoch=3), topology(epoch=4)):
        response = h.streams_beat("c", 0, topology=other)
        assert response.error_code == ErrorCode.INVALID_REQUEST
    assert [row.member_id for row in h.describe_streams().members] == ["a", "b"]


def test_full_group_rejects_new_members(h: Harness) -> None:
    h.streams = StreamsGroupSettings(initial_rebalance_delay_ms=0, size_max=1)
    h.streams_beat("a", 0)
    assert h.streams_beat("b", 0).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert not h.streams_beat("a", 2).error_code


@pytest.mark.parametrize(
    "fields",
    [
        {"instance_id": ""},
        {"instance_id": "i" * 1_001},
        {"rebalance_timeout_ms": -1},
        {"topology": None},
        {"owned": {"0": [1]}},
        {"process_id": "p" * 1_001},
        {"topology": topology(subtopology("0", "orders"), subtopology("0", "audit"))},
        {"topology": topology(subtopology("0", "orders"), epoch=-1)},
    ],
)
def test_invalid_heartbeat_is_rejected(h: Harness, fields: dict[str, Any]) -> None:
    response = h.streams_beat("a", 0, **fields)
    assert (response.error_code, response.status) == (ErrorCode.INVALID_REQUEST, [])
    assert not h.log


def test_unknown_tasks_are_rejected(h: Harness) -> None:
    h.streams_beat("a", 0)
    for owned in ({"0": [4]}, {"0": [-1]}, {"9": [0]}):
        response = h.streams_beat("a", 2, owned=owned)
        assert response.error_code == ErrorCode.INVALID_REQUEST


def test_empty_group_becomes_classic_group_and_back(h: Harness) -> None:
    h.streams_beat("a", 0)
    assert h.coordinator.delete_empty_modern_group(joining(), h.now) is None
    h.commit({("orders", 0): 5}, "a", 2)
    h.streams_beat("a", -1)
    assert h.beat("c", 0).error_code == ErrorCode.GROUP_ID_NOT_FOUND, (
        "a consumer heartbeat does not convert a streams group"
    )
    freed = h.coordinator.delete_empty_modern_group(joining(), h.now)
    assert freed is not None
    h.settle(freed)
    assert h.coordinator.committed("g") == {("orders", 0): 5}
    assert active_tasks(h.streams_beat("a", 0)) == {"0": [0, 1, 2, 3]}
    assert h.coordinator.committed("g") == {("orders", 0): 5}


def test_heartbeat_that_cannot_be_stored_is_retried(h: Harness) -> None:
    h.streams_beat("a", 0)
    h.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS
    assert h.streams_beat("b", 0).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert [row.member_id for row in h.describe_streams().members] == ["a"]
    h.create_topic("orders", 5)
    h.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS
    h.streams_beat("a", 2)
    assert active_tasks(h.streams_beat("a", 2)) == {"0": [0, 1, 2, 3, 4]}


def test_status_describes_missing_topics(h: Harness) -> None:
    h.streams_beat("a", 0, topology=topology(subtopology("0", "nowhere")))
    h.streams_beat("a", 2)
    status = h.coordinator.describe_status("g", h.now)
    assert status is not None
    assert "NotReady" in status
    assert "Source topics nowhere are missing" in status


def test_missing_client_tags_are_reported_to_clients_of_version_1() -> None:
    h = Harness(streams=replace(QUICK, rack_aware_tags=("zone", "cluster")))
    tag = StreamsGroupHeartbeatRequest.KeyValue(key="zone", value="a")
    response = h.streams_beat("a", 0, client_tags=[tag])
    assert status_codes(response) == [6]
    assert details(response)[0].startswith(
        "Missing required client tags for rack-aware standby assignment: [cluster]. "
    )
    assert status_codes(h.streams_beat("b", 0, version=0)) == []
    tags = [tag, StreamsGroupHeartbeatRequest.KeyValue(key="cluster", value="c")]
    assert status_codes(h.streams_beat("c", 0, client_tags=tags)) == []


def test_changed_rack_aware_tags_start_an_assignment(h: Harness) -> None:
    epoch = h.streams_beat("a", 0).member_epoch
    h.streams = replace(QUICK, rack_aware_tags=("zone",))
    assert h.streams_beat("a", epoch, version=0).member_epoch == epoch + 1
    assert h.restarted().streams_beat("a", epoch + 1, version=0).member_epoch == epoch + 1


def test_description_names_the_assignor(h: Harness) -> None:
    h.streams_beat("a", 0)
    assert h.describe_streams().assignor_name == "sticky"
    assert h.describe_streams("missing").assignor_name is None


def test_task_offsets_are_accepted(h: Harness) -> None:
    response = h.streams_beat("a", 0)
    assert (response.task_offset_interval_ms, response.acceptable_recovery_lag) == (60_000, 10_000)
    offset = StreamsGroupHeartbeatRequest.TaskOffset(subtopology_id="0", partition=0, offset=5)
    response = h.streams_beat("a", 2, task_offsets=[offset], task_end_offsets=[offset])
    assert not response.error_code


def test_member_of_full_group_rejoins() -> None:
    h = Harness(streams=replace(QUICK, size_max=1))
    epoch = h.streams_beat("a", 0).member_epoch
    assert h.streams_beat("b", 0).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert h.streams_beat("a", 0).member_epoch == epoch


def test_group_without_members_has_no_outstanding_assignment(h: Harness) -> None:
    h.streams_beat("a", 0)
    h.streams_beat("a", -1)
    row = h.describe_streams()
    assert (row.group_state, row.group_epoch, row.assignment_epoch) == ("Empty", 3, 3)
