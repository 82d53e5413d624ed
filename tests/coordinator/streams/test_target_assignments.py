"""Target assignments of streams groups."""

from __future__ import annotations

from typing import Any

from kbroker.coordinator import StreamsGroupSettings

from ..harness import Harness, subtopology, topology
from .groups import active_tasks, group_state, status_codes

STATEFUL = topology(subtopology("0", "orders", changelogs=["log"]))


def standby(response: Any) -> dict[str, list[int]]:
    return {row.subtopology_id: row.partitions for row in response.standby_tasks}


def test_new_group_waits_for_initial_rebalance_delay() -> None:
    h = Harness(streams=StreamsGroupSettings())
    response = h.streams_beat("a", 0)
    assert (response.member_epoch, active_tasks(response), status_codes(response)) == (1, {}, [5])
    h.sleep(2_000)
    response = h.streams_beat("b", 0)
    assert (response.member_epoch, status_codes(response)) == (1, [5])
    h.sleep(999)
    assert status_codes(h.streams_beat("a", 1)) == [5]
    h.sleep(1)
    for name in "ab":
        response = h.streams_beat(name, 1)
        assert (response.member_epoch, status_codes(response)) == (3, [])
        assert len((active_tasks(response) or {})["0"]) == 2
    for name in "ab":
        h.streams_beat(name, -1)
    assert status_codes(h.streams_beat("c", 0)) == [5], "an empty group waits for the delay again"


def test_targets_respect_assignment_interval() -> None:
    h = Harness()
    h.streams_beat("a", 0)
    response = h.streams_beat("b", 0)
    assert (response.member_epoch, status_codes(response), group_state(h)) == (2, [5], "Assigning")
    h.sleep(1_000)
    assert h.streams_beat("b", 2).member_epoch == 3


def test_standby_tasks_are_assigned_to_other_processes(h: Harness) -> None:
    h.create_topic("log", 4)
    h.streams = StreamsGroupSettings(
        initial_rebalance_delay_ms=0, assignment_interval_ms=0, standby_replicas=1
    )
    response = h.streams_beat("a", 0, topology=STATEFUL)
    assert (active_tasks(response), standby(response)) == ({"0": [0, 1, 2, 3]}, {})
    h.streams_beat("b", 0, topology=STATEFUL)
    response = h.streams_beat("a", 2)
    assert (active_tasks(response), standby(response)) == ({"0": [0, 1]}, {"0": [2, 3]}), (
        "a task that is given up becomes a standby at once"
    )
    response = h.streams_beat("a", 2, owned={"0": [0, 1]}, standby={"0": [2, 3]})
    assert (response.member_epoch, active_tasks(response)) == (3, None)
    response = h.streams_beat("b", 3)
    assert (active_tasks(response), standby(response)) == ({"0": [2, 3]}, {"0": [0, 1]})
    h.streams_beat("b", -1)
    response = h.streams_beat("a", 3, owned={"0": [0, 1]}, standby={"0": [2, 3]})
    assert response.member_epoch == 4
    assert (active_tasks(response), standby(response)) == ({"0": [0, 1, 2, 3]}, {}), (
        "a standby becomes active without a revocation"
    )


def test_changed_standby_replicas_trigger_new_assignment(h: Harness) -> None:
    h.create_topic("log", 4)
    for name in "ab":
        h.streams_beat(name, 0, topology=STATEFUL)
    h.streams_beat("a", 2)
    h.streams_beat("a", 2, owned={"0": [0, 1]})
    h.streams_beat("b", 3)
    assert group_state(h) == "Stable"
    h.streams = StreamsGroupSettings(
        initial_rebalance_delay_ms=0, assignment_interval_ms=0, standby_replicas=1
    )
    response = h.streams_beat("a", 3)
    assert (response.member_epoch, standby(response)) == (4, {"0": [2, 3]})


def test_many_tasks_are_assigned_in_background(h: Harness) -> None:
    h.create_topic("wide", 2_500)
    sent_topology = topology(subtopology("0", "wide"))
    response = h.streams_beat("a", 0, topology=sent_topology)
    assert (response.member_epoch, active_tasks(response)) == (1, {})
    h.streams_beat("a", 1)
    response = h.streams_beat("a", 1)
    assert (response.member_epoch, len((active_tasks(response) or {})["0"])) == (2, 2_500)
