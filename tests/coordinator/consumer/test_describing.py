"""Descriptions of consumer groups for operators."""

from __future__ import annotations

from kbroker.protocol.errors import ErrorCode

from .groups import harness


def test_operators_see_both_kinds() -> None:
    h = harness()
    h.beat("a", 0)
    h.commit({("orders", 0): 1}, group="simple")
    listed = {
        row.group_id: (row.group_type, row.protocol_type, row.group_state)
        for row in h.coordinator.list_groups()
    }
    assert listed == {
        "g": ("consumer", "consumer", "Stable"),
        "simple": ("classic", "", "Empty"),
    }
    rows = h.coordinator.list_groups(types=["Consumer"], states=["stable"])
    assert [row.group_id for row in rows] == ["g"]
    assert [row.group_id for row in h.coordinator.list_groups(types=["classic"])] == ["simple"]
    assert h.describe("g").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert h.describe("g", version=5).group_state == "Dead"
    assert h.describe_consumer("simple").error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_says_how_it_stands() -> None:
    h = harness()
    h.beat("a", 0)
    h.beat("b", 0)
    h.beat("a", 2)
    assert h.coordinator.describe_status("g", h.now) == (
        "group g is Reconciling in epoch 3: it has member a, member b; waits for member a, member b "
        "to reconcile; member a must revoke partitions"
    )


def test_a_member_without_a_pattern_is_described_with_an_empty_one() -> None:
    h = harness()
    h.beat("a", 0)
    (row,) = h.describe_consumer().members
    assert row.subscribed_topic_regex == ""
