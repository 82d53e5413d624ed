"""Which requests a rule hits, and on which of their calls."""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.groups import DeleteGroupsRequest, HeartbeatRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.testing.fault import new_rule
from kbroker.testing.rules import Asked, Faults, Rule, Target, asked_of

TOPIC_ID = UUID(int=7)


def produce(*partitions: int, topic: str = "orders", client_id: str = "app") -> Asked:
    rows = [ProduceRequest.Partition(index=index, records=None) for index in partitions]
    request = ProduceRequest(topic_data=[ProduceRequest.Topic(name=topic, partition_data=rows)])
    return asked_of(ApiKey.PRODUCE, 9, client_id, request, lambda topic_id: "")


def test_what_a_request_is_about() -> None:
    asked = produce(0, 2)
    assert asked.partitions == {"orders": {0, 2}}
    assert (asked.api, asked.version, asked.client_id) == (ApiKey.PRODUCE, 9, "app")

    fetch = FetchRequest(
        topics=[
            FetchRequest.Topic(topic_id=TOPIC_ID, partitions=[FetchRequest.Partition(partition=1)])
        ]
    )
    names = {TOPIC_ID: "orders"}
    found = asked_of(ApiKey.FETCH, 13, None, fetch, names.__getitem__)
    assert (found.partitions, found.client_id) == ({"orders": {1}}, "")

    beat = asked_of(ApiKey.HEARTBEAT, 4, "c", HeartbeatRequest(group_id="g"), str)
    assert beat.groups == {"g"}
    gone = asked_of(ApiKey.DELETE_GROUPS, 2, "c", DeleteGroupsRequest(groups_names=["a", "b"]), str)
    assert gone.groups == {"a", "b"}


@pytest.mark.parametrize(
    ("target", "hit"),
    [
        (Target(), True),
        (Target(api=ApiKey.PRODUCE), True),
        (Target(api=ApiKey.FETCH), False),
        (Target(topic="orders"), True),
        (Target(topic="order"), False),
        (Target(topic="orders", partition=2), True),
        (Target(topic="orders", partition=1), False),
        (Target(partition=0), True),
        (Target(client_id="app"), True),
        (Target(client_id="other"), False),
        (Target(versions=range(9, 12)), True),
        (Target(versions=range(9)), False),
        (Target(group="g"), False),
        (Target(transactional_id="t"), False),
    ],
)
def test_targets(target: Target, hit: bool) -> None:
    assert target.matches(produce(0, 2)) is hit


def hits(rule: Rule, calls: int = 10) -> list[int]:
    return [number for number in range(1, calls + 1) if rule.takes(produce(0))]


def test_schedules() -> None:
    assert hits(Rule(Target())) == [1]
    assert hits(Rule(Target(), count=3)) == [1, 2, 3]
    assert hits(Rule(Target(), first=4)) == [4]
    assert hits(Rule(Target(), first=4, count=2)) == [4, 5]
    assert hits(Rule(Target(), count=float("inf"))) == list(range(1, 11))


def test_chance_can_be_repeated() -> None:
    def run(seed: int) -> list[int]:
        return hits(
            Rule(Target(), count=float("inf"), probability=0.3, random=random.Random(seed)), 100
        )

    assert run(1) == run(1) != run(2)
    assert 15 < len(run(1)) < 45


def test_calls_of_others_do_not_count() -> None:
    rule = Rule(Target(topic="orders"), first=2)
    assert not rule.takes(produce(0))
    assert not rule.takes(produce(0, topic="other"))
    assert rule.takes(produce(0))


def test_the_first_rule_that_hits_wins() -> None:
    faults = Faults()
    first, second = Rule(Target()), Rule(Target())
    faults.arm(first)
    faults.arm(second)
    assert [faults.take(produce(0)) for _ in range(3)] == [first, second, None]


def test_near_misses() -> None:
    faults = Faults()
    rule = Rule(Target(api=ApiKey.PRODUCE, topic="orders"))
    faults.arm(rule)
    assert faults.unfired() == [rule]
    assert faults.near_misses(rule) == ["saw no such request"]
    for _ in range(3):
        faults.take(produce(0, topic="order"))
    assert faults.near_misses(rule) == ["saw 3 x Produce 9, topic 'order' from 'app'"]
    rule.first = 5
    faults.take(produce(0))
    assert faults.near_misses(rule) == ["saw 1 such requests, it waits for number 5"]
    rule.may_stay_unfired = True
    assert faults.unfired() == []


def test_wrong_words_are_refused_with_the_right_ones() -> None:
    with pytest.raises(ValueError, match="did you mean Produce"):
        new_rule("Prodce")
    with pytest.raises(ValueError, match="did you mean NOT_LEADER_OR_FOLLOWER"):
        new_rule("Produce", error="NOT_LEADER_OR_FOLOWER")
    with pytest.raises(ValueError, match="before or after"):
        new_rule("Produce", at="while")
    assert new_rule("init_producer_id").target.api is ApiKey.INIT_PRODUCER_ID
