"""Assignors of consumer groups: completeness, balance and stickiness."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

import pytest

from kbroker.coordinator.common.assignor import (
    GroupSpec,
    MemberSubscription,
    Targets,
    Topics,
    TopicShape,
    existing_subscriptions,
)
from kbroker.coordinator.common.target_assignments import run_to_end
from kbroker.coordinator.consumer.assignors import (
    ASSIGNORS,
    Assignor,
    assign_ranges,
    assign_uniformly,
)

A, B, C = (UUID(int=number) for number in (1, 2, 3))


def shared(assignor: Assignor, group: GroupSpec, topics: Topics) -> Targets:
    return run_to_end(assignor(group, topics))


def counts(targets: Targets) -> list[int]:
    return [sum(map(len, target.values())) for target in targets.values()]


def frozen(target: Mapping[UUID, set[int]]) -> dict[UUID, frozenset[int]]:
    return {topic_id: frozenset(partitions) for topic_id, partitions in target.items()}


def members(number: int, *topics: UUID) -> dict[str, MemberSubscription]:
    return {f"m{index:03}": MemberSubscription(frozenset(topics), {}) for index in range(number)}


def after(group: GroupSpec, targets: Targets) -> dict[str, MemberSubscription]:
    """Return the members with their targets as previous assignments."""
    return {
        each: member._replace(previous=frozen(targets.get(each, {})))
        for each, member in group.items()
    }


def moves(before: Targets, now: Targets) -> int:
    """Return the number of partitions that are revoked from remaining members."""
    return sum(
        len(partitions - now[each].get(topic_id, set()))
        for each, target in before.items()
        if each in now
        for topic_id, partitions in target.items()
    )


@dataclass
class Case:
    """A random group and its topics."""

    group: dict[str, MemberSubscription]
    topics: dict[UUID, TopicShape]


def random_case(rng: random.Random, *, alike: bool) -> Case:
    topics = {UUID(int=n + 1): TopicShape(rng.randint(1, 12)) for n in range(rng.randint(1, 5))}
    group = {}
    for number in range(rng.randint(1, 9)):
        read = topics.keys() if alike else rng.sample(list(topics), rng.randint(0, len(topics)))
        group[f"m{number}"] = MemberSubscription(frozenset(read), {})
    return Case(group, topics)


def check_complete(group: GroupSpec, topics: Topics, targets: Targets) -> None:
    """Check that each subscribed partition has one member, which subscribes to its topic."""
    assert targets.keys() == group.keys()
    given: Counter[tuple[UUID, int]] = Counter()
    for member_id, target in targets.items():
        assert target.keys() <= group[member_id].topics
        given.update((topic_id, each) for topic_id in target for each in target[topic_id])
    read = {topic_id for member in group.values() for topic_id in member.topics}
    wanted = {
        (topic_id, each)
        for topic_id in read & topics.keys()
        for each in range(topics[topic_id].partitions)
    }
    assert given == Counter(wanted)


@pytest.mark.parametrize("assignor", ASSIGNORS)
@pytest.mark.parametrize("alike", [True, False])
def test_every_partition_is_assigned_to_one_subscriber(assignor: str, alike: bool) -> None:
    rng = random.Random(7)
    for _ in range(200):
        case = random_case(rng, alike=alike)
        group: GroupSpec = case.group
        for _ in range(4):  # topics and members change
            targets = shared(ASSIGNORS[assignor], group, case.topics)
            check_complete(group, case.topics, targets)
            group = after(group, targets)
            leaver = rng.choice(list(group))
            group = {each: member for each, member in group.items() if each != leaver}
            read = frozenset(case.topics)
            group[f"n{rng.random()}"] = MemberSubscription(read, {})
            topic_id = rng.choice(list(case.topics))
            case.topics[topic_id] = TopicShape(case.topics[topic_id].partitions + 1)


def test_uniform_counts_differ_by_one_at_most_for_equal_subscriptions() -> None:
    rng = random.Random(1)
    for _ in range(300):
        case = random_case(rng, alike=True)
        group = {
            # Previous assignments are arbitrary and may overlap.
            each: member._replace(
                previous={
                    topic_id: frozenset(rng.sample(range(15), rng.randint(0, 15)))
                    for topic_id in case.topics
                }
            )
            for each, member in case.group.items()
        }
        targets = shared(assign_uniformly, group, case.topics)
        check_complete(group, case.topics, targets)
        assert max(counts(targets)) - min(counts(targets)) <= 1


def test_uniform_balance_cannot_be_improved_by_one_move() -> None:
    rng = random.Random(2)
    for _ in range(300):
        case = random_case(rng, alike=False)
        targets = shared(assign_uniformly, case.group, case.topics)
        size = {each: sum(map(len, target.values())) for each, target in targets.items()}
        for giver, target in targets.items():
            for topic_id in target:
                for taker, member in case.group.items():
                    if topic_id in member.topics:
                        assert size[giver] - size[taker] <= 1, (case, targets)


@pytest.mark.parametrize("alike", [True, False])
def test_unchanged_group_keeps_assignment(alike: bool) -> None:
    rng = random.Random(3)
    for _ in range(200):
        case = random_case(rng, alike=alike)
        for assignor in ASSIGNORS.values():
            before = shared(assignor, case.group, case.topics)
            second = shared(assignor, after(case.group, before), case.topics)
            assert second == before


def test_uniform_moves_only_partitions_of_new_member() -> None:
    for number in range(1, 9):
        group = members(number, A, B)
        topics = {A: TopicShape(20), B: TopicShape(13)}
        before = shared(assign_uniformly, group, topics)
        grown = after(group, before) | {"new": MemberSubscription(frozenset({A, B}), {})}
        now = shared(assign_uniformly, grown, topics)
        assert moves(before, now) == sum(map(len, now["new"].values())) == 33 // (number + 1)


def test_uniform_moves_no_partition_of_remaining_members_when_member_leaves() -> None:
    group = members(4, A)
    topics = {A: TopicShape(16)}
    before = shared(assign_uniformly, group, topics)
    left = {each: member for each, member in after(group, before).items() if each != "m002"}
    assert moves(before, shared(assign_uniformly, left, topics)) == 0


def test_uniform_prefers_members_in_rack_of_replica() -> None:
    racks = ("east", "west")
    topics = {A: TopicShape(12, [{racks[index % 2]} for index in range(12)])}
    group = {
        f"m{number}": MemberSubscription(frozenset({A}), {}, rack=racks[number % 2])
        for number in range(4)
    }
    targets = shared(assign_uniformly, group, topics)
    assert counts(targets) == [3, 3, 3, 3]
    for number in range(4):
        assert {index % 2 for index in targets[f"m{number}"][A]} == {number % 2}


def test_racks_do_not_affect_balance() -> None:
    topics = {A: TopicShape(12, [{"east"}] * 12)}
    group = {
        "m0": MemberSubscription(frozenset({A}), {}, rack="east"),
        "m1": MemberSubscription(frozenset({A}), {}, rack="west"),
        "m2": MemberSubscription(frozenset({A}), {}),
    }
    assert counts(shared(assign_uniformly, group, topics)) == [4, 4, 4]


def test_uniform_with_different_subscriptions_prefers_rack_among_least_loaded() -> None:
    topics = {A: TopicShape(2, [{"west"}, {"east"}]), B: TopicShape(1)}
    group = {
        "m0": MemberSubscription(frozenset({A}), {}, rack="east"),
        "m1": MemberSubscription(frozenset({A, B}), {}, rack="west"),
        "m2": MemberSubscription(frozenset({B}), {}),
    }
    targets = shared(assign_uniformly, group, topics)
    assert targets == {"m0": {A: {1}}, "m1": {A: {0}}, "m2": {B: {0}}}


def test_ranges_are_equal_for_topics_with_equal_subscribers() -> None:
    group = members(3, A, B)
    topics = {A: TopicShape(7), B: TopicShape(7)}
    targets = shared(assign_ranges, group, topics)
    assert targets == {
        "m000": {A: {0, 1, 2}, B: {0, 1, 2}},
        "m001": {A: {3, 4}, B: {3, 4}},
        "m002": {A: {5, 6}, B: {5, 6}},
    }


def test_ranges_follow_instance_ids_of_returning_members() -> None:
    def static(first: str, second: str) -> dict[str, MemberSubscription]:
        return {
            first: MemberSubscription(frozenset({A}), {}, instance_id="one"),
            second: MemberSubscription(frozenset({A}), {}, instance_id="two"),
        }

    topics = {A: TopicShape(2)}
    assert shared(assign_ranges, static("a", "b"), topics) == {"a": {A: {0}}, "b": {A: {1}}}
    assert shared(assign_ranges, static("z", "b"), topics) == {"z": {A: {0}}, "b": {A: {1}}}


def test_assignor_pieces_are_short() -> None:
    topics = {UUID(int=number): TopicShape(100) for number in range(100)}
    group = {
        f"m{number}": MemberSubscription(frozenset(list(topics)[number % 7 :]), {})
        for number in range(50)
    }
    for assignor in ASSIGNORS.values():
        pieces, work = 0, assignor(group, topics)
        began = time.perf_counter()
        try:
            while True:
                next(work)
                pieces += 1
        except StopIteration:
            seconds = time.perf_counter() - began
        # Average, because single pieces may be delayed by the machine.
        assert seconds / pieces < 0.005
        assert pieces >= 50


def test_ranges_assign_to_static_members_first() -> None:
    group = {
        "a": MemberSubscription(frozenset({A}), {}),
        "z": MemberSubscription(frozenset({A}), {}, instance_id="z"),
    }
    assert shared(assign_ranges, group, {A: TopicShape(3)}) == {"z": {A: {0, 1}}, "a": {A: {2}}}


def test_different_subscriptions_are_compared_in_pieces() -> None:
    """A thousand members may name ten thousand topics each."""
    group = {
        **members(50, A, B),
        **{f"n{n}": MemberSubscription(frozenset({B, C}), {}) for n in range(50)},
    }
    work = existing_subscriptions(group, {B: TopicShape(1)}.keys())
    assert sum(1 for _ in work) == 2, "one piece per different subscription"
    assert run_to_end(existing_subscriptions(group, {B: 0, C: 0}.keys())) == {
        frozenset({B}),
        frozenset({B, C}),
    }
