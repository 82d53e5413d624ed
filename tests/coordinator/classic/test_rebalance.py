"""Timeouts and failed appends during a rebalance."""

from __future__ import annotations

import pytest

from kbroker.coordinator import GroupSettings
from kbroker.protocol.errors import ErrorCode

from ..harness import REBALANCE_MS, SESSION_MS, Harness


def join_two_members(h: Harness) -> tuple[str, str]:
    """Return the leader and a follower of generation 2, before any SyncGroup."""
    leader = h.enter().response.member_id
    newcomer = h.enter()
    h.join(leader)
    return leader, newcomer.response.member_id


def test_leader_that_never_syncs_is_removed_after_rebalance_timeout() -> None:
    h = Harness()
    leader, follower = join_two_members(h)
    waiting = h.sync(follower, 2)
    for _ in range(3):
        h.sleep(9_000)
        assert h.heartbeat(leader, 2) == ErrorCode.NONE
    assert waiting.is_pending
    events = h.sleep(REBALANCE_MS - 27_000)
    assert f"{leader} did not sync in time" in [event.cause for event in events]
    assert waiting.response.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert h.heartbeat(leader, 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert h.join(follower).response.leader == follower


def test_silent_leader_is_removed_after_session_timeout() -> None:
    h = Harness()
    leader, follower = join_two_members(h)
    waiting = h.sync(follower, 2)
    h.sleep(SESSION_MS - 1)
    assert waiting.is_pending
    events = h.sleep(1)
    assert [event.cause for event in events] == [f"member {leader} missed heartbeats"]
    assert waiting.response.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    h.sleep(SESSION_MS - 1)  # the follower's session restarted with the response
    assert h.join(follower).response.generation_id == 3


def test_follower_that_never_syncs_is_removed_even_from_stable_group() -> None:
    h = Harness()
    leader, follower = join_two_members(h)
    h.sync(leader, 2, {leader: b"x"})
    assert h.describe().group_state == "Stable"
    for _ in range(4):
        h.sleep(7_500)
        h.heartbeat(leader, 2)
        last = h.heartbeat(follower, 2)
    assert last == ErrorCode.UNKNOWN_MEMBER_ID
    assert h.describe().group_state == "PreparingRebalance"


def test_sync_timer_stops_when_all_members_have_synced() -> None:
    h = Harness()
    leader, follower = h.make_stable(2)
    for _ in range(10):
        h.sleep(9_000)
        assert h.heartbeat(leader, 2) == h.heartbeat(follower, 2) == ErrorCode.NONE


def test_members_with_pending_joins_do_not_time_out() -> None:
    h = Harness()
    leader, follower = h.make_stable(2)
    pending = h.join(leader)
    for _ in range(3):
        h.sleep(SESSION_MS - 1)
        h.heartbeat(follower, 2)
    assert pending.is_pending
    assert h.join(follower).response.generation_id == 3
    assert pending.response.generation_id == 3
    assert h.sleep(SESSION_MS - 1) == []  # sessions restart with the response


def test_pending_join_of_new_member_times_out() -> None:
    h = Harness(GroupSettings(new_member_join_timeout_ms=60_000))
    h.make_stable(1, rebalance_ms=3_600_000, session_ms=1_800_000)
    newcomer = h.enter(3)
    h.sleep(59_999)
    assert newcomer.is_pending
    h.sleep(1)
    assert newcomer.response.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_group_of_silent_members_becomes_empty() -> None:
    h = Harness()
    members = h.make_stable(3)
    written = len(h.log)
    h.sleep(REBALANCE_MS + SESSION_MS)
    assert h.describe().group_state == "Empty"
    assert len(h.log) == written + 1
    assert h.generation == 4
    assert h.coordinator.next_deadline() is None
    assert h.join(members[0]).response.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_absent_leader_is_replaced_by_joined_member() -> None:
    h = Harness()
    leader, second, third = h.make_stable(3)
    calls = [h.join(third, protocols=(("range", b"new"),)), h.join(second)]
    for _ in range(3):
        h.sleep(9_000)
        assert h.heartbeat(leader, 3) == ErrorCode.REBALANCE_IN_PROGRESS
    h.sleep(3_000)
    responses = [call.response for call in calls]
    assert [response.leader for response in responses] == [second, second]
    assert [len(response.members) for response in responses] == [0, 2]


def test_rebalance_timeout_of_zero_does_not_busy_loop() -> None:
    h = Harness()
    first = h.join(instance="i", rebalance_ms=0).response.member_id
    h.sync(first, 1, {first: b"x"}, instance="i")
    h.abandon(h.join(first, instance="i", rebalance_ms=0, protocols=(("range", b"new"),)))
    turns = 0
    while (deadline := h.coordinator.next_deadline()) is not None and turns < 50:
        h.sleep(deadline - h.ms)
        turns += 1
    assert h.describe().group_state == "Empty"
    assert turns <= SESSION_MS // 1_000 + 1


# -- the log


def test_sync_response_waits_for_high_watermark() -> None:
    h = Harness()
    leader, follower = join_two_members(h)
    waiting = h.sync(follower, 2)
    h.hold = True
    led = h.sync(leader, 2, {follower: b"x"})
    late = h.sync(follower, 2)
    assert led.is_pending
    assert waiting.is_pending
    assert late.is_pending
    h.commit_log()
    assert led.response.error_code == ErrorCode.NONE
    assert waiting.response.assignment == late.response.assignment == b"x"


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.POLICY_VIOLATION, ErrorCode.POLICY_VIOLATION),
    ],
)
def test_assignment_that_cannot_be_stored_restarts_rebalance(
    cause: ErrorCode, expected: ErrorCode
) -> None:
    h = Harness()
    leader, follower = join_two_members(h)
    waiting = h.sync(follower, 2)
    h.append_fails = cause
    led = h.sync(leader, 2, {leader: b"x", follower: b"y"})
    assert led.response.error_code == waiting.response.error_code == expected
    assert led.response.assignment == waiting.response.assignment == b""
    assert h.describe().group_state == "PreparingRebalance"
    assert all(member.member_assignment == b"" for member in h.describe().members)
    assert h.log == []
    h.join(leader)
    assert h.join(follower).response.generation_id == 3


