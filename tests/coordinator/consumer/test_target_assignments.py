"""Target assignments of consumer groups."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.coordinator import ClientInfo, Pieces
from kbroker.coordinator.consumer.group import ConsumerGroup, ConsumerGroupMember
from kbroker.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
)

from ..harness import Harness
from .groups import assignment_in, harness


def test_most_common_assignor_is_used() -> None:
    h = harness()
    h.beat("a", 0)
    assert h.describe_consumer().assignor_name == "uniform"
    h.beat("b", 0, server_assignor="range")
    assert h.describe_consumer().assignor_name == "range"


def test_change_of_preferred_assignor_bumps_group_epoch() -> None:
    """Kafka 4.4 bumps the epoch; before, the new assignor waited for another change."""
    h = harness()
    h.beat("a", 0)
    for assignor, epoch in (("range", 3), ("range", 3), ("uniform", 4)):
        member_epoch = h.describe_consumer().members[0].member_epoch
        h.beat("a", member_epoch, server_assignor=assignor)
        assert h.describe_consumer().group_epoch == epoch


def test_preferred_default_assignor_keeps_group_epoch() -> None:
    h = harness()
    assert h.beat("a", 0).member_epoch == 2
    assert h.beat("a", 2, server_assignor="uniform").member_epoch == 2


def test_pattern_over_many_topics_is_resolved_in_background() -> None:
    h = harness()
    for number in range(2_100):
        h.topics.create(f"t{number}", 1)
    response = h.beat("a", 0, subscribed_topic_regex="t1.?")
    assert (response.member_epoch, assignment_in(h, response)) == (1, {})
    found = assignment_in(h, h.beat("a", 1))
    assert found == {f"t{each}": [0] for each in (1, *range(10, 20))}


def test_many_partitions_are_assigned_in_background() -> None:
    h = harness()
    h.create_topic("large", 2_500)
    response = h.beat("a", 0, topics=["large"])
    assert (response.member_epoch, assignment_in(h, response)) == (1, {})
    response = h.beat("a", 1)
    assert (response.member_epoch, assignment_in(h, response)) == (2, {"large": list(range(2_500))})
    assert assignment_in(h, h.beat("b", 0, topics=["large"])) == {}
    assert len((assignment_in(h, h.beat("a", 2)) or {})["large"]) == 1_250
    h.beat("a", 2, owned={})
    assert len((assignment_in(h, h.beat("b", 2)) or {})["large"]) == 1_250
    assert h.restarted().describe_consumer() == h.describe_consumer()


def test_many_different_subscriptions_are_assigned_in_background() -> None:
    """The topics of each subscription count, not only the partitions of the group."""
    h = harness()
    names = [f"t{number}" for number in range(400)]
    for name in names:
        h.topics.create(name, 1)
    epochs = []
    for number in range(8):
        response = h.beat(f"m{number}", 0, topics=names[number:])
        epochs.append((response.member_epoch, h.describe_consumer().group_epoch))
    assert epochs[0] == (2, 2)
    assert epochs[-1] == (8, 9)
    assert h.describe_consumer().assignment_epoch == 9


def test_removal_of_member_does_not_read_subscriptions_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The members of a large group may expire one after another."""
    h = harness()
    h.create_topic("t", 1)
    for number in range(20):
        h.beat(f"m{number}", 0, topics=["t", f"missing{number}"])
    read: list[str] = []
    known = ConsumerGroup.topics_of

    def topics_of(group: ConsumerGroup, member: ConsumerGroupMember, resolved: Any) -> Any:
        read.append(member.id)
        return known(group, member, resolved)

    monkeypatch.setattr(ConsumerGroup, "topics_of", topics_of)
    h.beat("m0", -1)
    assert len(read) < 3
    assert len(h.describe_consumer().members) == 19


def subscribe_to_large_topic(h: Harness) -> Pieces:
    """Let member a subscribe to a large topic, and return the rest of the work on its target."""
    h.create_topic("large", 2_500)
    epoch = h.beat("a", 0).member_epoch
    request = ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="a", member_epoch=epoch, subscribed_topic_names=["large"]
    )
    result = h.coordinator.consumer_heartbeat(request, ClientInfo("c", "/"), h.now, 1, None)
    work, result.work = result.work, None
    h.settle(result)
    assert work is not None
    h.settle(next(piece for piece in work if piece is not None))
    return work


def test_group_emptied_while_targets_are_stored_keeps_its_assignment_epoch() -> None:
    h = harness()
    work = subscribe_to_large_topic(h)
    h.beat("a", -1)
    assert not any(work), "no more records are stored"
    row = h.describe_consumer()
    assert (row.group_epoch, row.assignment_epoch) == (4, 4)
    h.beat("a", 0, topics=["large"])
    assert assignment_in(h, h.beat("a", 4)) == {"large": list(range(2_500))}


def test_group_deleted_while_targets_are_stored_stays_deleted() -> None:
    h = harness()
    work = subscribe_to_large_topic(h)
    h.beat("a", -1)
    assert h.delete_groups("g") == {"g": 0}
    assert not any(work), "no more records are stored"
    for shard in (h, h.restarted()):
        assert list(shard.coordinator.list_groups()) == []


def test_uniform_wins_tie_of_assignors() -> None:
    h = harness(assignors=("range", "uniform"))
    h.beat("a", 0, server_assignor="range")
    h.beat("b", 0, server_assignor="uniform")
    assert h.describe_consumer().assignor_name == "uniform"
