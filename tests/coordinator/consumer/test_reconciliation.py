"""Revocation and assignment of partitions in consumer groups."""

from __future__ import annotations

from kbroker.protocol.errors import ErrorCode

from ..harness import REBALANCE_MS
from .groups import ALL, assignment_in, harness, members


def test_new_member_gets_partitions_after_revocation() -> None:
    h = harness()
    h.beat("a", 0)
    assert assignment_in(h, h.beat("b", 0)) == {}
    half = h.beat("a", 2)
    assert (half.member_epoch, assignment_in(h, half)) == (2, {"orders": [0, 1]})
    assert assignment_in(h, h.beat("b", 3)) is None
    assert h.beat("a", 2, owned=ALL).member_epoch == 2, "the partitions are not revoked yet"
    assert h.beat("a", 2, owned={"orders": [0, 1]}).member_epoch == 3
    assert assignment_in(h, h.beat("b", 3)) == {"orders": [2, 3]}
    assert h.describe_consumer().group_state == "Stable"
    assert members(h) == {"a": (3, {"orders": [0, 1]}), "b": (3, {"orders": [2, 3]})}


def test_members_joining_within_assignment_interval_are_assigned_together() -> None:
    h = harness(assignment_interval_ms=1_000)
    h.beat("a", 0)
    h.ms += 200
    response = h.beat("b", 0)
    assert (response.member_epoch, assignment_in(h, response)) == (2, {})
    assert h.describe_consumer().group_state == "Assigning"
    h.beat("c", 0)
    h.ms += 800
    assert h.beat("a", 2).member_epoch == 2
    row = h.describe_consumer()
    assert (row.group_epoch, row.assignment_epoch, row.group_state) == (4, 4, "Reconciling")


def test_member_that_does_not_revoke_in_time_is_removed() -> None:
    h = harness(session_timeout_ms=10 * REBALANCE_MS)
    h.beat("a", 0)
    h.beat("b", 0)
    h.beat("a", 2)
    for _ in range(3):
        h.sleep(REBALANCE_MS // 4)
        assert h.beat("a", 2).error_code == 0
    events = h.sleep(REBALANCE_MS // 4)
    assert [e.cause for e in events] == ["member a did not revoke partitions in time"]
    assert h.beat("a", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert assignment_in(h, h.beat("b", 3)) == ALL


def test_member_that_revokes_in_time_is_kept() -> None:
    h = harness(session_timeout_ms=10 * REBALANCE_MS)
    h.beat("a", 0)
    h.beat("b", 0)
    h.beat("a", 2)
    h.beat("a", 2, owned={"orders": [0, 1]})
    assert h.sleep(2 * REBALANCE_MS) == []


def test_member_with_new_subscription_revokes_immediately() -> None:
    h = harness(assignment_interval_ms=60_000)
    h.beat("a", 0)
    response = h.beat("a", 2, topics=["audit"], owned=ALL)
    assert (response.member_epoch, assignment_in(h, response)) == (2, {})
    h.beat("a", 2, owned={})
    for _ in range(2):
        h.sleep(30_000)
        response = h.beat("a", 2)
    assert assignment_in(h, response) == {"audit": [0]}
