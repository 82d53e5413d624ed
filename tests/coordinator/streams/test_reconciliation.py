"""Reconciliation of tasks between members of a streams group."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kbroker.coordinator.streams.group import StreamsGroup, StreamsGroupMember, StreamsMemberState
from kbroker.coordinator.streams.reconciliation import reconcile
from kbroker.coordinator.streams.tasks import TasksTuple, TasksTupleWithEpochs
from kbroker.protocol.errors import ErrorCode

from ..harness import REBALANCE_MS, SESSION_MS, Harness
from .groups import active_tasks, group_state

UNRELEASED, STABLE = StreamsMemberState.UNRELEASED, StreamsMemberState.STABLE
UNREVOKED = StreamsMemberState.UNREVOKED


def test_tasks_move_to_new_member_after_revocation(h: Harness) -> None:
    h.streams_beat("a", 0)
    response = h.streams_beat("b", 0)
    assert (response.member_epoch, active_tasks(response)) == (3, {})
    response = h.streams_beat("a", 2)
    assert (response.member_epoch, active_tasks(response)) == (2, {"0": [0, 1]})
    assert active_tasks(h.streams_beat("b", 3)) is None, "the tasks are not free yet"
    assert active_tasks(h.streams_beat("a", 2, owned={"0": [0, 1, 2, 3]})) is None
    assert h.streams_beat("a", 2, owned={"0": [0, 1]}).member_epoch == 3
    assert active_tasks(h.streams_beat("b", 3)) == {"0": [2, 3]}
    assert group_state(h) == "Stable"


def test_member_waits_for_tasks_of_each_subtopology() -> None:
    """Free tasks of a later subtopology do not end the wait for those of an earlier one."""
    group = StreamsGroup("g")
    had = TasksTupleWithEpochs({"0": {2: 2}})
    group.put(StreamsGroupMember("a", process_id="a", epoch=2, assigned=had))
    target = TasksTuple({"0": frozenset({2}), "1": frozenset({0})})
    waiting = reconcile(StreamsGroupMember("b", process_id="b", epoch=2), 3, target, None, group)
    assert (waiting.state, waiting.assigned.active) == (UNRELEASED, {"1": {0: 3}})
    group.put(StreamsGroupMember("a", process_id="a", epoch=3))
    after = reconcile(waiting, 3, target, None, group)
    assert (after.state, after.assigned.active) == (STABLE, {"0": {2: 3}, "1": {0: 3}})


def test_tasks_change_their_role_without_a_step_in_between() -> None:
    """Kafka 4.4 gives an active task as standby at once, and keeps a standby until it is active."""
    group = StreamsGroup("g")
    had = TasksTupleWithEpochs({"0": {0: 2, 1: 2}}, {"0": frozenset({2})})
    mine = StreamsGroupMember("a", process_id="p", epoch=2, assigned=had)
    group.put(mine)
    target = TasksTuple({"0": frozenset({0, 2})}, {"0": frozenset({1})})
    after = reconcile(mine, 3, target, None, group)
    assert (after.state, after.assigned.active) == (UNREVOKED, {"0": {0: 2}})
    assert after.assigned.standby == {"0": {1, 2}}
    assert (after.revoking.active, after.revoking.standby) == ({"0": {1: 2}}, {})
    owned = TasksTuple({"0": frozenset({0})}, {"0": frozenset({1, 2})})
    done = reconcile(after, 3, target, owned, group)
    assert (done.state, done.epoch) == (STABLE, 3)
    assert (done.assigned.active, done.assigned.standby) == ({"0": {0: 2, 2: 3}}, {"0": {1}})


def test_task_waits_for_other_member_of_same_process() -> None:
    group = StreamsGroup("g")
    copy = TasksTupleWithEpochs(standby={"0": frozenset({0})})
    group.put(StreamsGroupMember("a", process_id="p", epoch=2, assigned=copy))
    member = StreamsGroupMember("b", process_id="p", epoch=2)
    for target in (TasksTuple({"0": frozenset({0})}), TasksTuple(standby={"0": frozenset({0})})):
        after = reconcile(member, 3, target, None, group)
        assert (after.state, after.assigned.is_empty) == (UNRELEASED, True)
        elsewhere = reconcile(replace(member, process_id="q"), 3, target, None, group)
        assert (elsewhere.state, elsewhere.assigned.is_empty) == (STABLE, False)


def test_previous_epoch_is_accepted_after_lost_response(h: Harness) -> None:
    h.streams_beat("a", 0)
    h.streams_beat("b", 0)
    h.streams_beat("a", 2)
    h.streams_beat("a", 2, owned={"0": [0, 1]})
    assert h.streams_beat("a", 2).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert h.streams_beat("a", 2, owned={"0": [0, 1, 2]}).error_code == (
        ErrorCode.FENCED_MEMBER_EPOCH
    )
    assert h.streams_beat("a", 2, owned={"0": [0, 1]}).member_epoch == 3
    for epoch in (1, 4):
        response = h.streams_beat("a", epoch, owned={})
        assert response.error_code == ErrorCode.FENCED_MEMBER_EPOCH


def test_tasks_are_resent_to_member_that_may_have_missed_them(h: Harness) -> None:
    """The response was lost, or the coordinator moved before it was sent."""
    mine: dict[str, Any] = {"0": [0, 1, 2, 3]}
    h.streams_beat("a", 0)
    h.sleep(4_999)
    assert active_tasks(h.streams_beat("a", 2)) is None
    h.sleep(1)
    assert active_tasks(h.streams_beat("a", 2)) == mine
    assert active_tasks(h.streams_beat("a", 2, owned=mine)) is None
    h.sleep(20_000)
    assert active_tasks(h.streams_beat("a", 2)) is None
    assert active_tasks(h.streams_beat("a", 2, owned={"0": [0]})) == mine
    restarted = h.restarted()
    assert active_tasks(restarted.streams_beat("a", 2)) == mine
    assert active_tasks(restarted.streams_beat("a", 2)) is None


def test_member_that_does_not_revoke_in_time_is_removed(h: Harness) -> None:
    h.streams_beat("a", 0, rebalance_timeout_ms=REBALANCE_MS)
    h.streams_beat("b", 0)
    h.streams_beat("a", 2)
    for _ in range(REBALANCE_MS // SESSION_MS - 1):
        h.sleep(SESSION_MS)
        for name, epoch in (("a", 2), ("b", 3)):
            h.streams_beat(name, epoch)
    events = h.sleep(SESSION_MS)
    assert [event.cause for event in events] == ["member a did not revoke tasks in time"]
    assert active_tasks(h.streams_beat("b", 3)) == {"0": [0, 1, 2, 3]}
