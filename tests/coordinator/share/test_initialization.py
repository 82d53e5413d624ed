"""Initialization of share-partition states."""

from __future__ import annotations

from uuid import UUID

from kbroker.coordinator.share.initialization import PARTITIONS_AT_ONCE, RETRY_BACKOFF_MS

from .groups import ALL, assignment_in, harness, initialized_group, requested_partitions


def test_large_topic_is_initialized_in_parts() -> None:
    h = harness()
    h.create_topic("large", PARTITIONS_AT_ONCE + 500)
    h.share_beat("a", 0, ["large"])
    assert len(requested_partitions(h)["large"]) == PARTITIONS_AT_ONCE
    h.make_states()
    h.share_beat("a", 2)
    assert len(requested_partitions(h)["large"]) == 500
    h.make_states()
    h.share_beat("a", 3)
    row = h.describe_share().members[0]
    for _ in range(3):
        response = h.share_beat("a", h.describe_share().members[0].member_epoch)
    assert not response.error_code
    row = h.describe_share().members[0]
    assert len(row.assignment.topic_partitions[0].partitions) == PARTITIONS_AT_ONCE + 500


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
