"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup."""

from __future__ import annotations

import pytest

from kbroker.coordinator import GroupSettings
from kbroker.coordinator.classic.group import ClassicGroup
from kbroker.protocol.errors import ErrorCode

from ..harness import (
    HEARTBEAT_VERSIONS,
    JOIN_VERSIONS,
    LEAVE_VERSIONS,
    RANGE,
    SESSION_MS,
    SYNC_VERSIONS,
    Harness,
    subscription,
)

STICKY = ("sticky", subscription("orders"))
OTHER = (("range", subscription("orders", "audit")),)


# -- join


@pytest.mark.parametrize("version", JOIN_VERSIONS)
def test_join_without_member_id_returns_member_id_required_from_version_4(version: int) -> None:
    h = Harness()
    call = h.join(version=version)
    if version < 4:
        assert call.response.error_code == ErrorCode.NONE
        assert call.response.generation_id == 1
    else:
        assert call.response.error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert call.response.member_id.startswith("c-")
        assert h.describe().members == []
        call = h.join(call.response.member_id, version=version)
        assert call.response.generation_id == 1
    assert call.response.leader == call.response.member_id


def test_unused_member_id_expires_after_session_timeout() -> None:
    h = Harness()
    member_id = h.new_id()
    assert h.describe().group_state == "Empty"
    h.sleep(SESSION_MS)
    assert h.join(member_id).response.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert h.describe().group_state == "Dead"
    assert h.coordinator.next_deadline() is None
    assert h.log == []


def test_pending_member_id_delays_rebalance_but_does_not_start_one() -> None:
    h = Harness()
    (leader,) = h.make_stable(1)
    newcomer = h.new_id()
    assert h.heartbeat(leader, 1) == ErrorCode.NONE
    rejoin = h.join(leader)
    assert rejoin.is_pending
    call = h.join(newcomer)
    assert rejoin.response.generation_id == call.response.generation_id == 2


def test_expired_member_id_completes_join_phase() -> None:
    h = Harness()
    (leader,) = h.make_stable(1)
    h.new_id(session_ms=7_000)
    rejoin = h.join(leader)
    h.sleep(6_999)
    assert rejoin.is_pending
    h.sleep(1)
    assert rejoin.response.generation_id == 2


@pytest.mark.parametrize("version", JOIN_VERSIONS)
def test_join_waits_for_all_known_members(version: int) -> None:
    h = Harness()
    first, second = h.make_stable(2, version)
    third = h.enter(version)
    assert third.is_pending
    assert h.join(first, version=version).is_pending
    last = h.join(second, version=version)
    assert third.response.generation_id == last.response.generation_id == 3


