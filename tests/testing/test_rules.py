"""Matching of requests by fault rules."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.configs import DescribeConfigsRequest
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.groups import (
    DeleteGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
)
from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.testing.fault import Arming, new_rule
from kbroker.testing.rules import Faults, RequestInfo, Rule, Target, request_info
from kbroker.testing.schedule import Effect

TOPIC_ID = UUID(int=7)


def produce_info(*partitions: int, topic: str = "orders", client_id: str = "app") -> RequestInfo:
    rows = [ProduceRequest.Partition(index=index, records=None) for index in partitions]
    request = ProduceRequest(topic_data=[ProduceRequest.Topic(name=topic, partition_data=rows)])
    return request_info(ApiKey.PRODUCE, 9, client_id, request, lambda topic_id: "")


def test_request_info_has_topics_groups_and_ids() -> None:
    info = produce_info(0, 2)
    assert info.partitions == {"orders": {0, 2}}
    assert (info.api, info.version, info.client_id) == (ApiKey.PRODUCE, 9, "app")

    fetch = FetchRequest(
        topics=[
            FetchRequest.Topic(topic_id=TOPIC_ID, partitions=[FetchRequest.Partition(partition=1)])
        ]
    )
    names = {TOPIC_ID: "orders"}
    found = request_info(ApiKey.FETCH, 13, None, fetch, names.__getitem__)
    assert (found.partitions, found.client_id) == ({"orders": {1}}, "")

    stale = request_info(ApiKey.FETCH, 13, None, fetch, lambda topic_id: "")
    assert stale.partitions == {str(TOPIC_ID): {1}}

    for find_request in (
        FindCoordinatorRequest(key="g"),
        FindCoordinatorRequest(coordinator_keys=["g"]),
    ):
        found = request_info(ApiKey.FIND_COORDINATOR, 4, "c", find_request, str)
        assert found.groups == {"g"}
        assert found.transactional_id is None
    find_request = FindCoordinatorRequest(key_type=1, key="t")
    found = request_info(ApiKey.FIND_COORDINATOR, 3, "c", find_request, str)
    assert not found.groups
    assert found.transactional_id == "t"

    described = DescribeConfigsRequest(
        resources=[DescribeConfigsRequest.Resource(resource_type=2, resource_name="orders")]
    )
    found = request_info(ApiKey.DESCRIBE_CONFIGS, 4, "c", described, str)
    assert found.resources == {"orders"}
    assert "resource 'orders'" in str(found)

    heartbeat = request_info(ApiKey.HEARTBEAT, 4, "c", HeartbeatRequest(group_id="g"), str)
    assert heartbeat.groups == {"g"}
    deletion = request_info(
        ApiKey.DELETE_GROUPS, 2, "c", DeleteGroupsRequest(groups_names=["a", "b"]), str
    )
    assert deletion.groups == {"a", "b"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "hit"),
    [
        (Target(), True),
        (Target(frozenset({ApiKey.PRODUCE})), True),
        (Target(frozenset({ApiKey.FETCH})), False),
        (Target(frozenset({ApiKey.FETCH, ApiKey.PRODUCE})), True),
        (Target(topic="orders"), True),
        (Target(topic="order"), False),
        (Target(topic="orders", partitions=frozenset({2})), True),
        (Target(topic="orders", partitions=frozenset({1})), False),
        (Target(partitions=frozenset({1, 2})), True),
        (Target(partitions=frozenset({0})), True),
        (Target(client_id="app"), True),
        (Target(client_id="other"), False),
        (Target(versions=range(9, 12)), True),
        (Target(versions=range(9)), False),
        (Target(group="g"), False),
        (Target(transactional_id="t"), False),
        (Target(resource="orders"), False),
    ],
)
def test_target_matches_its_requests(target: Target, hit: bool) -> None:
    assert target.matches(produce_info(0, 2)) is hit


def hit_numbers(rule: Rule, calls: int = 10) -> list[int]:
    return [number for number in range(1, calls + 1) if rule.try_hit(produce_info(0))]


def test_rule_hits_requests_of_its_schedule() -> None:
    assert hit_numbers(Rule(Target())) == [1]
    assert hit_numbers(Rule(Target(), count=3)) == [1, 2, 3]
    assert hit_numbers(Rule(Target(), first=4)) == [4]
    assert hit_numbers(Rule(Target(), first=4, count=2)) == [4, 5]
    assert hit_numbers(Rule(Target(), count=float("inf"))) == list(range(1, 11))


def test_rule_with_probability_repeats_with_same_seed() -> None:
    def run(seed: int) -> list[int]:
        return hit_numbers(
            Rule(Target(), count=float("inf"), probability=0.3, random=random.Random(seed)), 100
        )

    assert run(1) == run(1) != run(2)
    assert 15 < len(run(1)) < 45


def test_requests_that_do_not_match_are_not_counted() -> None:
    rule = Rule(Target(topic="orders"), first=2)
    assert not rule.try_hit(produce_info(0))
    assert not rule.try_hit(produce_info(0, topic="other"))
    assert rule.try_hit(produce_info(0))


def test_first_matching_rule_wins() -> None:
    faults = Faults()
    first, second = Rule(Target(), effect=Effect.DELAY), Rule(Target(), effect=Effect.DELAY)
    faults.arm(first)
    faults.arm(second)
    assert [faults.match_request(produce_info(0)) for _ in range(3)] == [first, second, None]


def test_near_misses_show_similar_requests() -> None:
    faults = Faults()
    rule = Rule(Target(frozenset({ApiKey.PRODUCE}), topic="orders"))
    faults.arm(rule)
    assert faults.unfired() == [rule]
    assert faults.near_misses(rule) == ["saw no such request"]
    for _ in range(3):
        faults.match_request(produce_info(0, topic="order"))
    assert faults.near_misses(rule) == ["saw 3 x Produce 9, topic 'order' from 'app'"]
    rule.first = 5
    faults.match_request(produce_info(0))
    assert faults.near_misses(rule) == ["saw 1 such requests, the fault hits number 5"]
    rule.may_stay_unfired = True
    assert faults.unfired() == []


def test_unknown_name_is_rejected_with_suggestion() -> None:
    with pytest.raises(ValueError, match="did you mean Produce"):
        new_rule("Prodce")
    with pytest.raises(ValueError, match="did you mean NOT_LEADER_OR_FOLLOWER"):
        new_rule("Produce", error="NOT_LEADER_OR_FOLOWER")
    with pytest.raises(ValueError, match=r"\(valid: .before., .after.\)"):
        new_rule("Produce", at="while")
    assert new_rule("init_producer_id").target.apis == {ApiKey.INIT_PRODUCER_ID}


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        (
            lambda faults: new_arming(faults).fault("Metadata").corrupt_batch(),
            "cannot corrupt a batch of Metadata",
        ),
        (
            lambda faults: new_arming(faults).fault("SaslHandshake").throttle(5),
            "no throttle_time_ms",
        ),
        (
            lambda faults: new_arming(faults).fault("Produce", error=2, top_level=True),
            "no top-level error",
        ),
        (lambda faults: new_arming(faults).fault(error=2, top_level=True), "needs an API"),
        (
            lambda faults: new_arming(faults).fault("Fetch").until("Metdata"),
            "did you mean Metadata",
        ),
        (lambda faults: new_arming(faults).fault("Fetch", error=3).delay(5), "arm another fault"),
    ],
)
def test_impossible_effect_is_rejected(arm: Callable[[Faults], object], message: str) -> None:
    faults = Faults()
    with pytest.raises(ValueError, match=message):
        arm(faults)


def new_arming(faults: Faults) -> Arming[None]:
    """Return an object with the fault methods of a broker, but without a broker."""
    broker = Arming[None]()
    broker.faults = faults
    return broker


def test_until_releases_clients_one_by_one() -> None:
    faults = Faults()
    rule = Rule(
        Target(frozenset({ApiKey.PRODUCE})), effect=Effect.DELAY, count=9, until=ApiKey.METADATA
    )
    faults.arm(rule)
    assert [faults.match_request(produce_info(0)) for _ in range(2)] == [rule, rule]
    info = request_info(ApiKey.METADATA, 9, "app", MetadataRequest(topics=None), str)
    assert faults.match_request(info) is None
    assert faults.match_request(produce_info(0)) is None
    assert faults.match_request(produce_info(0, client_id="other")) is rule


def test_until_counts_only_requests_after_first_hit() -> None:
    """A client requests metadata before anything else."""
    info = request_info(ApiKey.METADATA, 9, "app", MetadataRequest(topics=None), str)
    for releases_all, hit in ((False, True), (True, False)):
        faults = Faults()
        rule = Rule(
            Target(frozenset({ApiKey.PRODUCE})),
            effect=Effect.DELAY,
            count=9,
            until=ApiKey.METADATA,
            releases_all=releases_all,
        )
        faults.arm(rule)
        faults.match_request(info)
        assert (faults.match_request(produce_info(0)) is rule) is hit
        faults.match_request(info)
        assert faults.match_request(produce_info(0)) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("api", "criteria", "missing"),
    [
        ("Produce", {"group": "g"}, "group"),
        ("Heartbeat", {"topic": "t"}, "topic"),
        ("Heartbeat", {"partition": 0}, "partitions"),
        (["Heartbeat", "JoinGroup"], {"resource": "t"}, "resource"),
        ("Metadata", {"transactional_id": "t"}, "transactional_id"),
    ],
)
def test_criterion_that_no_request_has_is_rejected(
    api: Any, criteria: dict[str, Any], missing: str
) -> None:
    with pytest.raises(ValueError, match=f"does not have a {missing}, so this fault cannot hit"):
        new_rule(api, **criteria)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("api", "criteria"),
    [
        ("Produce", {"topic": "t", "partition": 0, "transactional_id": "x"}),
        ("FindCoordinator", {"group": "g"}),
        ("FindCoordinator", {"transactional_id": "x"}),
        ("OffsetFetch", {"group": "g", "topic": "t"}),
        ("DeleteGroups", {"group": "g"}),
        ("TxnOffsetCommit", {"group": "g", "topic": "t", "transactional_id": "x"}),
        ("DescribeConfigs", {"resource": "t"}),
        (["Produce", "Heartbeat"], {"topic": "t"}),
        (None, {"topic": "t", "group": "g"}),
    ],
)
def test_criterion_that_some_request_has_is_accepted(api: Any, criteria: dict[str, Any]) -> None:
    assert new_rule(api, **criteria).hits == 0


def test_corrupt_batch_rule_checks_only_requests_with_batches() -> None:
    faults = Faults()
    rule = Rule(Target(frozenset({ApiKey.FETCH})), effect=Effect.CORRUPT_BATCH)
    faults.arm(rule)
    info = request_info(ApiKey.FETCH, 12, "app", FetchRequest(), str)
    assert faults.corrupts(info)
    assert not faults.corrupts(produce_info(0))
    assert faults.match_request(info) is None
    assert faults.match_batch(info, lambda rule: False) is None
    assert faults.near_misses(rule) == ["saw such requests, but none of them has a batch"]
    assert faults.match_batch(info, lambda rule: True) is rule
    assert not faults.corrupts(info)


def test_fault_can_be_disarmed_twice() -> None:
    faults = Faults()
    fault = new_arming(faults).fault("Fetch")
    fault.disarm()
    fault.disarm()
    with pytest.raises(ValueError, match="on_call"):
        fault.on_call(0)


def test_requests_that_arrive_during_a_report_do_not_fail_it() -> None:
    """The broker adds requests in its thread."""

    class BusyTarget(Target):
        def has_api(self, api: ApiKey) -> bool:
            faults.log.append(produce_info(1))
            faults.kit_apis.add(unused.pop())
            return super().has_api(api)

    unused = [key for key in ApiKey if key is not ApiKey.HEARTBEAT]
    faults = Faults()
    faults.match_request(produce_info(0))
    faults.kit_apis |= {ApiKey.PRODUCE, ApiKey.FETCH}
    found = faults.near_misses(Rule(BusyTarget(frozenset({ApiKey.PRODUCE}))))
    assert found == ["saw 1 x Produce 9, topic 'orders' from 'app'"]
    assert faults.near_misses(Rule(BusyTarget(frozenset({ApiKey.HEARTBEAT})))) == [
        "saw no such request"
    ]


def test_request_reaches_later_faults_after_its_hook_is_disarmed() -> None:
    faults = Faults()
    before, hook, later = (Rule(Target(), effect=effect) for effect in [*Effect][1:4])
    before.first = 2
    for rule in (before, hook, later):
        faults.arm(rule)
    info = produce_info(0)
    assert faults.match_request(info) is hook
    passed = faults.rules_until(hook)
    faults.disarm(hook)
    assert faults.match_after(info, passed) is later
