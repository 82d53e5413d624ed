"""Streams groups of KIP-1071: members, epochs, tasks, internal topics, and what time does."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.coordinator import StreamsGroupSettings
from kbroker.coordinator.streams.group import (
    HeldTasks,
    StreamsGroup,
    StreamsMember,
    StreamsMemberState,
    TaskLists,
)
from kbroker.coordinator.streams.reconciliation import reconcile
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.streams_groups import StreamsGroupHeartbeatRequest

from ..harness import REBALANCE_MS, SESSION_MS, Harness, joining, subtopology, topology

NONE: dict[str, Any] = {"owned": {}}
UNRELEASED, STABLE = StreamsMemberState.UNRELEASED, StreamsMemberState.STABLE
STATEFUL = topology(subtopology("0", "orders", changelogs=["log"]))
QUICK = StreamsGroupSettings(initial_rebalance_delay_ms=0, assignment_interval_ms=0)


@pytest.fixture
def h() -> Harness:
    return Harness(streams=QUICK)


def active(answer: Any) -> dict[str, list[int]] | None:
    """The active tasks that a member is told to have; None when it is told nothing."""
    assert not answer.error_code, answer
    if answer.active_tasks is None:
        return None
    return {row.subtopology_id: row.partitions for row in answer.active_tasks}


def standby(answer: Any) -> dict[str, list[int]]:
    return {row.subtopology_id: row.partitions for row in answer.standby_tasks}


def told(answer: Any) -> list[int]:
    """The codes of the statuses."""
    return [each.status_code for each in answer.status]


def details(answer: Any) -> list[str]:
    return [each.status_detail for each in answer.status]


def state(h: Harness) -> str:
    return str(h.describe_streams().group_state)


def test_a_member_joins_lives_and_leaves(h: Harness) -> None:
    answer = h.streams_beat("a", 0)
    assert (answer.member_epoch, active(answer)) == (2, {"0": [0, 1, 2, 3]})
    assert (answer.heartbeat_interval_ms, told(answer)) == (5_000, [])
    assert active(h.streams_beat("a", 2)) is None
    assert state(h) == "Stable"
    assert h.streams_beat("a", -1).member_epoch == -1
    assert state(h) == "Empty"
    assert h.streams_beat("a", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_it_is_counted_with_those_that_commit_offsets(h: Harness) -> None:
    h.streams_beat("a", 0)
    h.streams_beat("b", 0)
    assert [members for _, members in h.coordinator.census()] == [2]
    assert not list(h.coordinator.share_census())


def test_tasks_go_from_one_member_to_another(h: Harness) -> None:
    h.streams_beat("a", 0)
    answer = h.streams_beat("b", 0)
    assert (answer.member_epoch, active(answer)) == (3, {})
    answer = h.streams_beat("a", 2)
    assert (answer.member_epoch, active(answer)) == (2, {"0": [0, 1]})
    assert active(h.streams_beat("b", 3)) is None, "they are not free yet"
    assert active(h.streams_beat("a", 2, owned={"0": [0, 1, 2, 3]})) is None
    assert h.streams_beat("a", 2, owned={"0": [0, 1]}).member_epoch == 3
    assert active(h.streams_beat("b", 3)) == {"0": [2, 3]}
    assert state(h) == "Stable"


def test_a_member_waits_for_the_tasks_of_each_part() -> None:
    """That those of a later part are free does not end the waiting for those of an earlier one."""
    group = StreamsGroup("g")
    had = HeldTasks({"0": {2: 2}})
    group.put(StreamsMember("a", process_id="a", epoch=2, assigned=had))
    target = TaskLists({"0": frozenset({2}), "1": frozenset({0})})
    waiting = reconcile(StreamsMember("b", process_id="b", epoch=2), 3, target, None, group)
    assert (waiting.state, waiting.assigned.active) == (UNRELEASED, {"1": {0: 3}})
    group.put(StreamsMember("a", process_id="a", epoch=3))
    after = reconcile(waiting, 3, target, None, group)
    assert (after.state, after.assigned.active) == (STABLE, {"0": {2: 3}, "1": {0: 3}})


def test_a_lost_answer_is_given_again(h: Harness) -> None:
    h.streams_beat("a", 0)
    h.streams_beat("b", 0)
    h.streams_beat("a", 2)
    h.streams_beat("a", 2, owned={"0": [0, 1]})
    assert h.streams_beat("a", 2).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert h.streams_beat("a", 2, owned={"0": [0, 1, 2]}).error_code == (
        ErrorCode.FENCED_MEMBER_EPOCH
    )
    assert h.streams_beat("a", 2, owned={"0": [0, 1]}).member_epoch == 3
    for epoch in (1, 4):
        answer = h.streams_beat("a", epoch, owned={})
        assert answer.error_code == ErrorCode.FENCED_MEMBER_EPOCH


def test_tasks_are_told_again_to_who_may_have_missed_them(h: Harness) -> None:
    """The answer was lost, or the coordinator moved before it came."""
    mine: dict[str, Any] = {"0": [0, 1, 2, 3]}
    h.streams_beat("a", 0)
    h.sleep(4_999)
    assert active(h.streams_beat("a", 2)) is None
    h.sleep(1)
    assert active(h.streams_beat("a", 2)) == mine
    assert active(h.streams_beat("a", 2, owned=mine)) is None
    h.sleep(20_000)
    assert active(h.streams_beat("a", 2)) is None
    assert active(h.streams_beat("a", 2, owned={"0": [0]})) == mine
    again = h.restarted()
    assert active(again.streams_beat("a", 2)) == mine
    assert active(again.streams_beat("a", 2)) is None


def test_internal_topics_are_asked_for_and_then_used(h: Harness) -> None:
    said = topology(
        subtopology("0", "orders", sinks=["between"]),
        subtopology("1", repartition={"between": 0}, changelogs=["log"]),
    )
    answer = h.streams_beat("a", 0, topology=said)
    assert (told(answer), active(answer), state(h)) == ([3], {}, "NotReady")
    assert h.missing == {"between": 4, "log": 4}
    assert details(h.streams_beat("a", 2)) == ["Internal topics are missing: between, log"]
    h.make_missing()
    answer = h.streams_beat("a", 2)
    assert (told(answer), answer.member_epoch) == ([], 3)
    assert active(answer) == {"0": [0, 1, 2, 3], "1": [0, 1, 2, 3]}
    described = h.describe_streams().topology
    assert described is not None
    rows = described.subtopologies or []
    assert [each.partitions for row in rows for each in row.repartition_source_topics] == [4]


def test_topics_that_come_grow_and_go(h: Harness) -> None:
    said = topology(subtopology("0", "later"))
    answer = h.streams_beat("a", 0, topology=said)
    assert (told(answer), active(answer)) == ([1], {})
    h.create_topic("later", 2)
    assert active(h.streams_beat("a", 2)) == {"0": [0, 1]}
    h.create_topic("later", 3)
    answer = h.streams_beat("a", 3)
    assert (answer.member_epoch, active(answer)) == (4, {"0": [0, 1, 2]})
    h.delete_topic("later")
    assert told(h.streams_beat("a", 4)) == [1]
    assert state(h) == "NotReady"
    answer = h.streams_beat("a", 4, owned={})
    assert (answer.member_epoch, active(h.streams_beat("a", 5))) == (5, None)


def test_a_new_group_waits_for_more_members() -> None:
    h = Harness(streams=StreamsGroupSettings())
    answer = h.streams_beat("a", 0)
    assert (answer.member_epoch, active(answer), told(answer)) == (1, {}, [5])
    h.sleep(2_000)
    answer = h.streams_beat("b", 0)
    assert (answer.member_epoch, told(answer)) == (1, [5])
    h.sleep(999)
    assert told(h.streams_beat("a", 1)) == [5]
    h.sleep(1)
    for name in "ab":
        answer = h.streams_beat(name, 1)
        assert (answer.member_epoch, told(answer)) == (3, [])
        assert len((active(answer) or {})["0"]) == 2
    for name in "ab":
        h.streams_beat(name, -1)
    assert told(h.streams_beat("c", 0)) == [5], "an empty group waits again"


def test_targets_are_an_interval_apart() -> None:
    h = Harness()
    h.streams_beat("a", 0)
    answer = h.streams_beat("b", 0)
    assert (answer.member_epoch, told(answer), state(h)) == (2, [5], "Assigning")
    h.sleep(1_000)
    assert h.streams_beat("b", 2).member_epoch == 3


def test_copies_of_state(h: Harness) -> None:
    h.create_topic("log", 4)
    h.streams = StreamsGroupSettings(
        initial_rebalance_delay_ms=0, assignment_interval_ms=0, standby_replicas=1
    )
    answer = h.streams_beat("a", 0, topology=STATEFUL)
    assert (active(answer), standby(answer)) == ({"0": [0, 1, 2, 3]}, {})
    h.streams_beat("b", 0, topology=STATEFUL)
    h.streams_beat("a", 2)
    answer = h.streams_beat("a", 2, owned={"0": [0, 1]})
    assert (answer.member_epoch, active(answer)) == (3, None), "its process has them until now"
    assert standby(h.streams_beat("a", 3)) == {"0": [2, 3]}
    answer = h.streams_beat("b", 3)
    assert (active(answer), standby(answer)) == ({"0": [2, 3]}, {"0": [0, 1]})
    h.streams_beat("b", -1)
    answer = h.streams_beat("a", 3, owned={"0": [0, 1]}, standby={"0": [2, 3]})
    assert answer.member_epoch == 3, "it gives the copies back before it works on the tasks"
    answer = h.streams_beat("a", 3, owned={"0": [0, 1]})
    assert active(h.streams_beat("a", answer.member_epoch)) == {"0": [0, 1, 2, 3]}


def test_other_settings_share_anew(h: Harness) -> None:
    h.create_topic("log", 4)
    for name in "ab":
        h.streams_beat(name, 0, topology=STATEFUL)
    h.streams_beat("a", 2)
    h.streams_beat("a", 2, owned={"0": [0, 1]})
    h.streams_beat("b", 3)
    assert state(h) == "Stable"
    h.streams = StreamsGroupSettings(
        initial_rebalance_delay_ms=0, assignment_interval_ms=0, standby_replicas=1
    )
    answer = h.streams_beat("a", 3)
    assert (answer.member_epoch, standby(answer)) == (4, {"0": [2, 3]})


def test_silence_ends_a_session(h: Harness) -> None:
    h.streams_beat("a", 0)
    h.streams_beat("b", 0)
    h.sleep(44_000)
    h.streams_beat("a", 2)
    events = h.sleep(1_000)
    assert [event.cause for event in events] == ["member b missed heartbeats"]
    assert [row.member_id for row in h.describe_streams().members] == ["a"]


def test_who_does_not_give_tasks_back_in_time_is_out(h: Harness) -> None:
    h.streams_beat("a", 0, rebalance_timeout_ms=REBALANCE_MS)
    h.streams_beat("b", 0)
    h.streams_beat("a", 2)
    for _ in range(REBALANCE_MS // SESSION_MS - 1):
        h.sleep(SESSION_MS)
        for name, epoch in (("a", 2), ("b", 3)):
            h.streams_beat(name, epoch)
    events = h.sleep(SESSION_MS)
    assert [event.cause for event in events] == ["member a did not give tasks back in time"]
    assert active(h.streams_beat("b", 3)) == {"0": [0, 1, 2, 3]}


def test_the_whole_application_is_told_to_shut_down(h: Harness) -> None:
    h.streams_beat("a", 0)
    h.streams_beat("b", 0)
    assert told(h.streams_beat("a", 2, shutdown_application=True)) == [4]
    answer = h.streams_beat("b", 3, shutdown_application=True)
    assert "member a encountered" in details(answer)[0]
    for name in "ab":
        h.streams_beat(name, -1)
    assert told(h.streams_beat("c", 0)) == []


def test_where_queries_are_answered(h: Harness) -> None:
    cls = StreamsGroupHeartbeatRequest.Endpoint
    h.streams_beat("a", 0, user_endpoint=cls(host="one", port=1))
    answer = h.streams_beat("b", 0, user_endpoint=cls(host="two", port=2))
    assert answer.endpoint_information_epoch == 1
    rows = answer.partitions_by_user_endpoint or []
    assert [(row.user_endpoint.host, len(row.active_partitions)) for row in rows] == [
        ("one", 1),
        ("two", 0),
    ]
    assert rows[0].active_partitions[0].partitions == [0, 1, 2, 3]
    answer = h.streams_beat("b", 3, endpoint_information_epoch=1)
    assert answer.partitions_by_user_endpoint is None
    answer = h.streams_beat("a", 2, endpoint_information_epoch=1)
    assert answer.endpoint_information_epoch == 2, "it has other tasks"
    (row, _) = sorted(answer.partitions_by_user_endpoint or (), key=lambda r: r.user_endpoint.port)
    assert row.active_partitions[0].partitions == [0, 1]


def test_the_first_topology_counts(h: Harness) -> None:
    here = topology(subtopology("0", "orders"), epoch=3)
    h.streams_beat("a", 0, topology=here)
    answer = h.streams_beat("b", 0, topology=topology(subtopology("0", "audit"), epoch=2))
    assert told(answer) == [0]
    for other in (topology(subtopology("0", "audit"), epoch=3), topology(epoch=4)):
        answer = h.streams_beat("c", 0, topology=other)
        assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert [row.member_id for row in h.describe_streams().members] == ["a", "b"]


def test_a_full_group(h: Harness) -> None:
    h.streams = StreamsGroupSettings(initial_rebalance_delay_ms=0, size_max=1)
    h.streams_beat("a", 0)
    assert h.streams_beat("b", 0).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert not h.streams_beat("a", 2).error_code


@pytest.mark.parametrize(
    "said",
    [
        {"instance_id": "i"},
        {"rebalance_timeout_ms": -1},
        {"topology": None},
        {"owned": {"0": [1]}},
        {"process_id": "p" * 1_001},
        {"topology": topology(subtopology("0", "orders"), subtopology("0", "audit"))},
        {"topology": topology(subtopology("0", "orders"), epoch=-1)},
    ],
)
def test_requests_that_make_no_sense(h: Harness, said: dict[str, Any]) -> None:
    answer = h.streams_beat("a", 0, **said)
    assert (answer.error_code, answer.status) == (ErrorCode.INVALID_REQUEST, [])
    assert not h.log


def test_tasks_that_there_are_not(h: Harness) -> None:
    h.streams_beat("a", 0)
    for owned in ({"0": [4]}, {"0": [-1]}, {"9": [0]}):
        answer = h.streams_beat("a", 2, owned=owned)
        assert answer.error_code == ErrorCode.INVALID_REQUEST


def test_offsets_of_members(h: Harness) -> None:
    h.streams_beat("a", 0)
    place = ("orders", 0)
    assert h.commit({place: 1}, "a", 2) == [0]
    assert h.commit({place: 1}, "a", 2, version=8) == [ErrorCode.UNSUPPORTED_VERSION]
    assert h.commit({place: 1}, "x", 2) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert h.commit({place: 1}, "a", 3) == [ErrorCode.STALE_MEMBER_EPOCH]
    h.streams_beat("b", 0)
    h.streams_beat("a", 2)
    h.streams_beat("a", 2, owned={"0": [0, 1]})
    stale = ErrorCode.STALE_MEMBER_EPOCH
    for other in (("orders", 3), ("audit", 0)):
        assert h.commit({place: 1, other: 1}, "a", 2) == [stale] * 2  # one refuses them all
    assert h.commit({place: 1}, "a", 2) == [0]
    assert h.commit({place: 1}, "a", 1) == [stale]
    for name in "ab":
        h.streams_beat(name, -1)
    assert h.commit({place: 1}, "", -1) == [0]


def test_offsets_of_members_in_transactions(h: Harness) -> None:
    h.streams_beat("a", 0)
    place = {("orders", 0): 5}
    stale = [ErrorCode.ILLEGAL_GENERATION]
    assert h.commit_in_transaction(place, member_id="a", generation=2) == [0]
    assert h.commit_in_transaction(place, member_id="a", generation=3) == stale
    assert h.commit_in_transaction(place, member_id="a", generation=1) == stale
    assert h.commit_in_transaction(place, member_id="x", generation=2) == [
        ErrorCode.UNKNOWN_MEMBER_ID
    ]
    assert h.commit_in_transaction(place) == [0], "the transaction fences its producer"
    h.end(commit=True)
    assert h.coordinator.committed("g") == {("orders", 0): 5}


def test_who_may_fetch_and_delete_offsets(h: Harness) -> None:
    h.streams_beat("a", 0)
    h.commit({("orders", 0): 5, ("audit", 0): 5}, "a", 2)
    assert h.fetch_error("a", 2) == 0
    assert h.fetch_error("a", 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert h.fetch_error("x", 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert h.fetch_error() == 0
    h.delete_offsets({"orders": [0], "audit": [0]})
    assert h.coordinator.committed("g") == {("orders", 0): 5}, "the group reads it"


def test_offsets_expire_and_the_empty_group_with_them(h: Harness) -> None:
    h.streams_beat("a", 0)
    h.commit({("orders", 0): 5, ("audit", 0): 5}, "a", 2)

    def expire() -> None:
        for piece in h.coordinator.expire(h.now):
            if piece is not None:
                h.settle(piece)

    h.ms += h.settings.offsets_retention_ms
    h.streams_beat("a", 2)
    expire()
    assert h.coordinator.committed("g") == {("orders", 0): 5}, "audit is not read"
    h.streams_beat("a", -1)
    expire()
    assert h.describe_streams().error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert h.coordinator.committed("g") == {}


def test_an_empty_group_becomes_another_kind_and_back(h: Harness) -> None:
    h.streams_beat("a", 0)
    assert h.coordinator.free_for_classic(joining(), h.now) is None
    h.commit({("orders", 0): 5}, "a", 2)
    h.streams_beat("a", -1)
    assert h.beat("c", 0).error_code == ErrorCode.GROUP_ID_NOT_FOUND, "not by itself"
    freed = h.coordinator.free_for_classic(joining(), h.now)
    assert freed is not None
    h.settle(freed)
    assert h.coordinator.committed("g") == {("orders", 0): 5}
    assert active(h.streams_beat("a", 0)) == {"0": [0, 1, 2, 3]}
    assert h.coordinator.committed("g") == {("orders", 0): 5}


def test_all_is_there_again_after_a_restart(h: Harness) -> None:
    h.streams_beat("a", 0)
    h.streams_beat("b", 0)
    h.streams_beat("a", 2)
    before = h.describe_streams()
    again = h.restarted()
    assert again.describe_streams() == before
    assert again.streams_beat("a", 2, owned={"0": [0, 1]}).member_epoch == 3
    assert active(again.streams_beat("b", 3)) == {"0": [2, 3]}
    again.streams_beat("a", -1)
    again.streams_beat("b", -1)
    for result in again.coordinator.delete_group("g", again.now):
        again.settle(result)
    assert again.restarted().describe_streams().error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_what_could_not_be_stored_is_tried_again(h: Harness) -> None:
    h.streams_beat("a", 0)
    h.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS
    assert h.streams_beat("b", 0).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert [row.member_id for row in h.describe_streams().members] == ["a"]
    h.create_topic("orders", 5)
    h.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS
    h.streams_beat("a", 2)
    assert active(h.streams_beat("a", 2)) == {"0": [0, 1, 2, 3, 4]}


def test_many_tasks_are_shared_beside_clients(h: Harness) -> None:
    h.create_topic("wide", 2_500)
    said = topology(subtopology("0", "wide"))
    answer = h.streams_beat("a", 0, topology=said)
    assert (answer.member_epoch, active(answer)) == (1, {})
    h.streams_beat("a", 1)
    answer = h.streams_beat("a", 1)
    assert (answer.member_epoch, len((active(answer) or {})["0"])) == (2, 2_500)


def test_how_a_group_stands(h: Harness) -> None:
    h.streams_beat("a", 0, topology=topology(subtopology("0", "nowhere")))
    h.streams_beat("a", 2)
    standing = h.coordinator.standing("g", h.now)
    assert standing is not None
    assert "NotReady" in standing
    assert "Source topics nowhere are missing" in standing