def test_member_that_does_not_rejoin_within_rebalance_timeout_is_removed() -> None:
    h = Harness()
    first, second = h.make_stable(2)
    h.sleep(1)
    rejoin = h.join(first)
    for _ in range(3):  # heartbeats extend the session, not the join phase
        h.sleep(9_000)
        assert h.heartbeat(second, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    assert rejoin.is_pending
    events = h.sleep(3_000)
    assert rejoin.response.generation_id == 3
    assert [row.member_id for row in rejoin.response.members] == [first]
    assert f"{second} did not rejoin in time" in [event.cause for event in events]
    assert h.heartbeat(second, 2) == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(("version", "rebalance_ms"), [(0, 60_000), (1, -1), (4, -1), (9, -1)])
def test_missing_rebalance_timeout_defaults_to_session_timeout(
    version: int, rebalance_ms: int
) -> None:
    h = Harness()
    first, second = h.make_stable(2, version, rebalance_ms=rebalance_ms)
    rejoin = h.join(first, version=version, rebalance_ms=rebalance_ms)
    h.sleep(5_000)
    h.heartbeat(second, 2)
    h.sleep(SESSION_MS - 5_001)
    assert rejoin.is_pending
    h.sleep(1)
    assert rejoin.response.generation_id == 3


def test_initial_rebalance_waits_for_more_members() -> None:
    h = Harness(GroupSettings(initial_rebalance_delay_ms=3_000))
    first = h.join(version=3)
    h.sleep(2_000)
    second = h.join(version=3)  # joins within the delay, which is extended once
    h.sleep(1_000)
    assert first.is_pending
    h.sleep(2_999)
    assert first.is_pending
    h.sleep(1)
    assert first.response.generation_id == second.response.generation_id == 1
    assert len(first.response.members) == 2
    later = h.join(version=3)  # not the initial rebalance: completes with the last rejoin
    h.join(first.response.member_id, version=3)
    h.join(second.response.member_id, version=3)
    assert later.response.generation_id == 2


def test_initial_rebalance_waits_at_most_rebalance_timeout() -> None:
    h = Harness(GroupSettings(initial_rebalance_delay_ms=3_000))
    calls = [h.join(version=3, rebalance_ms=7_000)]
    for _ in range(3):
        h.sleep(2_000)
        calls.append(h.join(version=3, rebalance_ms=7_000))
    h.sleep(999)
    assert calls[0].is_pending
    h.sleep(1)
    assert [call.response.generation_id for call in calls] == [1] * 4


@pytest.mark.parametrize("version", JOIN_VERSIONS)
def test_only_leader_receives_member_list(version: int) -> None:
    h = Harness()
    protocols = (STICKY, ("range", b"for range"))
    first = h.enter(version, protocols=protocols).response
    second_call = h.enter(version, protocols=(("range", b"of the second"),))
    rejoin = h.join(first.member_id, version=version, protocols=protocols)
    leader, follower = rejoin.response, second_call.response
    assert leader.leader == follower.leader == first.member_id
    assert leader.generation_id == follower.generation_id == 2
    assert leader.protocol_name == follower.protocol_name == "range"
    assert follower.members == []
    assert {row.member_id: row.metadata for row in leader.members} == {
        first.member_id: b"for range",
        follower.member_id: b"of the second",
    }
    assert leader.protocol_type == ("consumer" if version >= 7 else None)


def test_generation_rises_when_last_member_leaves_and_is_kept() -> None:
    h = Harness()
    (member,) = h.make_stable(1)
    h.leave((member, None))
    assert h.generation == 2
    assert h.describe().group_state == "Empty"
    assert h.restarted().enter().response.generation_id == 3
    assert h.enter().response.generation_id == 3


def test_leader_rejoining_stable_group_starts_rebalance() -> None:
    h = Harness()
    leader, follower = h.make_stable(2)
    call = h.join(leader)
    assert call.is_pending
    assert h.heartbeat(follower, 2) == ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("version", JOIN_VERSIONS)
def test_unchanged_follower_rejoining_receives_current_generation(version: int) -> None:
    h = Harness()
    leader, follower = h.make_stable(2, version)
    response = h.join(follower, version=version).response
    assert (response.generation_id, response.leader, response.members) == (2, leader, [])
    assert response.protocol_name == "range"
    assert h.describe().group_state == "Stable"


def test_new_metadata_starts_rebalance_of_stable_group() -> None:
    h = Harness()
    _, follower = h.make_stable(2)
    assert h.join(follower, protocols=OTHER).is_pending
    assert h.describe().group_state == "PreparingRebalance"


def test_repeated_join_after_lost_response_returns_same_generation() -> None:
    h = Harness()
    member = h.new_id()
    first = h.join(member).response
    rejoin = h.join(member).response
    assert rejoin == first
    assert [row.member_id for row in rejoin.members] == [member]
    other = h.join(member, protocols=OTHER).response
    assert other.generation_id == 2


def test_selected_protocol_is_supported_by_all_and_preferred_by_most() -> None:
    h = Harness()
    a, b, c = (("a", b""), ("b", b""), ("c", b"")), (("c", b""), ("b", b"")), (("c", b""),)
    first = h.enter(protocols=a)
    assert first.response.protocol_name == "a"
    second = h.enter(protocols=b)
    rejoin = h.join(first.response.member_id, protocols=a)
    assert rejoin.response.protocol_name == "b"  # b before c for the first, c before b: first wins
    third = h.enter(protocols=b)
    h.join(first.response.member_id, protocols=a)
    h.join(second.response.member_id, protocols=b)
    assert third.response.protocol_name == "c"  # two of three
    assert h.enter(protocols=c).is_pending


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [("consumer", (STICKY,)), ("connect", RANGE), ("", RANGE), ("consumer", ())],
)
def test_join_without_common_protocol_is_rejected(
    protocol_type: str, protocols: tuple[tuple[str, bytes], ...]
) -> None:
    h = Harness()
    members = h.make_stable(2)
    refused = h.join(protocol_type=protocol_type, protocols=protocols).response
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    known = h.join(members[1], protocol_type=protocol_type, protocols=protocols).response
    assert known.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert h.describe().group_state == "Stable"


