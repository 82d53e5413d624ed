"""Heartbeats of share groups of KIP-932: what members say, what they are told, what is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from kbroker.coordinator import CoordinatorRecord, Result, ShareGroupSettings
from kbroker.coordinator.share.group import SharedTopic
from kbroker.coordinator.share.initialization import PARTITIONS_AT_ONCE, RETRY_BACKOFF_MS
from kbroker.coordinator.share.offsets import Begun
from kbroker.coordinator.share.records import shared_record
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.share_groups import ShareGroupHeartbeatResponse

from ..harness import Harness

AT_ONCE = ShareGroupSettings(assignment_interval_ms=0)
SESSION_MS = AT_ONCE.session_timeout_ms
ALL = {"orders": [0, 1, 2, 3]}


def harness(**settings: Any) -> Harness:
    return Harness(share=replace(AT_ONCE, **settings))


def given(h: Harness, answer: ShareGroupHeartbeatResponse) -> dict[str, list[int]] | None:
    """What a member is told to have, None when it is told nothing."""
    assert not answer.error_code, answer
    if answer.assignment is None:
        return None
    return {
        h.topics.name_of(row.topic_id) or "?": row.partitions
        for row in answer.assignment.topic_partitions
    }


def asked(h: Harness) -> dict[str, list[int]]:
    """The partitions of which share coordinators are to make a state."""
    return {
        h.topics.name_of(topic_id) or "?": sorted(partitions)
        for each in h.to_make
        for topic_id, partitions in each.partitions.items()
    }


def begun(**settings: Any) -> Harness:
    """A group whose states are made, with member a in epoch 3, which has all partitions."""
    h = harness(**settings)
    h.share_beat("a", 0)
    h.make_states()
    assert given(h, h.share_beat("a", 2)) == ALL
    return h


# -- what a heartbeat may say

BAD: dict[str, tuple[dict[str, Any], ErrorCode]] = {
    "no group": ({"group": ""}, ErrorCode.INVALID_REQUEST),
    "empty rack": ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
    "no topics": ({"topics": []}, ErrorCode.INVALID_REQUEST),
    "strange epoch": ({"epoch": -2}, ErrorCode.INVALID_REQUEST),
    "long rack": ({"rack_id": "r" * 1_001}, ErrorCode.INVALID_REQUEST),
    "many topics": ({"topics": ["t"] * 10_001}, ErrorCode.INVALID_REQUEST),
    "unknown group": ({"epoch": 1}, ErrorCode.GROUP_ID_NOT_FOUND),
    "leaves no group": ({"epoch": -1}, ErrorCode.GROUP_ID_NOT_FOUND),
}


@pytest.mark.parametrize("name", BAD)
def test_a_heartbeat_that_makes_no_sense_is_refused(name: str) -> None:
    fields, code = BAD[name]
    h = harness()
    values: dict[str, Any] = {"member_id": "a", "epoch": 0}
    answer = h.share_beat(**(values | fields))
    assert ErrorCode(answer.error_code) is code
    assert answer.error_message
    assert h.log == []


# -- epochs, states and shares


def test_a_member_gets_partitions_when_they_have_a_state() -> None:
    h = harness()
    first = h.share_beat("a", 0)
    assert (first.member_epoch, given(h, first)) == (2, {})
    assert first.heartbeat_interval_ms == 5_000
    assert asked(h) == ALL
    again = h.share_beat("a", 2)
    assert (again.member_epoch, given(h, again)) == (2, None)
    (made,) = h.make_states()
    assert made.epoch == 2
    answer = h.share_beat("a", 2)
    assert (answer.member_epoch, given(h, answer)) == (3, ALL)
    assert given(h, h.share_beat("a", 3)) is None
    assert asked(h) == {}


def test_who_says_what_it_reads_is_told_what_it_has() -> None:
    h = begun()
    assert given(h, h.share_beat("a", 3, ["orders"])) == ALL
    assert given(h, h.share_beat("a", 0)) == ALL


def test_partitions_are_shared_out_and_then_shared() -> None:
    h = begun()
    assert len(given(h, h.share_beat("b", 0)) or ()) == 1
    assert len((given(h, h.share_beat("a", 3)) or {})["orders"]) == 2
    for member in "cde":
        h.share_beat(member, 0)
    rows = h.describe_share().members
    h.sleep(1)
    for row in rows:
        h.share_beat(row.member_id, row.member_epoch)
    has = {
        row.member_id: row.assignment.topic_partitions[0].partitions
        for row in h.describe_share().members
    }
    assert all(has.values()), "five members of four partitions"
    assert {each for some in has.values() for each in some} == {0, 1, 2, 3}


def test_epochs_fence() -> None:
    h = begun()
    assert h.share_beat("a", 4).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert h.share_beat("a", 1).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert not h.share_beat("a", 2).error_code, "the answer to it may be lost"
    assert h.share_beat("b", 3).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert h.share_beat("b", -1).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_targets_are_as_far_apart_as_the_interval() -> None:
    h = harness(assignment_interval_ms=1_000)
    h.share_beat("a", 0)
    h.make_states()
    answer = h.share_beat("a", 2)
    assert (answer.member_epoch, given(h, answer)) == (2, None)
    row = h.describe_share()
    assert (row.group_epoch, row.assignment_epoch) == (3, 2)
    h.sleep(1_000)
    answer = h.share_beat("a", 2)
    assert (answer.member_epoch, given(h, answer)) == (3, ALL)


def test_a_group_has_as_many_members_as_it_may() -> None:
    h = begun(size_max=2)
    h.share_beat("b", 0)
    assert h.share_beat("c", 0).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert not h.share_beat("b", 0).error_code


def test_a_member_that_is_not_heard_of_is_out() -> None:
    h = begun()
    h.share_beat("b", 0)
    h.sleep(SESSION_MS - 1)
    h.share_beat("a", 3)
    (event,) = h.sleep(1)
    assert event.cause == "member b missed heartbeats"
    answer = h.share_beat("a", 4)
    assert given(h, answer) == ALL
    h.coordinator.end_session("g", "a", h.now)
    h.sleep(0)
    assert h.describe_share().group_state == "Empty"


def test_a_time_out_that_cannot_be_stored_is_tried_again() -> None:
    h = begun()
    h.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS
    h.sleep(SESSION_MS)
    assert len(h.describe_share().members) == 1
    h.sleep(5_000)
    assert not h.describe_share().members


def test_a_heartbeat_that_cannot_be_stored_changes_nothing() -> None:
    h = harness()
    h.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS
    assert h.share_beat("a", 0).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert h.log == []
    assert h.to_make == []
    assert h.coordinator.next_deadline() is None
    assert h.share_beat("a", 0).member_epoch == 2
    assert asked(h) == ALL


# -- topics


def test_topics_that_come_grow_and_go_are_noticed() -> None:
    h = harness()
    assert given(h, h.share_beat("a", 0, ["later"])) == {}
    assert asked(h) == {}
    h.create_topic("later", 2)
    h.share_beat("a", 2)
    assert asked(h) == {"later": [0, 1]}
    h.make_states()
    assert given(h, h.share_beat("a", 3)) == {"later": [0, 1]}
    h.create_topic("later", 3)
    h.share_beat("a", 4)
    assert asked(h) == {"later": [2]}
    h.make_states()
    assert given(h, h.share_beat("a", 5)) == {"later": [0, 1, 2]}
    topic_id = h.topics.id_of("later")
    assert topic_id is not None
    h.delete_topic("later")
    h.forget(h.coordinator.share_offsets.forget_topics([topic_id]))
    assert list(h.coordinator.share_offsets.partitions("g")) == []
    assert given(h, h.share_beat("a", 6)) == {}


def test_topics_that_went_while_nobody_had_the_group_are_forgotten() -> None:
    h = begun()
    del h.topics.topics["orders"]
    h = h.restarted()
    assert len(list(h.coordinator.share_offsets.partitions("g"))) == 4
    h.forget(h.coordinator.forget_missing_topics())
    assert list(h.coordinator.share_offsets.partitions("g")) == []


def test_a_large_topic_has_its_states_made_in_parts() -> None:
    h = harness()
    h.create_topic("large", PARTITIONS_AT_ONCE + 500)
    h.share_beat("a", 0, ["large"])
    assert len(asked(h)["large"]) == PARTITIONS_AT_ONCE
    h.make_states()
    h.share_beat("a", 2)
    assert len(asked(h)["large"]) == 500
    h.make_states()
    h.share_beat("a", 3)
    row = h.describe_share().members[0]
    for _ in range(3):
        answer = h.share_beat("a", h.describe_share().members[0].member_epoch)
    assert not answer.error_code
    row = h.describe_share().members[0]
    assert len(row.assignment.topic_partitions[0].partitions) == PARTITIONS_AT_ONCE + 500


# -- states that are to be made


def test_what_could_not_be_made_is_asked_for_again() -> None:
    h = harness()
    h.share_beat("a", 0)
    h.make_states(well=False)
    assert asked(h) == {}
    h.share_beat("a", 2)
    assert asked(h) == ALL
    h.to_make.clear()
    h.sleep(RETRY_BACKOFF_MS - 1)
    h.share_beat("a", 2)
    assert asked(h) == {}, "nobody has said anything yet"
    h.sleep(1)
    h.share_beat("a", 2)
    assert asked(h) == ALL


def test_what_was_being_made_when_the_coordinator_moved_goes_on() -> None:
    h = harness()
    h.share_beat("a", 0)
    h = h.restarted()
    assert asked(h) == ALL
    h.make_states()
    assert given(h, h.share_beat("a", 2)) == ALL


def test_an_answer_about_what_nobody_waits_for_changes_nothing() -> None:
    h = begun()
    before = list(h.log)
    topic_id = h.topics.id_of("audit") or UUID(int=0)
    h.settle(h.coordinator.share_states.made("g", {topic_id: {0}}, well=True))
    h.settle(h.coordinator.share_states.made("nothing", {topic_id: {0}}, well=True))
    assert h.log == before


# -- what operators ask


def empty_group() -> Harness:
    h = begun()
    h.share_beat("a", -1)
    return h


def begun_by(result: Result[Begun]) -> Begun:
    """What share coordinators are to be asked for."""
    assert isinstance(result.response, Begun)
    return result.response


def topic_of(h: Harness, *partitions: int) -> dict[UUID, SharedTopic]:
    topic_id = h.topics.id_of("orders")
    assert topic_id is not None
    return {topic_id: SharedTopic("orders", frozenset(partitions))}


def test_where_an_empty_group_begins_can_be_set_before_there_is_one() -> None:
    h = harness()
    result = h.coordinator.share_offsets.alter("g", topic_of(h, 1), h.now)
    h.settle(result)
    assert begun_by(result).epoch == 1
    h.settle(h.coordinator.share_states.made("g", begun_by(result).partitions, well=True))
    assert [share.partition for share in h.coordinator.share_offsets.partitions("g")] == [1]
    assert h.describe_share().group_state == "Empty"
    h.share_beat("a", 0)
    assert asked(h) == {"orders": [0, 2, 3]}


def test_nothing_is_altered_of_a_group_with_members() -> None:
    h = begun()
    for result in (
        h.coordinator.share_offsets.alter("g", topic_of(h, 1), h.now),
        h.coordinator.share_offsets.delete("g", {}),
        h.coordinator.share_offsets.delete_all("g"),
    ):
        assert begun_by(result).error_code == ErrorCode.NON_EMPTY_GROUP
        assert not result.records
    assert h.delete_groups("g") == {"g": ErrorCode.NON_EMPTY_GROUP}


def test_a_group_forgets_a_topic() -> None:
    h = empty_group()
    (topic_id,) = topic_of(h)
    result = h.coordinator.share_offsets.delete("g", {topic_id: "orders"})
    h.settle(result)
    assert begun_by(result).partitions == {topic_id: {0, 1, 2, 3}}
    assert list(h.coordinator.share_offsets.partitions("g")) == []
    again = h.coordinator.share_offsets.delete("g", {topic_id: "orders"})
    assert begun_by(again).partitions == {topic_id: {0, 1, 2, 3}}, "it is not known to be done"
    h.settle(h.coordinator.share_offsets.deleted("g", [topic_id]))
    last = h.coordinator.share_offsets.delete("g", {topic_id: "orders"})
    assert not begun_by(last).partitions


def test_a_group_goes_with_its_states() -> None:
    h = empty_group()
    result = h.coordinator.share_offsets.delete_all("g")
    h.settle(result)
    assert {*begun_by(result).partitions} == {*topic_of(h)}
    assert h.delete_groups("g") == {"g": 0}
    assert not h.coordinator.has_share_group("g")
    assert h.restarted().describe_share().error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_all_that_there_is_of_a_group_is_taken_away_with_it() -> None:
    h = empty_group()
    h.delete_groups("g")
    left = {record.key: record.value for record in h.log}
    assert not any(value is not None for value in left.values())


# -- other kinds of groups


def test_a_group_is_of_one_kind() -> None:
    h = begun()
    assert h.beat("x", 0).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert h.join("").response.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert h.commit({("orders", 0): 1}) == [ErrorCode.GROUP_ID_NOT_FOUND]
    assert h.commit_in_transaction({("orders", 0): 1}) == [ErrorCode.GROUP_ID_NOT_FOUND]
    assert h.fetch({"orders": [0]})["orders", 0][0] == -1
    answer = h.delete_offsets({"orders": [0]})
    assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
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


def test_how_a_group_stands_in_words() -> None:
    h = harness()
    h.share_beat("a", 0)
    said = h.coordinator.standing("g", h.now)
    assert said == (
        "group g is Stable in epoch 2: it has member a; waits for the share coordinators of 4 "
        "partitions of orders"
    )
    h.make_states()
    h.share_beat("b", 0)
    said = h.coordinator.standing("g", h.now)
    assert said == (
        "group g is Stable in epoch 3: it has member a, member b; member a will hear of it with the "
        "next heartbeat; has a state of 4 partitions of orders"
    )


def test_a_group_survives_a_restart() -> None:
    h = begun()
    h.share_beat("b", 0, ["orders", "audit"])
    before = h.describe_share()
    h = h.restarted()
    assert h.describe_share() == before
    h.sleep(SESSION_MS)
    assert not h.describe_share().members, "sessions start when it is loaded"


def test_a_record_of_a_group_that_is_gone_changes_nothing() -> None:
    h = begun()
    key = shared_record("gone", h.coordinator._state.share_groups["g"].shared).key
    h.coordinator.replay(CoordinatorRecord(key, None))
    assert not h.coordinator.has_share_group("gone")
