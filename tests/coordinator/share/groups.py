"""Helpers for tests of share groups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kbroker.coordinator import ShareGroupSettings
from kbroker.protocol.messages.share_groups import ShareGroupHeartbeatResponse

from ..harness import Harness

AT_ONCE = ShareGroupSettings(assignment_interval_ms=0)


ALL = {"orders": [0, 1, 2, 3]}


def harness(**settings: Any) -> Harness:
    return Harness(share=replace(AT_ONCE, **settings))


def assignment_in(h: Harness, response: ShareGroupHeartbeatResponse) -> dict[str, list[int]] | None:
    """Return the assignment of a response, or None if it contains none."""
    assert not response.error_code, response
    if response.assignment is None:
        return None
    return {
        h.topics.name_of(row.topic_id) or "?": row.partitions
        for row in response.assignment.topic_partitions
    }


def requested_partitions(h: Harness) -> dict[str, list[int]]:
    """Return the partitions of pending initialization requests."""
    return {
        h.topics.name_of(topic_id) or "?": sorted(partitions)
        for each in h.to_make
        for topic_id, partitions in each.partitions.items()
    }


def initialized_group(**settings: Any) -> Harness:
    """Return a group with initialized states and member a, which has all partitions, in epoch 3."""
    h = harness(**settings)
    h.share_beat("a", 0)
    h.make_states()
    assert assignment_in(h, h.share_beat("a", 2)) == ALL
    return h


def empty_group() -> Harness:
    h = initialized_group()
    h.share_beat("a", -1)
    return h


SESSION_MS = AT_ONCE.session_timeout_ms
