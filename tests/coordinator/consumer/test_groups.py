"""Heartbeats of consumer groups (KIP-848)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kbroker.coordinator.consumer.group import ConsumerGroup
from kbroker.protocol.errors import ErrorCode

from ..harness import REBALANCE_MS
from .groups import ALL, AT_ONCE, SESSION_MS, assignment_in, harness, members

# -- validation of heartbeats

BAD: dict[str, tuple[dict[str, Any], ErrorCode]] = {
    "no group": ({"group": ""}, ErrorCode.INVALID_REQUEST),
    "no member": ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
    "empty instance": ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
    "empty rack": ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
    "no timeout": ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
    "join with owned partitions": ({"owned": {"orders": [0]}}, ErrorCode.INVALID_REQUEST),
    "join without owned partitions": ({"owned": None}, ErrorCode.INVALID_REQUEST),
    "no subscription": (
        {"subscribed_topic_regex": None},
        ErrorCode.INVALID_REQUEST,
    ),
    "temporary leave without instance": ({"epoch": -2}, ErrorCode.INVALID_REQUEST),
    "invalid epoch": ({"epoch": -3}, ErrorCode.INVALID_REQUEST),
    "assignor": ({"server_assignor": "best"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
    "pattern": ({"subscribed_topic_regex": "("}, ErrorCode.INVALID_REGULAR_EXPRESSION),
    "lookahead": ({"subscribed_topic_regex": "(?=a)"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
    "long pattern": (
        {"subscribed_topic_regex": "a" * 10_001},
        ErrorCode.INVALID_REGULAR_EXPRESSION,
    ),
    "long id": ({"member_id": "m" * 1_001}, ErrorCode.INVALID_REQUEST),
    "many topics": ({"topics": ["t"] * 10_001}, ErrorCode.INVALID_REQUEST),
    "unknown group": ({"epoch": 1}, ErrorCode.GROUP_ID_NOT_FOUND),
    "leave of unknown group": ({"epoch": -1}, ErrorCode.GROUP_ID_NOT_FOUND),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_heartbeat_is_rejected(name: str) -> None:
    fields, code = BAD[name]
    h = harness()
    request: dict[str, Any] = {"member_id": "a", "epoch": 0}
    response = h.beat(**(request | fields))
    assert ErrorCode(response.error_code) is code
    assert response.error_message
    assert h.log == []


def test_coordinator_generates_member_id_in_version_0() -> None:
    h = harness()
    response = h.beat("", 0, version=0)
    assert len(response.member_id or "") == 36
    assert h.beat("", 2, version=0).error_code == ErrorCode.INVALID_REQUEST
    assert h.beat(response.member_id or "", 2, version=0).error_code == 0


# -- epochs and assignments


def test_single_member_receives_all_partitions_once() -> None:
    h = harness()
    first = h.beat("a", 0)
    assert (first.member_epoch, assignment_in(h, first)) == (2, ALL)
    assert first.heartbeat_interval_ms == 5_000
    next_beat = h.beat("a", 2, owned=ALL)
    assert (next_beat.member_epoch, assignment_in(h, next_beat)) == (2, None)


def test_full_heartbeat_receives_full_response() -> None:
    h = harness()
    h.beat("a", 0)
    response = h.beat("a", 2, topics=["orders"], owned=ALL, rebalance_timeout_ms=REBALANCE_MS)
    assert assignment_in(h, response) == ALL


def test_wrong_epoch_or_member_id_is_rejected() -> None:
    h = harness()
    h.beat("a", 0)
    assert h.beat("a", 3).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert h.beat("a", 1).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert h.beat("x", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_previous_epoch_is_accepted_after_lost_response() -> None:
    h = harness()
    h.beat("a", 0)
    h.beat("b", 0)
    h.beat("a", 2)
    kept = {"orders": [0, 1]}
    assert h.beat("a", 2, owned=kept).member_epoch == 3
    assert h.beat("a", 2, owned=kept).member_epoch == 3
    assert h.beat("a", 2, owned={}).member_epoch == 3
    assert h.beat("a", 2, owned=None).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert h.beat("a", 2, owned=ALL).error_code == ErrorCode.FENCED_MEMBER_EPOCH


def test_rejoining_member_receives_full_assignment() -> None:
    h = harness()
    h.beat("a", 0)
    next_beat = h.beat("a", 0)
    assert (next_beat.member_epoch, assignment_in(h, next_beat)) == (2, ALL)
    assert len(members(h)) == 1


def test_partitions_of_leaving_member_are_reassigned() -> None:
    h = harness()
    h.beat("a", 0)
    h.beat("b", 0)
    assert h.beat("a", -1).member_epoch == -1
    response = h.beat("b", 3)
    assert (response.member_epoch, assignment_in(h, response)) == (4, ALL)
    row = h.describe_consumer()
    assert (row.group_epoch, row.assignment_epoch) == (4, 4)
    assert h.beat("b", -1).error_code == 0
    row = h.describe_consumer()
    assert (row.group_state, row.group_epoch, row.assignment_epoch) == ("Empty", 5, 5)


def test_session_expires_without_heartbeats() -> None:
    h = harness(session_timeout_ms=10_000)
    h.beat("a", 0)
    h.sleep(9_000)
    h.beat("a", 2)
    h.sleep(9_999)
    assert members(h)
    (event,) = h.sleep(1)
    assert event.cause == "member a missed heartbeats"
    assert event.since_ms == event.at_ms - 10_000
    assert h.describe_consumer().group_state == "Empty"
    assert h.beat("a", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_changed_settings_apply_from_next_heartbeat() -> None:
    h = harness()
    h.beat("a", 0)
    h.consumer = replace(AT_ONCE, session_timeout_ms=1_000, heartbeat_interval_ms=7)
    assert h.beat("a", 2).heartbeat_interval_ms == 7
    h.sleep(1_000)
    assert not members(h)


def test_full_group_rejects_new_members() -> None:
    h = harness(size_max=1)
    h.beat("a", 0)
    assert h.beat("b", 0).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert h.beat("a", 0).error_code == 0


def test_full_group_admits_returning_static_member() -> None:
    h = harness(size_max=1)
    h.beat("a", 0, instance_id="i")
    assert h.beat("b", 0, instance_id="j").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    # Unlike Kafka 4.3, 4.4 admits the instance, and then finds that "a" has not left.
    assert h.beat("b", 0, instance_id="i").error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    h.beat("a", -2, instance_id="i")
    assert h.beat("b", 0, instance_id="i").error_code == 0
    assert set(members(h)) == {"b"}


# -- topics


def test_new_partitions_and_deleted_topics_change_assignment() -> None:
    h = harness()
    h.beat("a", 0, topics=["orders", "audit", "later"])
    h.create_topic("orders", 6)
    assert assignment_in(h, h.beat("a", 2)) == {"orders": [0, 1, 2, 3, 4, 5], "audit": [0]}
    h.create_topic("later", 1)
    h.delete_topic("audit")
    assert assignment_in(h, h.beat("a", 3, owned={})) == {
        "orders": [0, 1, 2, 3, 4, 5],
        "later": [0],
    }
    h.create_topic("other", 1)
    assert h.beat("a", 4).member_epoch == 4


def test_recreated_topic_is_assigned_again() -> None:
    h = harness()
    h.beat("a", 0, topics=["audit"])
    h.delete_topic("audit")
    h.create_topic("audit", 1)
    response = h.beat("a", 2, owned={})
    assert response.member_epoch == 3
    assert assignment_in(h, response) == {"audit": [0]}


def test_regular_expression_matches_existing_and_new_topics() -> None:
    h = harness()
    response = h.beat("a", 0, subscribed_topic_regex="or.*|au..t")
    assert assignment_in(h, response) == {"orders": [0, 1, 2, 3], "audit": [0]}
    h.create_topic("orc", 1)
    assert h.beat("a", 2).member_epoch == 2, "changes of topics come in bursts"
    h.sleep(1_000)
    assert set(assignment_in(h, h.beat("a", 2)) or ()) == {"orders", "audit", "orc"}
    h.create_topic("x", 1)
    h.sleep(1_000)
    assert assignment_in(h, h.beat("a", 3)) is None


def test_regular_expression_matches_only_topics_that_client_may_describe() -> None:
    h = harness()
    response = h.beat("a", 0, subscribed_topic_regex=".*", may_describe="audit".__eq__)
    assert assignment_in(h, response) == {"audit": [0]}


def test_heartbeat_of_waiting_member_writes_no_record() -> None:
    """A member that waits for partitions of others does not change with each heartbeat."""
    h = harness()
    h.beat("a", 0)
    epoch = h.beat("b", 0).member_epoch
    h.beat("b", epoch)
    before = len(h.log)
    for _ in range(3):
        assert h.beat("b", epoch).error_code == 0
    assert len(h.log) == before


def test_member_gets_topics_of_pattern_that_last_member_left() -> None:
    """The member that left had the same permissions, so the pattern was known to the client."""
    h = harness()
    h.beat("other", 0, topics=["audit"])
    pattern: dict[str, Any] = {
        "subscribed_topic_regex": "or.*",
        "may_describe": "orders".__eq__,
        "topics": [],
    }
    h.beat("a", 0, **pattern)
    h.beat("a", -1)
    assert assignment_in(h, h.beat("b", 0, **pattern)) == ALL
    (group,) = h.coordinator._state.groups_of(ConsumerGroup)
    assert group.resolved["or.*"].topics == {"orders"}


def test_unused_regular_expression_is_deleted() -> None:
    h = harness()
    h.beat("a", 0, subscribed_topic_regex="or.*")
    h.beat("b", 0, subscribed_topic_regex="or.*")
    h.beat("b", -1)
    (group,) = h.coordinator._state.groups_of(ConsumerGroup)
    assert set(group.resolved) == {"or.*"}
    response = h.beat("a", group.members["a"].epoch, subscribed_topic_regex="", topics=["audit"])
    assert set(group.resolved) == set()
    assert assignment_in(h, response) == {}


@pytest.mark.parametrize("topics", [0, 2_100])
def test_changing_to_pattern_without_matches_releases_partitions(
    topics: int,
) -> None:
    h = harness()
    for number in range(topics):
        h.topics.create(f"t{number}", 1)
    h.beat("a", 0, subscribed_topic_regex="or.*")
    h.beat("a", 1)
    h.beat("b", 0, topics=["orders"])
    (group,) = h.coordinator._state.groups_of(ConsumerGroup)
    epoch = h.beat("a", group.members["a"].epoch).member_epoch
    h.beat("a", epoch, owned={"orders": [0, 1]})
    h.beat("a", group.members["a"].epoch, subscribed_topic_regex="nothing")
    response = h.beat("a", group.members["a"].epoch, owned={})
    assert response.error_code == 0
    for _ in range(2):
        h.beat("b", group.members["b"].epoch)
    assert {len(parts) for parts in group.members["b"].assigned.values()} == {4}
    assert group.state.value == "Stable"


def test_member_without_topics_stays_in_group() -> None:
    h = harness()
    assert h.beat("a", 0, topics=[]).member_epoch == 1
    assert h.beat("a", 1).error_code == 0
    assert h.beat("b", 0, subscribed_topic_regex="nothing").member_epoch == 1


def test_rebalance_timeout_may_change_alone() -> None:
    h = harness()
    epoch = h.beat("a", 0).member_epoch
    stored_before = len(h.log)
    assert not h.beat("a", epoch).error_code
    assert len(h.log) == stored_before, "an unchanged heartbeat stores no record"
    assert not h.beat("a", epoch, rebalance_timeout_ms=7_000).error_code
    (group,) = h.restarted().coordinator._state.groups_of(ConsumerGroup)
    (member,) = group.members.values()
    assert member.rebalance_timeout_ms == 7_000


# -- static members


def test_returning_static_member_keeps_assignment() -> None:
    h = harness()
    h.beat("a", 0, instance_id="i")
    h.beat("b", 0)
    h.beat("a", 2, owned={"orders": [0, 1]}, instance_id="i")
    h.beat("b", 3)
    assert h.beat("a", -2, instance_id="i").member_epoch == -2
    assert members(h)["a"] == (-2, {"orders": [0, 1]})
    rejoin = h.beat("z", 0, instance_id="i")
    assert (rejoin.member_epoch, assignment_in(h, rejoin)) == (3, {"orders": [0, 1]})
    assert set(members(h)) == {"b", "z"}
    assert h.describe_consumer().group_epoch == 3
    assert h.beat("a", 3, instance_id="i").error_code == ErrorCode.FENCED_INSTANCE_ID


def test_absent_static_member_is_removed_after_session_timeout() -> None:
    h = harness()
    h.beat("a", 0, instance_id="i")
    h.beat("a", -2, instance_id="i")
    h.sleep(SESSION_MS)
    assert not members(h)


def test_absent_static_member_is_not_removed_by_revocation_timeout() -> None:
    h = harness(session_timeout_ms=10 * REBALANCE_MS)
    h.beat("a", 0, instance_id="i")
    h.beat("b", 0)
    h.beat("a", 2, instance_id="i")
    h.beat("a", -2, instance_id="i")
    h.sleep(2 * REBALANCE_MS)
    assert set(members(h)) == {"a", "b"}


def test_instance_id_belongs_to_one_member() -> None:
    h = harness()
    h.beat("a", 0, instance_id="i")
    assert h.beat("z", 0, instance_id="i").error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    assert h.beat("z", -1, instance_id="i").error_code == ErrorCode.FENCED_INSTANCE_ID
    assert h.beat("a", 2, instance_id="other").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert h.beat("a", 0, instance_id="i").error_code == 0, "the member rejoins"
    assert h.beat("a", -1, instance_id="i").error_code == 0
    assert assignment_in(h, h.beat("z", 0, instance_id="i")) == ALL


# -- failed appends, deletion and expiration


def test_heartbeat_that_cannot_be_stored_changes_nothing() -> None:
    h = harness()
    h.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS
    assert h.beat("a", 0).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert h.describe_consumer().error_code == ErrorCode.GROUP_ID_NOT_FOUND
    h.beat("a", 0)
    before = h.describe_consumer()
    for member_id, epoch in (("b", 0), ("a", -1)):
        h.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS
        assert h.beat(member_id, epoch).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert h.describe_consumer() == before
    h.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS
    h.sleep(SESSION_MS)
    assert h.describe_consumer() == before
    h.sleep(5_000)
    assert not members(h), "the removal is retried"


def test_empty_group_is_deleted_with_its_offsets() -> None:
    h = harness()
    h.beat("a", 0, subscribed_topic_regex="or.*")
    h.commit({("orders", 0): 1}, "a", 2)
    assert h.delete_groups("g") == {"g": ErrorCode.NON_EMPTY_GROUP}
    h.beat("a", -1)
    assert h.delete_groups("g") == {"g": 0}
    assert list(h.coordinator.list_groups()) == []
    assert list(h.restarted().coordinator.list_groups()) == []


def test_empty_group_is_deleted_when_its_offsets_have_expired() -> None:
    h = harness()
    h.beat("a", 0)
    h.commit({("orders", 0): 1, ("audit", 0): 1}, "a", 2)
    h.sleep(h.settings.offsets_retention_ms - 10)
    h.beat("a", 0)
    h.sleep(10)
    for piece in h.coordinator.expire(h.now):
        if piece is not None:
            h.settle(piece)
    assert h.coordinator.committed("g") == {("orders", 0): 1}, (
        "offsets of subscribed topics do not expire"
    )
    h.sleep(SESSION_MS)
    for piece in h.coordinator.expire(h.now):
        if piece is not None:
            h.settle(piece)
    assert list(h.coordinator.list_groups()) == []
