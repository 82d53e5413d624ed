"""Static members of streams groups: members with an instance ID."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kbroker.protocol.errors import ErrorCode

from ..harness import REBALANCE_MS, Harness
from .groups import active_tasks, group_state

MINE = {"0": [0, 1, 2, 3]}


def epochs(h: Harness) -> dict[str, int]:
    """Return the epochs of the members."""
    return {row.member_id: row.member_epoch for row in h.describe_streams().members}


def test_static_member_returns_with_its_tasks_and_without_new_group_epoch(h: Harness) -> None:
    first = h.streams_beat("a", 0, instance_id="i", process_id="p")
    response = h.streams_beat("a", -2, instance_id="i")
    assert (response.error_code, response.member_id, response.member_epoch) == (0, "a", -2)
    assert (epochs(h), group_state(h)) == ({"a": -2}, "Reconciling")
    response = h.streams_beat("b", 0, instance_id="i", process_id="p")
    assert (response.member_epoch, active_tasks(response)) == (first.member_epoch, MINE)
    assert (epochs(h), group_state(h)) == ({"b": 2}, "Stable")
    (row,) = h.describe_streams().members
    assert (row.instance_id, row.target_assignment.active_tasks[0].partitions) == ("i", MINE["0"])


def test_static_member_returns_with_same_member_id(h: Harness) -> None:
    h.streams_beat("a", 0, instance_id="i")
    h.streams_beat("a", -2, instance_id="i")
    response = h.streams_beat("a", 0, instance_id="i")
    assert (response.member_epoch, active_tasks(response)) == (2, MINE)
    assert active_tasks(h.streams_beat("a", 2, instance_id="i")) is None, "they are not sent again"


def test_static_member_with_other_process_gets_new_assignment(h: Harness) -> None:
    h.streams_beat("a", 0, instance_id="i", process_id="p")
    h.streams_beat("a", -2, instance_id="i")
    response = h.streams_beat("b", 0, instance_id="i", process_id="q")
    assert (response.member_epoch, active_tasks(response)) == (3, MINE)


def test_instance_id_of_present_member_is_rejected(h: Harness) -> None:
    h.streams_beat("a", 0, instance_id="i")
    for name in "ab":
        response = h.streams_beat(name, 0, instance_id="i")
        assert response.error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    for epoch in (2, -1, -2):
        response = h.streams_beat("b", epoch, instance_id="i")
        assert response.error_code == ErrorCode.FENCED_INSTANCE_ID
        response = h.streams_beat("a", epoch, instance_id="j")
        assert response.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert h.streams_beat("a", -2).error_code == ErrorCode.INVALID_REQUEST
    assert not h.streams_beat("a", 2, instance_id="i").error_code


def test_old_member_is_fenced_after_return_of_other_one(h: Harness) -> None:
    h.streams_beat("a", 0, instance_id="i")
    h.streams_beat("a", -2, instance_id="i")
    assert h.streams_beat("a", 2, instance_id="i").error_code == ErrorCode.FENCED_MEMBER_EPOCH
    h.streams_beat("b", 0, instance_id="i")
    assert h.streams_beat("a", 2, instance_id="i").error_code == ErrorCode.FENCED_INSTANCE_ID
    assert h.streams_beat("a", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_absent_static_member_is_removed_after_session_timeout(h: Harness) -> None:
    h.streams_beat("a", 0, instance_id="i")
    h.streams_beat("b", 0)
    h.streams_beat("a", -2, instance_id="i")
    h.sleep(44_000)
    h.streams_beat("b", 3)
    events = h.sleep(1_000)
    assert [event.cause for event in events] == ["member a missed heartbeats"]
    assert active_tasks(h.streams_beat("b", 3)) == MINE
    assert not h.streams_beat("c", 0, instance_id="i").error_code


def test_absent_static_member_is_not_removed_by_revocation_timeout(h: Harness) -> None:
    h.streams = replace(h.streams, session_timeout_ms=10 * REBALANCE_MS)
    h.streams_beat("a", 0, instance_id="i", rebalance_timeout_ms=REBALANCE_MS)
    h.streams_beat("b", 0)
    assert active_tasks(h.streams_beat("a", 2, instance_id="i")) == {"0": [0, 1]}
    h.streams_beat("a", -2, instance_id="i")
    assert active_tasks(h.streams_beat("b", 3)) == {"0": [2, 3]}, "the tasks are released"
    h.sleep(2 * REBALANCE_MS)
    assert epochs(h) == {"a": -2, "b": 3}


def test_static_member_may_return_to_full_group(h: Harness) -> None:
    h.streams = replace(h.streams, size_max=1)
    h.streams_beat("a", 0, instance_id="i")
    h.streams_beat("a", -2, instance_id="i")
    for instance_id in (None, "j"):
        response = h.streams_beat("b", 0, instance_id=instance_id)
        assert response.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert not h.streams_beat("b", 0, instance_id="i").error_code


def test_changed_endpoint_of_static_member_does_not_start_assignment(h: Harness) -> None:
    h.streams_beat("a", 0, instance_id="i", rebalance_timeout_ms=1_000)
    written = len(h.entries)
    response = h.streams_beat("a", 2, instance_id="i", rebalance_timeout_ms=2_000)
    assert (response.member_epoch, len(h.entries)) == (2, written + 1)
    assert h.describe_streams().group_epoch == 2
    assert h.streams_beat("a", 2, rebalance_timeout_ms=3_000).member_epoch == 3


@pytest.mark.parametrize("restarts", [False, True])
def test_failed_writes_leave_static_member_in_place(h: Harness, restarts: bool) -> None:
    h.streams_beat("a", 0, instance_id="i")
    for name, epoch in (("a", -2), ("b", 0)):
        h.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS
        response = h.streams_beat(name, epoch, instance_id="i")
        expected = (
            ErrorCode.COORDINATOR_NOT_AVAILABLE if epoch else ErrorCode.UNRELEASED_INSTANCE_ID
        )
        assert response.error_code == expected
        h.append_fails = None
    h.streams_beat("a", -2, instance_id="i")
    h.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS
    assert h.streams_beat("b", 0, instance_id="i").error_code
    h.append_fails = None
    if restarts:
        h = h.restarted()
    assert epochs(h) == {"a": -2}
    h.sleep(45_000)
    assert epochs(h) == {}, "the session of the absent member ends"


def test_returning_member_replaces_tombstoned_records(h: Harness) -> None:
    """A restarted coordinator knows the same members, tasks and instance IDs."""
    h.streams_beat("a", 0, instance_id="i", process_id="p")
    h.streams_beat("a", -2, instance_id="i")
    h.streams_beat("b", 0, instance_id="i", process_id="p")
    known = h.describe_streams()
    h = h.restarted()
    assert h.describe_streams() == known
    assert h.streams_beat("c", 0, instance_id="i").error_code == ErrorCode.UNRELEASED_INSTANCE_ID
