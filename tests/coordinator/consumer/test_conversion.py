"""Migration of groups between the classic and the consumer protocol (KIP-848)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kbroker.coordinator import ClientInfo, ConsumerGroupSettings, MigrationPolicy
from kbroker.coordinator.classic.group import ClassicGroup
from kbroker.coordinator.consumer.group import ConsumerGroup
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.group_metadata import read_assignment, write_assignment
from kbroker.protocol.messages.groups import JoinGroupRequest, JoinGroupResponse

from ..harness import SESSION_MS, Harness, joining, subscription
from .groups import AT_ONCE, assignment_in, harness, members

HALVES = [[("orders", 0), ("orders", 1)], [("orders", 2), ("orders", 3)]]


def owning(*partitions: int, version: int = 1) -> tuple[tuple[str, bytes], ...]:
    """Return the protocols of a member that owns partitions of "orders"."""
    owned = b"\x00\x00\x00\x01\x00\x06orders" + len(partitions).to_bytes(4, "big")
    owned += b"".join(each.to_bytes(4, "big") for each in partitions)
    metadata = version.to_bytes(2, "big") + subscription("orders")[2:] + owned
    return (("cooperative", metadata),)


def classic_pair(h: Harness) -> list[str]:
    """Return two classic members with two partitions each."""
    a = h.enter().response.member_id
    b = h.new_id()
    second = h.join(b)
    first = h.join(a)
    generation = first.response.generation_id
    assert second.response.generation_id == generation
    leader = first.response.leader
    shares = dict(zip((a, b), map(write_assignment, HALVES), strict=True))
    waiting = h.sync(b if leader == a else a, generation)
    h.sync(leader, generation, shares)
    assert waiting.response.assignment
    return [a, b]


def generation_of(h: Harness) -> int:
    (group,) = h.coordinator._state.groups_of(ClassicGroup)
    return group.generation


def is_classic(h: Harness) -> bool:
    (row,) = h.coordinator.list_groups()
    return row.group_type == "classic"


def assigned(data: bytes) -> dict[str, list[int]]:
    found = read_assignment(data)
    assert found is not None
    return {row.topic: row.partitions for row in found.assigned_partitions}


# -- groups without members


def test_empty_classic_group_becomes_consumer_group_with_its_offsets() -> None:
    for policy in MigrationPolicy:
        h = harness(migration=policy)
        h.commit({("orders", 0): 7})
        assert h.beat("a", 0).error_code == 0
        assert not is_classic(h)
        assert h.coordinator.committed("g") == {("orders", 0): 7}
        restarted = h.restarted()
        assert not is_classic(restarted)
        assert restarted.coordinator.committed("g") == {("orders", 0): 7}


def test_classic_group_becomes_consumer_group_after_members_left() -> None:
    h = harness()
    a, b = classic_pair(h)
    h.leave((a, None), (b, None))
    assert h.beat("c", 0).error_code == 0
    assert not is_classic(h.restarted())


def test_empty_consumer_group_becomes_classic_group_with_its_offsets() -> None:
    h = harness(migration=MigrationPolicy.DISABLED)
    h.beat("a", 0)
    h.commit({("orders", 0): 7}, "a", 2)
    h.beat("a", -1)
    freed = h.coordinator.delete_empty_modern_group(joining(), h.now)
    assert freed is not None
    h.settle(freed)
    assert h.coordinator.delete_empty_modern_group(joining(), h.now) is None
    assert h.enter().response.generation_id == 1
    assert is_classic(h)
    assert h.coordinator.committed("g") == {("orders", 0): 7}
    assert is_classic(h.restarted())


# -- groups with members


@pytest.mark.parametrize("policy", [MigrationPolicy.DISABLED, MigrationPolicy.DOWNGRADE])
def test_upgrade_is_rejected_by_migration_policy(policy: MigrationPolicy) -> None:
    h = harness(migration=policy)
    classic_pair(h)
    response = h.beat("c", 0)
    assert response.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert "group.consumer.migration.policy" in (response.error_message or "")
    assert is_classic(h)


def test_group_that_cannot_be_upgraded_is_unchanged() -> None:
    cases: list[dict[str, Any]] = [
        {"protocol_type": "connect"},
        {"protocols": (("range", b"junk"),)},
    ]
    for fields in cases:
        h = harness()
        h.enter(**fields)
        before = h.describe()
        assert h.beat("c", 0).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert h.describe() == before
    h = harness(size_max=1)
    classic_pair(h)
    assert h.beat("c", 0).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_upgrade_is_rejected_if_assignor_has_user_data() -> None:
    h = harness()
    a = h.new_id()
    generation = h.join(a).response.generation_id
    h.sync(a, generation, {a: write_assignment(HALVES[0])[:-4] + b"\x00\x00\x00\x01x"})
    assert h.beat("c", 0).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_upgrade_keeps_assignments_and_classic_members() -> None:
    h = harness()
    a, b = classic_pair(h)
    generation = generation_of(h)
    response = h.beat("c", 0)
    assert (response.member_epoch, assignment_in(h, response)) == (generation + 1, {})
    shares = members(h)
    assert shares[a] == (generation, {"orders": [0, 1]})
    assert shares[b] == (generation, {"orders": [2, 3]})
    types = {row.member_id: row.member_type for row in h.describe_consumer().members}
    assert types == {a: 0, b: 0, "c": 1}
    assert h.restarted().describe_consumer() == h.describe_consumer()
    # Classic members must rejoin, because there is a new target.
    assert h.heartbeat(a, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    joined = h.join(a).response
    assert (joined.generation_id, joined.leader) == (generation + 1, "")
    synced = h.sync(a, generation + 1).response
    assert not synced.error_code
    assert set(assigned(synced.assignment)) == {"orders"}
    h.join(b)
    assert not h.sync(b, generation + 1).response.error_code
    assignment = assignment_in(h, h.beat("c", generation + 1))
    shares = members(h)
    all_assigned = sorted(i for _, share in shares.values() for i in share.get("orders", []))
    assert all_assigned == [0, 1, 2, 3]
    assert assignment
    assert h.heartbeat(a, generation + 1) == 0
    assert h.commit({("orders", assigned(synced.assignment)["orders"][0]): 1}, a, 3, version=8) == [
        0
    ]


def test_upgrade_drops_partitions_of_deleted_topics() -> None:
    h = harness()
    a = h.new_id()
    generation = h.join(a).response.generation_id
    h.sync(a, generation, {a: write_assignment([("gone", 0), ("orders", 1)])})
    assert not h.beat("c", 0).error_code
    assert members(h)[a] == (generation, {"orders": [1]})
    assert h.restarted().describe_consumer() == h.describe_consumer()


def test_upgrade_fails_pending_joins_of_classic_group() -> None:
    h = Harness(consumer=AT_ONCE)
    a, _ = classic_pair(h)
    waiting = h.join(h.new_id())
    assert waiting.is_pending
    assert h.beat("c", 0).error_code == 0
    assert waiting.response.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert h.join(a).response.error_code == 0


def test_upgrade_that_cannot_be_stored_keeps_classic_group() -> None:
    h = harness()
    a, _ = classic_pair(h)
    before = h.describe()
    waiting = h.join(h.new_id())
    h.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS
    assert h.beat("c", 0).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert waiting.is_pending
    assert len(h.describe().members) == len(before.members) + 1
    assert h.heartbeat(a, generation_of(h)) == ErrorCode.REBALANCE_IN_PROGRESS


def test_classic_member_revokes_partitions_by_rejoining() -> None:
    h = harness()
    a = h.new_id(protocols=owning())
    h.join(a, protocols=owning())
    h.sync(a, 1, {a: write_assignment([("orders", i) for i in range(4)])}, protocol="cooperative")
    assert assignment_in(h, h.beat("c", 0)) == {}
    assert h.heartbeat(a, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    joined = h.join(a, protocols=owning(0, 1, 2, 3)).response
    assert joined.generation_id == 1, "the member must revoke partitions first"
    left = assigned(h.sync(a, 1, protocol="cooperative").response.assignment)
    assert left == {"orders": [0, 1]}
    assert assignment_in(h, h.beat("c", 2)) is None
    assert h.heartbeat(a, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert h.join(a, protocols=owning(0, 1)).response.generation_id == 2
    assert assigned(h.sync(a, 2, protocol="cooperative").response.assignment) == left
    assert assignment_in(h, h.beat("c", 2)) == {"orders": [2, 3]}
    assert h.heartbeat(a, 2) == 0
    assert h.describe_consumer().group_state == "Stable"


def test_classic_member_that_does_not_join_or_sync_in_time_is_removed() -> None:
    h = harness()
    a, b = classic_pair(h)
    generation = generation_of(h)
    h.beat("c", 0)
    h.heartbeat(a, generation)
    h.join(b)
    causes = []
    for _ in range(40):
        causes += [event.cause for event in h.sleep(1_000)]
        h.heartbeat(a, generation)
        h.heartbeat(b, generation + 1)
        h.beat("c", members(h)["c"][0])
    assert f"member {a} did not join in time" in causes
    assert f"member {b} did not sync in time" in causes


def test_classic_member_uses_its_own_session_timeout() -> None:
    h = harness()
    a, b = classic_pair(h)
    h.beat("c", 0)
    causes = [event.cause for event in h.sleep(SESSION_MS)]
    assert causes == [f"member {a} missed heartbeats", f"member {b} missed heartbeats"]
    assert set(members(h)) == {"c"}


def test_classic_member_joins_consumer_group() -> None:
    h = harness()
    h.beat("c", 0)
    member_id = h.new_id()
    response = h.join(member_id).response
    assert response.generation_id == 3
    assert h.sync(member_id, 3).response.assignment == write_assignment([])
    h.beat("c", 2)
    h.beat("c", 2, owned={"orders": [0, 1]})
    assert h.heartbeat(member_id, 3) == ErrorCode.REBALANCE_IN_PROGRESS
    assert h.join(member_id).response.generation_id == 3
    assert assigned(h.sync(member_id, 3).response.assignment) == {"orders": [2, 3]}
    # The group rejects invalid requests of classic members.
    assert h.join(h.new_id(), protocols=(("other", subscription("orders")),)).response.error_code
    code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert h.join("x", protocol_type="connect").response.error_code == code
    assert h.join("x", protocols=(("range", b"junk"),)).response.error_code == code
    code = ErrorCode.INVALID_SESSION_TIMEOUT
    assert h.join("x", session_ms=1).response.error_code == code
    assert h.heartbeat("c", 3) == ErrorCode.UNKNOWN_MEMBER_ID
    assert h.heartbeat(member_id, 2) == ErrorCode.ILLEGAL_GENERATION
    assert h.sync(member_id, 2).response.error_code == ErrorCode.ILLEGAL_GENERATION


def test_classic_member_cannot_join_if_migration_is_disabled() -> None:
    h = harness()
    h.beat("c", 0)
    member_id = h.new_id()
    h.join(member_id)
    h.consumer = replace(AT_ONCE, migration=MigrationPolicy.DISABLED)
    for name in ("", member_id):
        response = h.join(name).response
        assert response.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert response.member_id == ""
    h.consumer = replace(AT_ONCE, migration=MigrationPolicy.DOWNGRADE)
    assert h.join(member_id).response.error_code == 0


def test_full_group_admits_static_member_that_changes_protocol() -> None:
    h = harness(size_max=1)
    h.beat("a", 0, instance_id="i")
    down = h.join(instance="i", version=5).response
    assert not down.error_code
    assert is_classic(h)


def test_sole_classic_member_may_change_its_protocols() -> None:
    """Protocols of a classic member must match the other classic members, not its previous ones."""
    h = harness()
    h.beat("c", 0)
    other = (("roundrobin", subscription("orders")),)
    a = h.new_id()
    assert not h.join(a).response.error_code
    assert not h.join(a, protocols=other).response.error_code
    b = h.new_id(protocols=other)
    assert h.join(b).response.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert not h.join(b, protocols=other).response.error_code


def test_group_becomes_classic_when_only_classic_members_remain() -> None:
    h = harness()
    a, b = classic_pair(h)
    h.beat("c", 0)
    h.join(a)
    h.join(b)
    h.beat("c", -1)
    assert is_classic(h)
    row = h.describe()
    assert (row.group_state, {each.member_id for each in row.members}) == (
        "PreparingRebalance",
        {a, b},
    )
    joins = [h.join(a), h.join(b)]
    assert {each.response.generation_id for each in joins} == {generation_of(h)}
    restarted = h.restarted()
    assert is_classic(restarted)
    assert {each.member_id for each in restarted.describe().members} == {a, b}


@pytest.mark.parametrize("policy", [MigrationPolicy.DISABLED, MigrationPolicy.UPGRADE])
def test_downgrade_is_rejected_by_migration_policy(policy: MigrationPolicy) -> None:
    h = harness()
    a, _ = classic_pair(h)
    h.beat("c", 0)
    h.consumer = replace(AT_ONCE, migration=policy)
    h.beat("c", -1)
    assert not is_classic(h)
    assert a in members(h)


def test_join_of_classic_member_does_not_resolve_patterns_of_others() -> None:
    """Permissions of the joining client do not apply to the patterns of other members."""
    h = harness()
    h.beat("c", 0, subscribed_topic_regex=".*", may_describe="orders".__eq__)
    h.create_topic("secret", 1)
    h.sleep(2_000)
    h.join(h.new_id())
    (group,) = h.coordinator._state.groups_of(ConsumerGroup)
    assert group.resolved[".*"].topics == {"orders"}


def test_leave_request_removes_members_of_both_protocols() -> None:
    h = harness()
    a, b = classic_pair(h)
    h.beat("c", 0, instance_id="i")
    rows = h.leave((a, None), ("", "i"), ("x", None)).members
    assert [row.error_code for row in rows] == [0, 0, ErrorCode.UNKNOWN_MEMBER_ID]
    assert is_classic(h)
    assert [each.member_id for each in h.describe().members] == [b]


def test_leave_request_with_wrong_member_id_removes_no_static_member() -> None:
    h = harness()
    classic_pair(h)
    h.beat("c", 0, instance_id="i")
    (row,) = h.leave(("x", "i")).members
    assert row.error_code == ErrorCode.FENCED_INSTANCE_ID
    assert "c" in members(h)


def test_static_members_change_protocol_one_by_one() -> None:
    h = harness()
    joined = h.join(instance="i").response
    h.sync(joined.member_id, 1, {joined.member_id: write_assignment(HALVES[0])}, instance="i")
    up = h.beat("new", 0, instance_id="i")
    assert (up.error_code, assignment_in(h, up)) == (0, {"orders": [0, 1]})
    assert set(members(h)) == {"new"}
    assert h.heartbeat(joined.member_id, 1, instance="i") == ErrorCode.FENCED_INSTANCE_ID
    down = h.join(instance="i").response
    assert not down.error_code
    assert is_classic(h)
    assert down.generation_id == generation_of(h)
    assert h.heartbeat(down.member_id, down.generation_id, instance="i") == 0
    synced = h.sync(down.member_id, down.generation_id, instance="i").response
    assert set(assigned(synced.assignment)["orders"]) >= {0, 1}


def test_group_max_size_limits_downgrade() -> None:
    h = Harness(replace(Harness().settings, group_size_max=1), consumer=ConsumerGroupSettings())
    h.beat("c", 0)
    for _ in range(2):
        h.join(h.new_id())
    h.beat("c", -1)
    assert not is_classic(h)


# -- cases in which random tests once found a difference from Apache Kafka 4.3


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (joining(session_ms=1), ErrorCode.INVALID_SESSION_TIMEOUT),
        (joining("unheard-of"), ErrorCode.UNKNOWN_MEMBER_ID),
        (joining(protocols=()), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_rejected_join_keeps_empty_modern_group(
    request_: JoinGroupRequest, code: ErrorCode
) -> None:
    """Kafka deletes the group if the member ID was not generated by the broker."""
    h = harness()
    h.beat("a", 0)
    h.beat("a", -1)
    assert h.coordinator.delete_empty_modern_group(request_, h.now) is None
    response = h.coordinator.join(request_, ClientInfo("c", "/10.0.0.1"), h.now, 9).response
    assert isinstance(response, JoinGroupResponse)
    assert response.error_code == code
    assert not is_classic(h)
    assert h.coordinator.delete_empty_modern_group(joining(), h.now) is not None


def test_replaced_static_member_gets_partitions_of_predecessor_immediately() -> None:
    h = harness()
    h.create_topic("audit", 2)
    h.beat("a", 0, instance_id="i", topics=["orders"])
    h.beat("b", 0, topics=["audit"])
    h.beat("a", 2, instance_id="i", topics=["audit"])  # must revoke "orders", and does not
    down = h.join(instance="i", version=5).response
    synced = h.sync(down.member_id, down.generation_id, instance="i").response
    read = read_assignment(synced.assignment)
    assert read is not None
    assert [(row.topic, row.partitions) for row in read.assigned_partitions] == [
        ("orders", [0, 1, 2, 3])
    ]


def test_assignment_has_version_of_member_subscription() -> None:
    h = harness()
    h.beat("a", 0)
    member_id = h.new_id()
    joined = h.join(member_id, protocols=owning(version=1)).response
    synced = h.sync(member_id, joined.generation_id, protocol="cooperative").response
    assert synced.assignment[:2] == b"\x00\x01"
    h.beat("a", -1)
    (group,) = h.coordinator._state.groups_of(ClassicGroup)
    (row,) = group.members.values()
    assert row.assignment[:2] == b"\x00\x01"


def test_downgraded_group_has_group_epoch_as_generation() -> None:
    h = harness()
    h.create_topic("audit", 2)
    h.beat("a", 0, instance_id="i", topics=["audit"])
    epoch = h.describe_consumer().group_epoch
    h.join(instance="i", version=5)  # subscribes to "orders": the target is stale
    assert generation_of(h) == epoch


def test_rejected_join_returns_same_error_and_member_id_as_kafka() -> None:
    h = harness(size_max=1)
    h.beat("a", 0)
    rejected = [
        h.join("b", session_ms=1).response,
        h.join("b", protocol_type="connect").response,
        h.join("a", protocol_type="connect").response,
    ]
    assert [(each.error_code, each.member_id) for each in rejected] == [
        (ErrorCode.INVALID_SESSION_TIMEOUT, "b"),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, ""),
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ""),
    ]
