"""Initialization of share-partition states."""

from __future__ import annotations

from uuid import UUID

import pytest

from kbroker.coordinator.share.initialization import (
    NO_OFFSET,
    PARTITIONS_AT_ONCE,
    RETRY_BACKOFF_MS,
)
from kbroker.protocol.share_state_log import SharePartitionKey

from .groups import (
    ALL,
    assignment_in,
    empty_group,
    harness,
    initialized_group,
    requested_partitions,
)


def test_large_topics_are_initialized_one_after_another() -> None:
    h = harness()
    for name in ("large", "larger"):
        h.create_topic(name, PARTITIONS_AT_ONCE + 500)
    h.share_beat("a", 0, ["large", "larger"])
    (first,) = requested_partitions(h)
    assert len(requested_partitions(h)[first]) == PARTITIONS_AT_ONCE + 500
    (made,) = h.make_states()
    assert not made.grown, "no topic is split"
    h.share_beat("a", 2)
    (second,) = requested_partitions(h)
    assert {first, second} == {"large", "larger"}
    h.make_states()
    for _ in range(3):
        response = h.share_beat("a", h.describe_share().members[0].member_epoch)
        assert not response.error_code
    rows = h.describe_share().members[0].assignment.topic_partitions
    assert [len(row.partitions) for row in rows] == [PARTITIONS_AT_ONCE + 500] * 2


@pytest.mark.parametrize("restarts", [False, True])
def test_new_partitions_of_known_topic_start_at_offset_0(restarts: bool) -> None:
    h = harness()
    h.share_beat("a", 0)
    (first,) = h.make_states()
    h.create_topic("orders", 6)
    h.share_beat("a", 2)
    if restarts:
        h = h.restarted()
    assert requested_partitions(h) == {"orders": [4, 5]}
    (second,) = h.make_states()
    share = SharePartitionKey("g", h.topics.topics["orders"][0], 4)
    assert (first.start_of(share), second.start_of(share)) == (NO_OFFSET, 0)


def test_partitions_of_topic_start_at_no_offset_after_their_states_are_deleted() -> None:
    h = empty_group()
    topic_id = h.topics.topics["orders"][0]
    h.settle(h.coordinator.share_offsets.delete("g", {topic_id: "orders"}))
    h.share_beat("a", 0)
    assert requested_partitions(h) == ALL
    (made,) = h.make_states()
    assert made.start_of(SharePartitionKey("g", topic_id, 0)) == NO_OFFSET


def test_failed_initialization_is_retried() -> None:
    h = harness()
    h.share_beat("a", 0)
    h.make_states(succeeded=False)
    assert requested_partitions(h) == {}
    h.share_beat("a", 2)
    assert requested_partitions(h) == ALL
    h.to_make.clear()
    h.sleep(RETRY_BACKOFF_MS - 1)
    h.share_beat("a", 2)
    assert requested_partitions(h) == {}, "the request may still be in progress"
    h.sleep(1)
    h.share_beat("a", 2)
    assert requested_partitions(h) == ALL


def test_pending_initialization_continues_after_coordinator_moved() -> None:
    h = harness()
    h.share_beat("a", 0)
    h = h.restarted()
    assert requested_partitions(h) == ALL
    h.make_states()
    assert assignment_in(h, h.share_beat("a", 2)) == ALL


def test_unexpected_initialization_result_is_ignored() -> None:
    h = initialized_group()
    before = list(h.log)
    topic_id = h.topics.id_of("audit") or UUID(int=0)
    h.settle(h.coordinator.share_states.record_outcome("g", {topic_id: {0}}, succeeded=True))
    h.settle(h.coordinator.share_states.record_outcome("nothing", {topic_id: {0}}, succeeded=True))
    assert h.log == before