@pytest.mark.parametrize(("protocol_type", "protocols"), [("", RANGE), ("consumer", ())])
def test_join_of_empty_group_requires_protocol_type_and_protocol(
    protocol_type: str, protocols: tuple[tuple[str, bytes], ...]
) -> None:
    h = Harness()
    call = h.join(protocol_type=protocol_type, protocols=protocols, version=0)
    assert call.response.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert list(h.coordinator.list_groups()) == []


def test_empty_group_may_change_protocol_type() -> None:
    h = Harness()
    (member,) = h.make_stable(1)
    h.leave((member, None))
    assert h.enter(protocol_type="connect").response.error_code == ErrorCode.NONE
    assert h.describe().protocol_type == "connect"


@pytest.mark.parametrize("version", JOIN_VERSIONS)
def test_join_checks_session_timeout_and_group_id(version: int) -> None:
    h = Harness()
    for session_ms in (5_999, 1_800_001):
        refused = h.join("x", version=version, session_ms=session_ms).response
        assert refused.error_code == ErrorCode.INVALID_SESSION_TIMEOUT
        assert refused.member_id == "x"
    for session_ms in (6_000, 1_800_000):
        accepted = h.join(version=version, session_ms=session_ms)
        assert accepted.is_pending or accepted.response.error_code in (
            ErrorCode.NONE,
            ErrorCode.MEMBER_ID_REQUIRED,
        )
    refused = h.join(version=version, group="").response
    assert refused.error_code == ErrorCode.INVALID_GROUP_ID
    assert refused.generation_id == -1


