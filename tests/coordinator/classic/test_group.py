"""Data and queries of a classic group."""

from __future__ import annotations

import random
from collections import Counter

from kbroker.coordinator.classic.group import ClassicGroup, ClassicGroupMember, protocols_of
from kbroker.coordinator.classic.group_state import STABLE
from kbroker.coordinator.common.result import PendingResponse
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.groups import JoinGroupResponse

from ..harness import subscription, unlimited


def member(member_id: str, instance_id: str | None = None) -> ClassicGroupMember:
    return ClassicGroupMember(member_id, instance_id, "client", "/host")


def slot() -> PendingResponse[JoinGroupResponse]:
    return PendingResponse("g", "m")


def test_first_member_becomes_leader_and_next_one_succeeds() -> None:
    group = ClassicGroup("g", unlimited())
    members = [member(name) for name in "abc"]
    for each in members:
        group.add(each, "consumer", (("p", b""),))
    assert (group.leader_id, group.protocol_type) == ("a", "consumer")
    group.remove(members[0])
    assert group.leader_id == "b"
    group.remove(members[2])
    assert group.leader_id == "b"
    group.remove(members[1])
    assert group.leader_id is None
    assert not group.support


def test_leader_is_elected_among_joined_members() -> None:
    group = ClassicGroup("g", unlimited())
    members = [member(name) for name in "abc"]
    for each in members:
        group.add(each, "consumer", (("p", b""),))
    assert not group.elect_joined_leader()
    group.add_pending_join(members[1], slot())
    assert group.elect_joined_leader()
    assert group.leader_id == "b"
    group.add_pending_join(members[0], slot())
    assert group.elect_joined_leader()
    assert group.leader_id == "b"


def test_joined_count_matches_pending_joins() -> None:
    rng = random.Random(1)
    group = ClassicGroup("g", unlimited())
    members = [member(str(i)) for i in range(8)]
    for each in members:
        group.add(each, "t", (("p", b""),))
    for _ in range(500):
        each = rng.choice(members)
        if rng.random() < 0.5:
            group.add_pending_join(each, slot())
        else:
            group.remove_pending_join(each)
        assert group.joined == sum(m.pending_join is not None for m in members)
        assert group.all_joined == all(m.pending_join is not None for m in members)
    group.pending.add("x")
    for each in members:
        group.add_pending_join(each, slot())
    assert not group.all_joined


def test_rename_keeps_position_leadership_and_pending_sync() -> None:
    group = ClassicGroup("g", unlimited())
    group.add(member("a", "i"), "t", (("p", b""),))
    group.add(member("b"), "t", (("p", b""),))
    group.unsynced = {"a", "b"}
    group.rename(group.members["a"], "z")
    assert list(group.members) == ["z", "b"]
    assert group.leader_id == "z"
    assert group.unsynced == {"z", "b"}
    assert group.static_member("i") is group.members["z"]
    assert group.static_member(None) is None
    assert group.check_member("a", "i") == ErrorCode.FENCED_INSTANCE_ID


def test_support_matches_count_of_member_protocols() -> None:
    rng = random.Random(2)
    group = ClassicGroup("g", unlimited())
    group.state = STABLE
    for i in range(300):
        offered = protocols_of((rng.choice("abcd"), b"") for _ in range(rng.randrange(1, 4)))
        if group.members and rng.random() < 0.5:
            chosen = group.members[rng.choice(list(group.members))]
            if rng.random() < 0.5:
                group.remove(chosen)
            else:
                group.set_protocols(chosen, offered)
        else:
            group.add(member(str(i)), "t", offered)
        counted = Counter(name for m in group.members.values() for name, _ in m.protocols)
        assert group.support == counted
        for name in "abcd":
            wanted = not group.members or counted[name] == len(group.members)
            if group.members:
                assert group.supports("t", ((name, b""),)) == wanted


def test_duplicate_protocol_names_count_once() -> None:
    assert protocols_of([("a", b"1"), ("b", b"2"), ("a", b"3")]) == (("a", b"1"), ("b", b"2"))


def test_subscribes_returns_topics_of_generation() -> None:
    group = ClassicGroup("g", unlimited())
    assert not group.subscribes("t")  # a simple group
    group.protocol_type, group.protocol_name = "consumer", "range"
    assert group.subscribes("t")  # subscriptions are unknown before the first generation
    group.keep_subscriptions()
    assert not group.subscribes("t")  # no members
    group.add(member("a"), "consumer", (("range", subscription("t", "u")),))
    assert not group.subscribes("t")
    group.keep_subscriptions()
    assert group.subscribes("t")
    assert not group.subscribes("v")
    group.add(member("b"), "consumer", (("range", b"garbled"),))
    group.keep_subscriptions()
    assert group.subscribes("v")
    group.protocol_type = "connect"
    assert not group.subscribes("t")
