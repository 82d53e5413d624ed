"""What time and failed appends do to a rebalance."""

from __future__ import annotations

import pytest

from kbroker.coordinator import GroupSettings
from kbroker.protocol.errors import ErrorCode

from ..harness import REBALANCE_MS, SESSION_MS, Harness


def two_joined(h: Harness) -> tuple[str, str]:
    """Generation 2 with a leader and a follower, before any sync."""
    leader = h.enter().response.member_id
    newcomer = h.enter()
    h.join(leader)
    return leader, newcomer.response.member_id


def test_a_leader_that_never_syncs_is_dropped_after_the_rebalance_timeout() -> None:
    h = Harness()
    leader, follower = two_joined(h)
    waiting = h.sync(follower, 2)
    for _ in range(3):
        h.sleep(9_000)
        assert h.heartbeat(leader, 2) == ErrorCode.NONE
    assert waiting.is_parked
    events = h.sleep(REBALANCE_MS - 27_000)
    assert f"{leader} did not sync in time" in [event.cause for event in events]
    assert waiting.response.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert h.heartbeat(leader, 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert h.join(follower).response.leader == follower


def test_a_leader_that_falls_silent_is_dropped_after_its_session() -> None:
    h = Harness()
    leader, follower = two_joined(h)
    waiting = h.sync(follower, 2)
    h.sleep(SESSION_MS - 1)
    assert waiting.is_parked
    events = h.sleep(1)
    assert [event.cause for event in events] == [f"member {leader} missed heartbeats"]
    assert waiting.response.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    h.sleep(SESSION_MS - 1)  # the follower waited: its session began again with the answer
    assert h.join(follower).response.generation_id == 3


def test_a_follower_that_never_syncs_is_dropped_even_from_a_stable_group() -> None:
    h = Harness()
    leader, follower = two_joined(h)
    h.sync(leader, 2, {leader: b"x"})
    assert h.describe().group_state == "Stable"
    for _ in range(4):
        h.sleep(7_500)
        h.heartbeat(leader, 2)
        last = h.heartbeat(follower, 2)
    assert last == ErrorCode.UNKNOWN_MEMBER_ID
    assert h.describe().group_state == "PreparingRebalance"


def test_when_all_have_synced_nothing_is_left_to_time_out() -> None:
    h = Harness()
    leader, follower = h.stable(2)
    for _ in range(10):
        h.sleep(9_000)
        assert h.heartbeat(leader, 2) == h.heartbeat(follower, 2) == ErrorCode.NONE


def test_parked_members_are_not_timed_out() -> None:
    h = Harness()
    leader, follower = h.stable(2)
    parked = h.join(leader)
    for _ in range(3):
        h.sleep(SESSION_MS - 1)
        h.heartbeat(follower, 2)
    assert parked.is_parked
    assert h.join(follower).response.generation_id == 3
    assert parked.response.generation_id == 3
    assert h.sleep(SESSION_MS - 1) == []  # and their sessions begin with the answer


def test_a_new_member_does_not_stay_parked_for_ever() -> None:
    h = Harness(GroupSettings(new_member_join_timeout_ms=60_000))
    h.stable(1, rebalance_ms=3_600_000, session_ms=1_800_000)
    newcomer = h.enter(3)
    h.sleep(59_999)
    assert newcomer.is_parked
    h.sleep(1)
    assert newcomer.response.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_whose_members_all_fall_silent_becomes_empty() -> None:
    h = Harness()
    members = h.stable(3)
    written = len(h.log)
    h.sleep(REBALANCE_MS + SESSION_MS)
    assert h.describe().group_state == "Empty"
    assert len(h.log) == written + 1
    assert h.generation == 4
    assert h.coordinator.next_deadline() is None
    assert h.join(members[0]).response.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_an_absent_leader_is_replaced_by_one_that_joined() -> None:
    h = Harness()
    leader, second, third = h.stable(3)
    calls = [h.join(third, protocols=(("range", b"new"),)), h.join(second)]
    for _ in range(3):
        h.sleep(9_000)
        assert h.heartbeat(leader, 3) == ErrorCode.REBALANCE_IN_PROGRESS
    h.sleep(3_000)
    answers = [call.response for call in calls]
    assert [answer.leader for answer in answers] == [second, second]
    assert [len(answer.members) for answer in answers] == [0, 2]


def test_a_rebalance_timeout_of_nothing_is_no_busy_wait() -> None:
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


def test_an_assignment_is_answered_when_it_is_committed() -> None:
    h = Harness()
    leader, follower = two_joined(h)
    waiting = h.sync(follower, 2)
    h.hold = True
    led = h.sync(leader, 2, {follower: b"x"})
    late = h.sync(follower, 2)
    assert led.is_parked
    assert waiting.is_parked
    assert late.is_parked
    h.commit_log()
    assert led.response.error_code == ErrorCode.NONE
    assert waiting.response.assignment == late.response.assignment == b"x"


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.POLICY_VIOLATION, ErrorCode.POLICY_VIOLATION),
    ],
)
def test_an_assignment_that_is_not_stored_starts_over(cause: ErrorCode, told: ErrorCode) -> None:
    h = Harness()
    leader, follower = two_joined(h)
    waiting = h.sync(follower, 2)
    h.append_fails = cause
    led = h.sync(leader, 2, {leader: b"x", follower: b"y"})
    assert led.response.error_code == waiting.response.error_code == told
    assert led.response.assignment == waiting.response.assignment == b""
    assert h.describe().group_state == "PreparingRebalance"
    assert all(member.member_assignment == b"" for member in h.describe().members)
    assert h.log == []
    h.join(leader)
    assert h.join(follower).response.generation_id == 3


def test_a_leave_that_is_not_stored_is_refused_but_the_group_is_empty() -> None:
    h = Harness()
    (member,) = h.stable(1)
    h.append_fails = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert h.leave((member, None)).error_code == ErrorCode.NOT_COORDINATOR
    assert h.describe().group_state == "Empty"
    assert h.enter().response.generation_id == 3
    # The log still has the generation before: it times out after a restart.
    again = h.restarted()
    assert again.describe().group_state == "Stable"
    again.sleep(SESSION_MS)
    assert again.describe().group_state == "Empty"


def test_a_time_out_whose_record_is_not_stored_still_answers_who_is_parked() -> None:
    h = Harness(GroupSettings(initial_rebalance_delay_ms=400_000))
    parked = h.join(version=3, session_ms=1_800_000, rebalance_ms=1_800_000)
    h.sleep(300_000)  # the time for a new member
    assert parked.response.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    h.append_fails = ErrorCode.KAFKA_STORAGE_ERROR
    h.sleep(100_000)
    assert h.append_fails is None
    assert h.describe().group_state == "Empty"


def test_causes_are_fit_for_a_log() -> None:
    h = Harness()
    h.join(version=0, client="evil\nname" + "x" * 32_000)
    cause = h.events[0].cause
    assert cause.isprintable()
    assert cause.startswith("member evil\\nnamex")
    assert len(cause) < 400


def test_causes_name_some_of_many() -> None:
    h = Harness()
    members = h.stable(12)
    h.leave(*((member, None) for member in members[:11]))
    cause = h.history("g")[-1].cause
    assert cause.startswith(f"member {members[0]}, member {members[1]}, ")
    assert cause.endswith(" and 3 more left")
    assert members[8] not in cause


def test_history_says_why() -> None:
    h = Harness()
    leader, follower = h.stable(2)
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
