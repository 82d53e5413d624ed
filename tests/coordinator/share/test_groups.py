"""Heartbeats of share groups (KIP-932)."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.protocol.errors import ErrorCode

from .groups import (
    ALL,
    SESSION_MS,
    assignment_in,
    empty_group,
    harness,
    initialized_group,
    requested_partitions,
)

# -- validation of heartbeats

BAD: dict[str, tuple[dict[str, Any], ErrorCode]] = {
    "no group": ({"group": ""}, ErrorCode.INVALID_REQUEST),
    "empty rack": ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
    "no topics": ({"topics": []}, ErrorCode.INVALID_REQUEST),
    "invalid epoch": ({"epoch": -2}, ErrorCode.INVALID_REQUEST),
    "long rack": ({"rack_id": "r" * 1_001}, ErrorCode.INVALID_REQUEST),
    "many topics": ({"topics": ["t"] * 10_001}, ErrorCode.INVALID_REQUEST),
    "unknown group": ({"epoch": 1}, ErrorCode.GROUP_ID_NOT_FOUND),
    "leaves no group": ({"epoch": -1}, ErrorCode.GROUP_ID_NOT_FOUND),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_heartbeat_is_rejected(name: str) -> None:
    fields, code = BAD[name]
    h = harness()
    values: dict[str, Any] = {"member_id": "a", "epoch": 0}
    response = h.share_beat(**(values | fields))
    assert ErrorCode(response.error_code) is code
    assert response.error_message
    assert h.log == []


# -- epochs, states and assignments


def test_member_gets_partitions_after_initialization() -> None:
    h = harness()
    first = h.share_beat("a", 0)
    assert (first.member_epoch, assignment_in(h, first)) == (2, {})
    assert first.heartbeat_interval_ms == 5_000
    assert requested_partitions(h) == ALL
    next_beat = h.share_beat("a", 2)
    assert (next_beat.member_epoch, assignment_in(h, next_beat)) == (2, None)
    (made,) = h.make_states()
    assert made.epoch == 2
    response = h.share_beat("a", 2)
    assert (response.member_epoch, assignment_in(h, response)) == (3, ALL)
    assert assignment_in(h, h.share_beat("a", 3)) is None
    assert requested_partitions(h) == {}


def test_heartbeat_with_subscription_receives_assignment() -> None:
    h = initialized_group()
    assert assignment_in(h, h.share_beat("a", 3, ["orders"])) == ALL
    assert assignment_in(h, h.share_beat("a", 0)) == ALL


def test_wrong_epoch_or_member_id_is_rejected() -> None:
    h = initialized_group()
    assert h.share_beat("a", 4).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert h.share_beat("a", 1).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert not h.share_beat("a", 2).error_code, "a response may have been lost"
    assert h.share_beat("b", 3).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert h.share_beat("b", -1).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_group_without_members_has_no_outstanding_assignment() -> None:
    h = initialized_group()
    h.share_beat("b", 0)
    h.share_beat("a", -1)
    row = h.describe_share()
    assert (row.group_state, row.group_epoch, row.assignment_epoch) == ("Stable", 5, 4)
    h.share_beat("b", -1)
    row = h.describe_share()
    assert (row.group_state, row.group_epoch, row.assignment_epoch) == ("Empty", 6, 6)
    assert h.share_beat("a", 0).member_epoch == 7


def test_full_group_rejects_new_members() -> None:
    h = initialized_group(size_max=2)
    h.share_beat("b", 0)
    assert h.share_beat("c", 0).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert not h.share_beat("b", 0).error_code


def test_silent_member_is_removed() -> None:
    h = initialized_group()
    h.share_beat("b", 0)
    h.sleep(SESSION_MS - 1)
    h.share_beat("a", 3)
    (event,) = h.sleep(1)
    assert event.cause == "member b missed heartbeats"
    response = h.share_beat("a", 4)
    assert assignment_in(h, response) == ALL
    h.coordinator.end_session("g", "a", h.now)
    h.sleep(0)
    assert h.describe_share().group_state == "Empty"


def test_session_timeout_that_cannot_be_stored_is_retried() -> None:
    h = initialized_group()
    h.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS
    h.sleep(SESSION_MS)
    assert len(h.describe_share().members) == 1
    h.sleep(5_000)
    assert not h.describe_share().members


def test_heartbeat_that_cannot_be_stored_changes_nothing() -> None:
    h = harness()
    h.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS
    assert h.share_beat("a", 0).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert h.log == []
    assert h.to_make == []
    assert h.coordinator.next_deadline() is None
    assert h.share_beat("a", 0).member_epoch == 2
    assert requested_partitions(h) == ALL


# -- topics


def test_created_grown_and_deleted_topics_change_assignment() -> None:
    h = harness()
    assert assignment_in(h, h.share_beat("a", 0, ["later"])) == {}
    assert requested_partitions(h) == {}
    h.create_topic("later", 2)
    h.share_beat("a", 2)
    assert requested_partitions(h) == {"later": [0, 1]}
    h.make_states()
    assert assignment_in(h, h.share_beat("a", 3)) == {"later": [0, 1]}
    h.create_topic("later", 3)
    h.share_beat("a", 4)
    assert requested_partitions(h) == {"later": [2]}
    h.make_states()
    assert assignment_in(h, h.share_beat("a", 5)) == {"later": [0, 1, 2]}
    topic_id = h.topics.id_of("later")
    assert topic_id is not None
    h.delete_topic("later")
    h.forget(h.coordinator.share_offsets.forget_topics([topic_id]))
    assert list(h.coordinator.share_offsets.partitions("g")) == []
    assert assignment_in(h, h.share_beat("a", 6)) == {}


def test_topics_deleted_while_unloaded_are_removed_after_load() -> None:
    h = initialized_group()
    del h.topics.topics["orders"]
    h = h.restarted()
    assert len(list(h.coordinator.share_offsets.partitions("g"))) == 4
    h.forget(h.coordinator.forget_missing_topics())
    assert list(h.coordinator.share_offsets.partitions("g")) == []


# -- deletion


def test_deleting_group_writes_tombstone_for_every_record() -> None:
    h = empty_group()
    h.delete_groups("g")
    left = {record.key: record.value for record in h.log}
    assert not any(value is not None for value in left.values())


# -- other group types


def test_group_has_one_type() -> None:
    h = initialized_group()
    assert h.beat("x", 0).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert h.join("").response.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert h.commit({("orders", 0): 1}) == [ErrorCode.GROUP_ID_NOT_FOUND]
    assert h.commit_in_transaction({("orders", 0): 1}) == [ErrorCode.GROUP_ID_NOT_FOUND]
    assert h.fetch({"orders": [0]})["orders", 0][0] == -1
    response = h.delete_offsets({"orders": [0]})
    assert response.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert h.describe_consumer().error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert "not a classic group" in (h.describe().error_message or "")
    h.beat("c", 0, group="consumers")
    h.commit({("orders", 0): 1}, group="simple")
    for group in ("consumers", "simple"):
        assert h.share_beat("x", 0, group=group).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert "not a share group" in (h.describe_share(group).error_message or "")
    rows = {(row.group_id, row.group_type) for row in h.coordinator.list_groups()}
    assert rows == {("g", "share"), ("consumers", "consumer"), ("simple", "classic")}
    (row,) = h.coordinator.list_groups(["stable"], ["Share"])
    assert (row.group_id, row.protocol_type) == ("g", "share")


def test_status_describes_initialization_and_reconciliation() -> None:
    h = harness()
    h.share_beat("a", 0)
    status = h.coordinator.describe_status("g", h.now)
    assert status == (
        "group g is Stable in epoch 2: it has member a; waits for share coordinators to initialize 4 "
        "partitions of orders"
    )
    h.make_states()
    h.share_beat("b", 0)
    status = h.coordinator.describe_status("g", h.now)
    assert status == (
        "group g is Stable in epoch 3: it has member a, member b; member a will receive the target "
        "assignment with the next heartbeat; has share state for 4 partitions of orders"
    )