@pytest.mark.parametrize("version", JOIN_VERSIONS)
def test_join_with_unknown_member_id_is_rejected(version: int) -> None:
    h = Harness()
    nobody = h.join("nobody", version=version).response
    assert (nobody.error_code, nobody.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "nobody")
    h.make_stable(1)
    assert h.join("nobody", version=version).response.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_cooperative_rebalance_uses_two_ordinary_rebalances() -> None:
    """KIP-429 is implemented by clients: the leader's rejoin starts the second rebalance."""
    h = Harness()
    protocols = (("cooperative-sticky", subscription("orders")),)
    first = h.enter(protocols=protocols).response.member_id
    h.sync(first, 1, {first: b"all"}, protocol="cooperative-sticky")
    second_call = h.enter(protocols=protocols)
    assert h.heartbeat(first, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert h.commit({("orders", 0): 5}, first, 1) == [
        0
    ]  # it keeps its partitions during the rebalance
    h.join(first, protocols=protocols)
    second = second_call.response.member_id
    waiting = h.sync(second, 2, protocol="cooperative-sticky")
    h.sync(first, 2, {first: b"half", second: b""}, protocol="cooperative-sticky")
    assert waiting.response.assignment == b""
    rejoin = h.join(first, protocols=(("cooperative-sticky", subscription("orders") + b"!"),))
    h.join(second, protocols=protocols)
    assert rejoin.response.generation_id == 3


def test_group_max_size_rejects_new_members() -> None:
    h = Harness(GroupSettings(group_size_max=2))
    first, _ = h.make_stable(2)
    for version in (3, 9):
        refused = h.join(version=version).response
        assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        assert refused.member_id == ""
    assert h.join(first).is_pending  # existing members may rejoin
    assert h.describe().group_state == "PreparingRebalance"


def test_lowered_group_max_size_keeps_members_that_rejoin_first() -> None:
    big = Harness()
    members = big.make_stable(3)
    h = Harness(GroupSettings(group_size_max=2), log=list(big.log))
    assert h.describe().group_state == "PreparingRebalance"
    assert "group.max.size" in h.events[-1].cause
    third, second = h.join(members[2]), h.join(members[1])
    refused = h.join(members[0]).response
    assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert {call.response.generation_id for call in (second, third)} == {4}
    assert h.heartbeat(members[0], 4) == ErrorCode.UNKNOWN_MEMBER_ID


def test_second_join_of_member_fails_first_one() -> None:
    h = Harness()
    leader, _ = h.make_stable(2)
    first = h.join(leader)
    second = h.join(leader)
    assert first.response.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert second.is_pending


# -- sync


@pytest.mark.parametrize("version", SYNC_VERSIONS)
def test_followers_sync_waits_for_leader(version: int) -> None:
    h = Harness()
    leader = h.enter(3).response.member_id
    newcomer = h.enter(3)
    h.join(leader, version=3)
    follower = newcomer.response.member_id
    waiting = h.sync(follower, 2, version=version)
    assert waiting.is_pending
    led = h.sync(leader, 2, {leader: b"\x00L", follower: b"\xffF\x00"}, version=version)
    assert led.response.assignment == b"\x00L"
    assert waiting.response.assignment == b"\xffF\x00"  # unchanged bytes
    kept = h.restarted()
    assert kept.sync(follower, 2, version=version).response.assignment == b"\xffF\x00"
    if version >= 5:
        assert waiting.response.protocol_type == "consumer"
        assert waiting.response.protocol_name == "range"


def test_member_without_assignment_gets_empty_one() -> None:
    h = Harness()
    first = h.enter(3).response.member_id
    newcomer = h.enter(3)
    h.join(first, version=3)
    waiting = h.sync(newcomer.response.member_id, 2)
    h.sync(first, 2, {first: b"all", "a stranger": b"some"})
    assert waiting.response.error_code == ErrorCode.NONE
    assert waiting.response.assignment == b""


@pytest.mark.parametrize("version", SYNC_VERSIONS)
def test_sync_result_depends_on_group_state(version: int) -> None:
    h = Harness()
    leader, follower = h.make_stable(2, 3)
    assert h.sync(follower, 2, version=version).response.assignment == b"a1"
    # A late SyncGroup of the leader does not change the stored assignment.
    assert h.sync(leader, 2, {leader: b"new"}, version=version).response.assignment == b"a0"
    h.join(leader, version=3)
    response = h.sync(follower, 2, version=version).response
    assert response.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert h.describe().group_state == "PreparingRebalance"


@pytest.mark.parametrize("version", SYNC_VERSIONS)
def test_invalid_sync_is_rejected(version: int) -> None:
    h = Harness()
    (member,) = h.make_stable(1)

    def code(member_id: str, generation: int, group: str = "g") -> int:
        return h.sync(member_id, generation, version=version, group=group).response.error_code

    assert code(member, 1, "unknown") == ErrorCode.UNKNOWN_MEMBER_ID
    assert code(member, 1, "") == ErrorCode.INVALID_GROUP_ID
    assert code("nobody", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert code(member, 0) == ErrorCode.ILLEGAL_GENERATION
    assert code(member, 2) == ErrorCode.ILLEGAL_GENERATION
    h.leave((member, None))
    assert code(member, 1) == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("protocol_type", "protocol"),
    [("connect", "range"), ("consumer", "sticky"), (None, "range"), ("consumer", None)],
)
def test_sync_checks_protocol_from_version_5(
    protocol_type: str | None, protocol: str | None
) -> None:
    h = Harness()
    (member,) = h.make_stable(1)
    refused = h.sync(member, 1, protocol_type=protocol_type, protocol=protocol).response
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    old = h.sync(member, 1, protocol_type=protocol_type, protocol=protocol, version=4).response
    assert old.error_code == ErrorCode.NONE


def test_second_sync_of_member_fails_first_one() -> None:
    h = Harness()
    leader = h.enter(3).response.member_id
    newcomer = h.enter(3)
    h.join(leader, version=3)
    follower = newcomer.response.member_id
    first, second = h.sync(follower, 2), h.sync(follower, 2)
    assert first.response.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    h.sync(leader, 2, {follower: b"x"})
    assert second.response.assignment == b"x"


def test_rebalance_fails_pending_syncs() -> None:
    h = Harness()
    leader = h.enter(3).response.member_id
    newcomer = h.enter(3)
    h.join(leader, version=3)
    waiting = h.sync(newcomer.response.member_id, 2)
    h.enter(3)
    assert waiting.response.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert waiting.response.assignment == b""


# -- heartbeat


@pytest.mark.parametrize("version", HEARTBEAT_VERSIONS)
def test_heartbeat_result_depends_on_sender_and_group_state(version: int) -> None:
    h = Harness()
    leader, follower = h.make_stable(2)
    assert h.heartbeat(follower, 2, version=version) == ErrorCode.NONE
    assert h.heartbeat(follower, 0, version=version) == ErrorCode.ILLEGAL_GENERATION
    assert h.heartbeat(follower, 3, version=version) == ErrorCode.ILLEGAL_GENERATION
    assert h.heartbeat("nobody", 2, version=version) == ErrorCode.UNKNOWN_MEMBER_ID
    unknown = h.heartbeat(follower, 2, version=version, group="unknown")
    assert unknown == ErrorCode.UNKNOWN_MEMBER_ID
    assert h.heartbeat(follower, 2, version=version, group="") == ErrorCode.INVALID_GROUP_ID
    h.join(leader)
    assert h.heartbeat(follower, 2, version=version) == ErrorCode.REBALANCE_IN_PROGRESS
    h.join(follower)
    assert h.heartbeat(follower, 3, version=version) == ErrorCode.NONE  # between join and sync
    h.leave((leader, None), (follower, None))
    assert h.heartbeat(follower, 3, version=version) == ErrorCode.UNKNOWN_MEMBER_ID


def test_heartbeat_extends_session_until_member_is_silent() -> None:
    h = Harness()
    leader, follower = h.make_stable(2)
    for _ in range(5):
        h.sleep(SESSION_MS - 1)
        assert h.heartbeat(leader, 2) == ErrorCode.NONE
        assert h.heartbeat(follower, 2) == ErrorCode.NONE
    h.sleep(SESSION_MS - 1)
    h.heartbeat(leader, 2)
    assert h.describe().group_state == "Stable"
    events = h.sleep(1)
    assert [event.cause for event in events] == [f"member {follower} missed heartbeats"]
    assert h.heartbeat(leader, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    assert h.join(leader).response.generation_id == 3


@pytest.mark.parametrize("version", [v for v in HEARTBEAT_VERSIONS if v >= 3])
def test_instance_id_conflicts_are_fenced(version: int) -> None:
    h = Harness()
    member = h.join(instance="i").response.member_id
    h.sync(member, 1, {member: b"x"}, instance="i")

    def code(member_id: str, instance: str) -> int:
        return h.heartbeat(member_id, 1, version=version, instance=instance)

    assert code(member, "i") == ErrorCode.NONE
    assert code("other", "i") == ErrorCode.FENCED_INSTANCE_ID
    assert code(member, "unknown") == ErrorCode.UNKNOWN_MEMBER_ID
    assert h.heartbeat(member, 1, version=version) == ErrorCode.NONE
    fenced = h.sync("other", 1, instance="i", version=version).response
    assert fenced.error_code == ErrorCode.FENCED_INSTANCE_ID
    unknown = h.sync(member, 1, instance="unknown", version=version).response
    assert unknown.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    joined = h.join("other", instance="i").response
    assert joined.error_code == ErrorCode.FENCED_INSTANCE_ID
    assert h.commit({("orders", 0): 1}, "other", 1, instance="i") == [82]


# -- static members


def static_group(h: Harness) -> tuple[str, str]:
    """Return a stable group of two static members; the leader is i0."""
    first = h.join(instance="i0").response.member_id
    second_call = h.join(instance="i1")
    h.join(first, instance="i0")
    second = second_call.response.member_id
    h.sync(first, 2, {first: b"a0", second: b"a1"}, instance="i0")
    h.sync(second, 2, instance="i1")
    assert h.describe().group_state == "Stable"
    return first, second


@pytest.mark.parametrize("version", [v for v in JOIN_VERSIONS if v >= 5])
def test_restarted_static_follower_keeps_assignment_without_rebalance(version: int) -> None:
    h = Harness()
    leader, old = static_group(h)
    written = len(h.log)
    response = h.join(instance="i1", version=version, client="again").response
    assert response.error_code == ErrorCode.NONE
    assert response.member_id not in (old, "")
    assert (response.generation_id, response.leader, response.members) == (2, leader, [])
    assert not response.skip_assignment
    assert len(h.log) == written + 1  # the new id survives a restart
    assert h.heartbeat(leader, 2) == ErrorCode.NONE
    assert h.heartbeat(old, 2, instance="i1") == ErrorCode.FENCED_INSTANCE_ID
    assert h.heartbeat(old, 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert h.sync(response.member_id, 2, instance="i1").response.assignment == b"a1"
    for shard in (h, h.restarted()):
        assert shard.heartbeat(response.member_id, 2, instance="i1") == ErrorCode.NONE
        assert [m.client_id for m in shard.describe().members] == ["c", "again"]


@pytest.mark.parametrize("version", [v for v in JOIN_VERSIONS if v >= 5])
def test_restarted_static_leader_keeps_assignment_and_leadership(version: int) -> None:
    h = Harness()
    old, follower = static_group(h)
    response = h.join(instance="i0", version=version).response
    assert response.error_code == ErrorCode.NONE
    assert response.generation_id == 2
    if version >= 9:
        assert response.leader == response.member_id
        assert response.skip_assignment
        assert [row.member_id for row in response.members] == [response.member_id, follower]
        assert [row.group_instance_id for row in response.members] == ["i0", "i1"]
        assert {row.metadata for row in response.members} == {RANGE[0][1]}
    else:
        assert response.leader == old
        assert response.members == []
    assert h.sync(response.member_id, 2, instance="i0").response.assignment == b"a0"
    # It is the leader: when it rejoins, the group rebalances.
    assert h.join(response.member_id, instance="i0").is_pending


def test_replaced_static_member_has_new_session() -> None:
    h = Harness()
    leader, old = static_group(h)
    h.sleep(SESSION_MS - 1)
    h.heartbeat(leader, 2)
    new = h.join(instance="i1").response.member_id
    assert h.sleep(SESSION_MS - 1) == []
    h.heartbeat(leader, 2)
    events = h.sleep(1)
    assert [event.cause for event in events] == [f"member {new} missed heartbeats"]
    assert old not in events[0].cause


def test_static_member_with_other_protocols_starts_rebalance() -> None:
    h = Harness()
    first = h.join(instance="i0", protocols=(STICKY, *RANGE)).response.member_id
    h.sync(first, 1, {first: b"x"}, instance="i0", protocol="sticky")
    rejoin = h.join(instance="i0", protocols=RANGE)
    assert (rejoin.response.protocol_name, rejoin.response.generation_id) == ("range", 2)
    assert rejoin.response.leader == rejoin.response.member_id
    assert h.heartbeat(first, 1, instance="i0") == ErrorCode.FENCED_INSTANCE_ID


def test_static_replacement_that_cannot_be_stored_is_undone() -> None:
    h = Harness()
    leader, old = static_group(h)
    h.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS
    response = h.join(instance="i1", protocols=(*RANGE, STICKY)).response
    assert response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert response.member_id == ""
    assert h.heartbeat(old, 2, instance="i1") == ErrorCode.NONE
    assert h.join(old, instance="i1").response.generation_id == 2  # unchanged: RANGE alone
    h.sleep(SESSION_MS - 1)
    h.heartbeat(leader, 2)
    events = h.sleep(1)
    assert [event.cause for event in events] == [f"member {old} missed heartbeats"]


def test_replacing_static_member_fences_pending_join() -> None:
    h = Harness()
    leader, _ = static_group(h)
    pending = h.join(leader, instance="i0")
    rejoin = h.join(instance="i0")
    assert pending.response.error_code == ErrorCode.FENCED_INSTANCE_ID
    assert pending.response.member_id == leader
    assert rejoin.is_pending
    h.join(instance="i1")
    assert rejoin.response.generation_id == 3
    assert rejoin.response.leader == rejoin.response.member_id


def test_replacing_static_member_fences_pending_sync_and_rebalances() -> None:
    h = Harness()
    leader, follower = static_group(h)
    h.join(leader, instance="i0")
    h.join(follower, instance="i1")
    pending = h.sync(follower, 3, instance="i1")
    rejoin = h.join(instance="i1")
    assert pending.response.error_code == ErrorCode.FENCED_INSTANCE_ID
    assert rejoin.is_pending
    assert h.heartbeat(leader, 3) == ErrorCode.REBALANCE_IN_PROGRESS
    h.join(leader, instance="i0")
    assert rejoin.response.generation_id == 4


def test_static_members_survive_missed_rebalance() -> None:
    h = Harness()
    leader, follower = static_group(h)
    rejoin = h.join(leader, instance="i0")
    for _ in range(4):
        h.sleep(7_500)
        h.heartbeat(follower, 2, instance="i1")
    assert rejoin.response.generation_id == 3
    assert len(rejoin.response.members) == 2
    assert h.heartbeat(follower, 2, instance="i1") == ErrorCode.ILLEGAL_GENERATION


def test_group_of_absent_static_members_empties_when_sessions_expire() -> None:
    h = Harness()
    leader, follower = static_group(h)
    h.leave((leader, None))
    h.sleep(SESSION_MS - 1)
    assert h.heartbeat(follower, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    h.sleep(SESSION_MS)
    assert h.describe().group_state == "Empty"
    assert h.generation == 3


def test_static_member_may_return_to_full_group() -> None:
    h = Harness(GroupSettings(group_size_max=2))
    static_group(h)
    assert h.join(instance="i1").response.error_code == ErrorCode.NONE
    assert h.join(instance="i2").response.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


# -- leave


@pytest.mark.parametrize("version", LEAVE_VERSIONS)
def test_leave_starts_rebalance_of_remaining_members(version: int) -> None:
    h = Harness()
    leader, follower = h.make_stable(2)
    response = h.leave((leader, None), version=version)
    assert response.error_code == ErrorCode.NONE
    if version >= 3:
        assert [(m.member_id, m.error_code) for m in response.members] == [(leader, 0)]
    assert h.heartbeat(follower, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    rejoin = h.join(follower).response
    assert (rejoin.generation_id, rejoin.leader) == (3, follower)


@pytest.mark.parametrize("version", LEAVE_VERSIONS)
def test_leave_error_is_top_level_up_to_version_2(version: int) -> None:
    h = Harness()
    h.make_stable(1)
    for group in ("g", "unknown"):
        response = h.leave(("nobody", None), version=version, group=group)
        if version >= 3:
            assert response.error_code == ErrorCode.NONE
            assert [m.error_code for m in response.members] == [ErrorCode.UNKNOWN_MEMBER_ID]
        else:
            assert response.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    empty = h.leave(("nobody", None), version=version, group="")
    assert empty.error_code == ErrorCode.INVALID_GROUP_ID
    assert h.describe().group_state == "Stable"


@pytest.mark.parametrize("version", [v for v in LEAVE_VERSIONS if v >= 3])
def test_several_members_leave_with_individual_errors(version: int) -> None:
    h = Harness()
    leader, follower = static_group(h)
    response = h.leave(
        ("", "unknown"),
        ("wrong", "i0"),
        ("nobody", None),
        ("", "i0"),
        (follower, "i1"),
        version=version,
    )
    assert [m.error_code for m in response.members] == [25, 82, 25, 0, 0]
    assert [m.member_id for m in response.members] == ["", "wrong", "nobody", "", follower]
    assert [m.group_instance_id for m in response.members] == ["unknown", "i0", None, "i0", "i1"]
    assert h.describe().group_state == "Empty"
    assert h.heartbeat(leader, 2) == ErrorCode.UNKNOWN_MEMBER_ID


def test_leaving_fails_pending_requests_of_member() -> None:
    h = Harness()
    leader, follower = h.make_stable(2)
    pending = h.join(leader)
    h.leave((leader, None))
    assert pending.response.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert h.join(follower).response.generation_id == 3
    third = h.enter()
    h.join(follower)
    waiting = h.sync(third.response.member_id, 4)
    h.leave((third.response.member_id, None))
    assert waiting.response.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_several_members_leave_before_rebalance_completes() -> None:
    h = Harness()
    leader, follower = h.make_stable(2)
    third, pending = h.new_id(), h.new_id()
    staying, leaving = h.join(leader), h.join(third)
    h.leave((pending, None), (follower, None), (third, None))
    assert leaving.response.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert [row.member_id for row in staying.response.members] == [leader]


def test_pending_member_id_leaves_without_rebalance() -> None:
    h = Harness()
    (member,) = h.make_stable(1)
    newcomer = h.new_id()
    assert h.leave((newcomer, None)).members[0].error_code == ErrorCode.NONE
    assert h.heartbeat(member, 1) == ErrorCode.NONE
    assert h.join(newcomer).response.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    alone = Harness()
    alone.leave((alone.new_id(), None))
    assert list(alone.coordinator.list_groups()) == []


# -- connections


def test_new_member_that_disconnects_before_response_is_removed() -> None:
    h = Harness()
    (leader,) = h.make_stable(1, 3)
    newcomer = h.join(version=3)
    h.abandon(newcomer)
    assert newcomer.is_pending
    rejoin = h.join(leader, version=3)
    assert rejoin.response.generation_id == 2
    assert len(rejoin.response.members) == 1
    assert "disconnected before it received its member ID" in h.history("g")[-2].cause


def test_last_member_that_disconnects_leaves_empty_group() -> None:
    h = Harness(GroupSettings(initial_rebalance_delay_ms=3_000))
    h.abandon(h.join(version=0))
    h.sleep(3_000)
    assert h.describe().group_state == "Empty"
    assert len(h.log) == 1


def test_known_member_that_disconnects_may_return_within_session() -> None:
    h = Harness()
    leader, follower = h.make_stable(2)
    pending = h.join(leader)
    h.sleep(4_000)
    h.abandon(pending)
    other = h.join(follower)
    assert other.is_pending  # no generation begins with a disconnected member
    h.sleep(SESSION_MS - 1)
    rejoin = h.join(leader)
    assert rejoin.response.generation_id == other.response.generation_id == 3
    h.leave((leader, None))
    h.join(follower)
    third = h.enter()
    h.abandon(third)
    rejoin = h.join(follower)
    h.sleep(SESSION_MS)
    assert [row.member_id for row in rejoin.response.members] == [follower]


def test_member_that_disconnects_during_sync_may_return_within_session() -> None:
    h = Harness()
    leader = h.enter().response.member_id
    newcomer = h.enter()
    h.join(leader)
    follower = newcomer.response.member_id
    h.abandon(h.sync(follower, 2))
    h.sync(leader, 2, {follower: b"x"})
    assert h.sync(follower, 2).response.assignment == b"x"
    h.sleep(SESSION_MS - 1)
    h.heartbeat(leader, 2)
    events = h.sleep(1)
    assert [event.cause for event in events] == [f"member {follower} missed heartbeats"]


def test_disconnect_after_response_changes_nothing() -> None:
    h = Harness()
    leader, follower = h.make_stable(2)
    pending = h.join(leader)
    h.join(follower)
    assert pending.response.generation_id == 3
    h.abandon(pending)
    assert h.describe().group_state == "CompletingRebalance"
    assert h.history("g")[-1].cause == "2 members joined"


def test_member_with_too_much_metadata_is_rejected() -> None:
    h = Harness(GroupSettings(member_metadata_bytes_max=2_000))
    for protocols in (
        (("range", bytes(2_000)),),
        (("range", bytes(1_000)), ("other", bytes(1_000))),
    ):
        for version in (1, 9):
            call = h.join(version=version, protocols=protocols)
            assert call.response.error_code == ErrorCode.INVALID_REQUEST
    assert h.describe().group_state == "Dead"
    call = h.join(version=1, protocols=(("range", bytes(1_990)),))
    assert call.response.error_code == ErrorCode.NONE


def test_group_with_too_much_metadata_rejects_new_members() -> None:
    """Metadata is counted once per member, and is subtracted when members leave or send less."""
    large, small = (("range", bytes(1_000)),), (("range", bytes(10)),)
    h = Harness(GroupSettings(group_metadata_bytes_max=2_100))
    first = h.enter(protocols=large).response.member_id
    second = h.enter(protocols=large)
    h.join(first, protocols=large)
    assert second.response.error_code == ErrorCode.NONE
    assert h.join(h.new_id(), protocols=large).response.error_code == (
        ErrorCode.GROUP_MAX_SIZE_REACHED
    )
    h.join(first, protocols=small)
    h.join(second.response.member_id, protocols=large)
    third = h.join(h.new_id(), protocols=large)
    assert third.is_pending
    (group,) = h.coordinator._state.groups_of(ClassicGroup)
    sizes = [
        len(name) + len(text) for each in group.members.values() for name, text in each.protocols
    ]
    assert group.metadata_bytes == sum(sizes)
