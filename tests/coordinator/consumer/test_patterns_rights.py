"""Patterns of consumer groups (KIP-848) whose members may describe different topics."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import pytest

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.consumer_groups import ConsumerGroupHeartbeatResponse

from ..harness import Harness

REFRESH_MS, BEAT_MS = 600_000, 3_000
# Longer than the session of a member whose leave request failed.
ROUNDS_TO_SETTLE = 25
# More topics than are matched against a pattern within a heartbeat.
MANY = 2_100


class Rights:
    """Prefixes of topics that a client may describe; they may change."""

    def __init__(self, *prefixes: str) -> None:
        self.prefixes = prefixes

    def __call__(self, topic: str) -> bool:
        return topic.startswith(self.prefixes)


class Member(NamedTuple):
    id: str
    pattern: str
    rights: Callable[[str], bool]


class Group:
    """Members that send heartbeats and revoke partitions as required."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.members: dict[str, Member] = {}
        self.epochs: dict[str, int] = {}
        self.owned: dict[str, dict[str, list[int]]] = {}

    def join(self, member: Member) -> None:
        self.members[member.id] = member
        self.epochs[member.id], self.owned[member.id] = 0, {}
        self.beat(member.id)

    def leave(self, member_id: str) -> None:
        self.harness.beat(member_id, -1)
        for each in (self.members, self.epochs, self.owned):
            each.pop(member_id)

    def beat(self, member_id: str) -> None:
        member, epoch = self.members[member_id], self.epochs[member_id]
        response = self.harness.beat(
            member.id,
            epoch,
            subscribed_topic_regex=member.pattern if epoch == 0 else None,
            topics=[] if epoch == 0 else None,
            may_describe=member.rights,
            owned=self.owned[member_id],
        )
        if response.error_code:
            return
        self.epochs[member_id] = response.member_epoch
        if response.assignment is not None:
            self.owned[member_id] = self._assignment_by_name(response)

    def _assignment_by_name(self, response: ConsumerGroupHeartbeatResponse) -> dict[str, list[int]]:
        assert response.assignment is not None
        names = self.harness.topics.name_of
        return {
            names(each.topic_id) or "": sorted(each.partitions)
            for each in response.assignment.topic_partitions
        }

    def round(self) -> None:
        for member_id in tuple(self.members):
            self.beat(member_id)
        self.harness.sleep(BEAT_MS)

    def settle(self) -> None:
        for _ in range(ROUNDS_TO_SETTLE):
            self.round()

    def check_rights(self) -> None:
        for member_id, owned in self.owned.items():
            rights = self.members[member_id].rights
            assert all(rights(topic) for topic in owned), (member_id, owned)

    def check_all_is_read(self) -> None:
        """Check that each partition that a member may read is assigned once."""
        readable = {
            topic
            for topic in self.harness.topics.names()
            if any(each.rights(topic) for each in self.members.values())
        }
        given = [
            (topic, index)
            for owned in self.owned.values()
            for topic, indexes in owned.items()
            for index in indexes
        ]
        assert len(given) == len(set(given))
        wanted = {
            (topic, index)
            for topic in readable
            for index in range(self.harness.topics.shape_of(topic).partitions)
        }
        assert set(given) == wanted


def harness(*topics: str) -> Harness:
    h = Harness()
    for name in topics:
        h.create_topic(name, 2)
    return h


@pytest.mark.parametrize("many", [0, MANY])
def test_pattern_is_resolved_with_permissions_of_each_member(many: int) -> None:
    h = harness("a-1", "b-1")
    for number in range(many):
        h.topics.create(f"x{number}", 1)
    group = Group(h)
    sees_all, sees_a = Rights("a-", "b-"), Rights("a-")
    group.join(Member("all", ".*", sees_all))
    group.join(Member("a", ".*", sees_a))
    for _ in range(ROUNDS_TO_SETTLE):
        group.round()
        group.check_rights()
    group.check_all_is_read()
    h.create_topic("b-2", 2)
    h.create_topic("a-2", 2)
    for _ in range(ROUNDS_TO_SETTLE):
        group.round()
        group.check_rights()
    group.check_all_is_read()


def test_topics_that_member_may_no_longer_describe_are_revoked() -> None:
    h = harness("a-1", "b-1")
    group, rights = Group(h), Rights("a-", "b-")
    group.join(Member("m", ".*", rights))
    group.settle()
    assert set(group.owned["m"]) == {"a-1", "b-1"}
    rights.prefixes = ("a-",)
    for _ in range(REFRESH_MS // BEAT_MS + ROUNDS_TO_SETTLE):
        group.round()
    assert set(group.owned["m"]) == {"a-1"}


def test_moved_coordinator_assigns_only_topics_that_member_may_describe() -> None:
    h = harness("a-1", "b-1")
    group = Group(h)
    group.join(Member("all", ".*", Rights("a-", "b-")))
    group.join(Member("a", ".*", Rights("a-")))
    group.settle()
    epoch = group.epochs["a"]
    group.harness = h.restarted()
    group.settle()
    group.check_rights()
    group.check_all_is_read()
    assert group.epochs["a"] <= epoch + 1


def test_failed_append_leaves_pattern_to_next_heartbeat() -> None:
    h = harness("a-1", "b-1")
    group = Group(h)
    h.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS
    group.join(Member("a", ".*", Rights("a-")))
    group.join(Member("a", ".*", Rights("a-")))
    group.settle()
    h.create_topic("a-2", 2)
    h.sleep(BEAT_MS)
    h.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS
    group.settle()
    group.check_rights()
    group.check_all_is_read()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_members_with_random_permissions_read_exactly_permitted_topics(seed: int) -> None:
    chance = random.Random(seed)
    group = Group(harness("a-0", "b-0", "c-0"))
    clients = [Rights(*chance.sample(("a-", "b-", "c-"), chance.randint(1, 3))) for _ in range(4)]
    numbers = iter(range(1, 1_000))
    for _ in range(40):
        deed = chance.random()
        if deed < 0.3 and len(group.members) < 6:
            pattern = chance.choice((".*", "[abc]-.*"))
            group.join(Member(f"m{next(numbers)}", pattern, chance.choice(clients)))
        elif deed < 0.4 and group.members:
            group.leave(chance.choice(list(group.members)))
        elif deed < 0.6:
            group.harness.create_topic(f"{chance.choice('abc')}-{next(numbers)}", 2)
        elif deed < 0.7:
            group.harness = group.harness.restarted()
        elif deed < 0.75:
            group.harness.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS
        elif group.members:
            group.beat(chance.choice(list(group.members)))
            group.harness.sleep(chance.randint(0, BEAT_MS))
        group.check_rights()
    group.harness.append_fails = None
    group.settle()
    group.check_rights()
    if group.members:
        group.check_all_is_read()