def test_leave_that_cannot_be_stored_fails_but_empties_group() -> None:
    h = Harness()
    (member,) = h.make_stable(1)
    h.append_fails = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert h.leave((member, None)).error_code == ErrorCode.NOT_COORDINATOR
    assert h.describe().group_state == "Empty"
    assert h.enter().response.generation_id == 3
    # The log still contains the previous generation, whose members time out after a restart.
    restarted = h.restarted()
    assert restarted.describe().group_state == "Stable"
    restarted.sleep(SESSION_MS)
    assert restarted.describe().group_state == "Empty"


def test_timeout_that_cannot_be_stored_fails_pending_requests() -> None:
    h = Harness(GroupSettings(initial_rebalance_delay_ms=400_000))
    pending = h.join(version=3, session_ms=1_800_000, rebalance_ms=1_800_000)
    h.sleep(300_000)  # timeout of a new member's join
    assert pending.response.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    h.append_fails = ErrorCode.KAFKA_STORAGE_ERROR
    h.sleep(100_000)
    assert h.append_fails is None
    assert h.describe().group_state == "Empty"


def test_causes_are_printable_and_short() -> None:
    h = Harness()
    h.join(version=0, client="evil\nname" + "x" * 32_000)
    cause = h.events[0].cause
    assert cause.isprintable()
    assert cause.startswith("member evil\\nnamex")
    assert len(cause) < 400


def test_causes_list_first_members() -> None:
    h = Harness()
    members = h.make_stable(12)
    h.leave(*((member, None) for member in members[:11]))
    cause = h.history("g")[-1].cause
    assert cause.startswith(f"member {members[0]}, member {members[1]}, ")
    assert cause.endswith(" and 3 more left")
    assert members[8] not in cause


def test_history_contains_causes() -> None:
    h = Harness()
    leader, follower = h.make_stable(2)
    for generation in range(3, 33):
        h.join(leader)
        h.join(follower)
        assert h.generation == generation
        if generation < 32:
            h.sync(leader, generation)
    history = h.history("g")
    assert history[-1].cause == "2 members joined"
    assert history[-2].cause == f"member {leader} joined again"
    assert history[-1].state == "CompletingRebalance"
