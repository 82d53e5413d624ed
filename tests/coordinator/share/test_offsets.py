"""Alter and delete operations on the offsets of share groups."""

from __future__ import annotations

from uuid import UUID

from kbroker.coordinator import Result
from kbroker.coordinator.share.group import SharedTopic
from kbroker.coordinator.share.offsets import ShareStateRequests
from kbroker.protocol.errors import ErrorCode

from ..harness import Harness
from .groups import empty_group, harness, initialized_group, requested_partitions


def state_requests_of(result: Result[ShareStateRequests]) -> ShareStateRequests:
    """Return the requests for the share coordinators."""
    assert isinstance(result.response, ShareStateRequests)
    return result.response


def topic_of(h: Harness, *partitions: int) -> dict[UUID, SharedTopic]:
    topic_id = h.topics.id_of("orders")
    assert topic_id is not None
    return {topic_id: SharedTopic("orders", frozenset(partitions))}


def test_offsets_of_missing_group_may_be_altered() -> None:
    h = harness()
    result = h.coordinator.share_offsets.alter("g", topic_of(h, 1), h.now)
    h.settle(result)
    assert state_requests_of(result).epoch == 1
    h.settle(
        h.coordinator.share_states.record_outcome(
            "g", state_requests_of(result).partitions, succeeded=True
        )
    )
    assert [share.partition for share in h.coordinator.share_offsets.partitions("g")] == [1]
    assert h.describe_share().group_state == "Empty"
    h.share_beat("a", 0)
    assert requested_partitions(h) == {"orders": [0, 2, 3]}


def test_offsets_of_group_with_members_cannot_be_altered() -> None:
    h = initialized_group()
    for result in (
        h.coordinator.share_offsets.alter("g", topic_of(h, 1), h.now),
        h.coordinator.share_offsets.delete("g", {}),
        h.coordinator.share_offsets.delete_all("g"),
    ):
        assert state_requests_of(result).error_code == ErrorCode.NON_EMPTY_GROUP
        assert not result.records
    assert h.delete_groups("g") == {"g": ErrorCode.NON_EMPTY_GROUP}


def test_deleting_offsets_removes_topic_from_group() -> None:
    h = empty_group()
    (topic_id,) = topic_of(h)
    result = h.coordinator.share_offsets.delete("g", {topic_id: "orders"})
    h.settle(result)
    assert state_requests_of(result).partitions == {topic_id: {0, 1, 2, 3}}
    assert list(h.coordinator.share_offsets.partitions("g")) == []
    repeated = h.coordinator.share_offsets.delete("g", {topic_id: "orders"})
    assert state_requests_of(repeated).partitions == {topic_id: {0, 1, 2, 3}}, (
        "the deletion is not confirmed yet"
    )
    h.settle(h.coordinator.share_offsets.record_deletion("g", [topic_id]))
    last = h.coordinator.share_offsets.delete("g", {topic_id: "orders"})
    assert not state_requests_of(last).partitions


def test_deleting_group_deletes_its_states() -> None:
    h = empty_group()
    result = h.coordinator.share_offsets.delete_all("g")
    h.settle(result)
    assert {*state_requests_of(result).partitions} == {*topic_of(h)}
    assert h.delete_groups("g") == {"g": 0}
    assert not h.coordinator.has_share_group("g")
    assert h.restarted().describe_share().error_code == ErrorCode.GROUP_ID_NOT_FOUND
