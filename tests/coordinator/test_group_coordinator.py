"""Group coordinator of one shard, called as a node calls it."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from kbroker.coordinator import GroupCoordinator, GroupSettings, PendingResponse, hash_partition
from kbroker.coordinator.group_coordinator import GROUPS_AT_ONCE
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.group_metadata import GroupMetadataKey, encode_key

from .harness import SESSION_MS, FakeTopics, Harness
from .random_requests import RandomRequests
from .stored import load


def test_hash_partition_matches_kafka() -> None:
    # Computed with Java: abs(id.hashCode()) % 50.
    by_java = {
        "": 0,
        "a": 47,
        "my-group": 12,  # a negative hash
        "console-consumer-1": 24,
        "spark-kafka-source-x": 1,
        "polygenelubricants": 0,  # Integer.MIN_VALUE
        "\U0001f600": 49,
    }
    assert {group_id: hash_partition(group_id, 50) for group_id in by_java} == by_java
    assert {hash_partition(f"g{i}", 3) for i in range(50)} == {0, 1, 2}


def test_shards_are_independent() -> None:
    one, other = Harness(), Harness()
    (member,) = one.make_stable(1)
    assert other.heartbeat(member, 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert list(other.coordinator.list_groups()) == []


def test_next_deadline_is_earliest_session_timeout() -> None:
    h = Harness()
    assert h.coordinator.next_deadline() is None
    leader, follower = h.make_stable(2)
    begin = h.ms
    h.sleep(100)
    h.heartbeat(leader, 2)
    assert h.coordinator.next_deadline() == begin + SESSION_MS
    h.heartbeat(follower, 2)
    assert h.coordinator.next_deadline() == begin + 100 + SESSION_MS
    assert list(h.coordinator.due(h.now)) == []


def test_log_clock_does_not_expire_sessions() -> None:
    h = Harness()
    (member,) = h.make_stable(1)
    later = h.now._replace(log_ms=h.now.log_ms + 10**9)
    assert list(h.coordinator.due(later)) == []
    assert h.heartbeat(member, 1) == ErrorCode.NONE


def test_simultaneous_session_timeouts_cause_one_empty_event() -> None:
    h = Harness()
    members = h.make_stable(3)
    h.sleep(1)
    for member in members:
        h.heartbeat(member, 3)
    h.sleep(SESSION_MS)  # all three sessions end in the same millisecond
    causes = [event.cause for event in h.history("g")]
    assert causes.count("the last member left") == 1
    assert h.describe().group_state == "Empty"


def test_many_groups_are_resumed_in_pieces_after_load() -> None:
    h = Harness()
    h.make_stable(1)
    _, value = h.log[-1]
    fresh = GroupCoordinator(h.settings, h.topics)
    for index in range(5 * GROUPS_AT_ONCE // 2):
        load(fresh, encode_key(GroupMetadataKey(group=f"g{index}")), value)
    going_on = [len(piece.events) for piece in fresh.on_loaded(h.now)]
    assert going_on == [GROUPS_AT_ONCE, GROUPS_AT_ONCE, GROUPS_AT_ONCE // 2]
    assert fresh.next_deadline() is not None


def test_unloading_fails_pending_requests() -> None:
    h = Harness()
    leader, follower = h.make_stable(2)
    joining = h.join(leader)
    other = h.enter(group="other").response.member_id
    newcomer = h.enter(group="other")
    h.join(other, group="other")
    syncing = h.sync(newcomer.response.member_id, 2, group="other")
    for slot, response in h.coordinator.on_unloaded():
        slot.answer(response)
    assert joining.response.error_code == ErrorCode.NOT_COORDINATOR
    assert joining.response.member_id == leader
    assert syncing.response.error_code == ErrorCode.NOT_COORDINATOR
    assert follower in [member.member_id for member in h.describe().members]


def test_member_ids_are_random_by_default() -> None:
    def new_id() -> str:
        coordinator = GroupCoordinator(GroupSettings(), FakeTopics())
        h = Harness()
        h.coordinator = coordinator
        return h.new_id()

    assert new_id() != new_id()


def test_pending_response_completes_once() -> None:
    slot: PendingResponse[int] = PendingResponse("g", "m")
    seen: list[int] = []
    slot.on_answer = seen.append
    slot.answer(1)
    slot.answer(2)
    assert seen == [1]
    assert slot.response == 1


@pytest.mark.slow
def test_random_requests_raise_no_exception() -> None:
    """Field values come from a small set, so that requests interact, and from extremes."""
    h = Harness(GroupSettings(group_size_max=3))
    requests = RandomRequests(random.Random(5))
    answered = Counter[str]()
    for _ in range(6_000):
        name, result = requests.send(h)
        h.settle(result)
        code = getattr(result.response, "error_code", None)
        answered[f"{name} {'pending' if code is None else int(code)}"] += 1
        h = requests.look_around(h)
    # Check the coverage: members joined, waited, and were rejected in many ways.
    assert answered["join pending"] > 100, answered
    assert answered["heartbeat 27"] + answered["heartbeat 0"] > 0
    assert len(answered) > 25
