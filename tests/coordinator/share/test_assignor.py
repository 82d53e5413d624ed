"""Assignor of share groups: completeness, balance and stickiness."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from uuid import UUID

import pytest

from kbroker.coordinator.common.assignor import MemberSubscription
from kbroker.coordinator.common.modern_group import NO_TARGET, Target
from kbroker.coordinator.common.target_assignments import run_to_end
from kbroker.coordinator.share.assignor import assign_simply

A, B = UUID(int=1), UUID(int=2)


def shares(
    topics: Mapping[UUID, int],
    members: Mapping[str, set[UUID]],
    had: Mapping[str, Target] | None = None,
) -> dict[str, dict[UUID, set[int]]]:
    group = {
        name: MemberSubscription(frozenset(reads), (had or {}).get(name, NO_TARGET))
        for name, reads in members.items()
    }
    return run_to_end(assign_simply(group, {each: range(count) for each, count in topics.items()}))


def counts(targets: Mapping[str, Target]) -> list[int]:
    return sorted(sum(map(len, target.values())) for target in targets.values())


def holders(targets: Mapping[str, Target]) -> Counter[tuple[UUID, int]]:
    return Counter(
        (topic_id, each)
        for target in targets.values()
        for topic_id, partitions in target.items()
        for each in partitions
    )


@pytest.mark.parametrize(
    ("partitions", "members", "wanted"),
    [
        (4, 1, [4]),
        (4, 2, [2, 2]),
        (5, 2, [2, 3]),
        (4, 4, [1, 1, 1, 1]),
        (4, 5, [1, 1, 2, 2, 2]),
        (4, 8, [1] * 8),
        (1, 3, [1, 1, 1]),
        (2, 3, [1, 1, 2]),
        (0, 3, [0, 0, 0]),
    ],
)
def test_partition_counts_are_balanced(partitions: int, members: int, wanted: list[int]) -> None:
    found = shares({A: partitions}, {f"m{index}": {A} for index in range(members)})
    assert counts(found) == wanted
    assert len(holders(found)) == partitions


def test_members_with_equal_subscriptions_share_all_topics() -> None:
    found = shares({A: 1, B: 3}, {"x": {A, B}, "y": {A, B}})
    assert counts(found) == [2, 2]
    assert holders(found) == {(A, 0): 1, (B, 0): 1, (B, 1): 1, (B, 2): 1}


def test_topics_are_assigned_separately_for_different_subscriptions() -> None:
    found = shares({A: 1, B: 3}, {"x": {A}, "y": {A, B}, "z": set()})
    assert found == {"x": {A: {0}}, "y": {A: {0}, B: {0, 1, 2}}, "z": {}}


def test_members_keep_their_partitions() -> None:
    members = {name: {A} for name in "xyz"}
    before = shares({A: 6}, members)
    assert shares({A: 6}, members, before) == before
    fewer = shares({A: 6}, {"x": {A}, "y": {A}}, before)
    assert all(before[name][A] <= fewer[name][A] for name in "xy")
    more = shares({A: 6}, members | {"new": {A}}, before)
    assert counts(more) == [1, 1, 2, 2]
    assert all(more[name][A] <= before[name][A] for name in "xyz")


def test_unassignable_partitions_are_revoked() -> None:
    assert shares({A: 2}, {"x": {A}}, {"x": {A: frozenset({1, 7}), B: frozenset({0})}}) == {
        "x": {A: {0, 1}}
    }


@pytest.mark.parametrize("seed", range(30))
def test_random_changes_leave_no_member_or_partition_out(seed: int) -> None:
    rng = random.Random(seed)
    topics = {UUID(int=number): rng.randint(0, 7) for number in range(3)}
    found: dict[str, dict[UUID, set[int]]] = {}
    for _ in range(10):
        topics[rng.choice(list(topics))] = rng.randint(0, 7)
        members = {
            f"m{index}": set(rng.sample(list(topics), rng.randint(1, 3)))
            for index in range(rng.randint(1, 9))
        }
        found = shares(topics, members, found)
        read = {each for reads in members.values() for each in reads}
        assert set(holders(found)) == {
            (topic_id, each) for topic_id in read for each in range(topics[topic_id])
        }
        for name, reads in members.items():
            assert found[name].keys() <= reads
            assert bool(found[name]) == any(topics[each] for each in reads)
