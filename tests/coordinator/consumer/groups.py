"""Helpers for tests of consumer groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kbroker.coordinator import ConsumerGroupSettings
from kbroker.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatResponse,
)

from ..harness import Harness

AT_ONCE = ConsumerGroupSettings(assignment_interval_ms=0)


def harness(**settings: Any) -> Harness:
    return Harness(consumer=replace(AT_ONCE, **settings))


def assignment_in(
    h: Harness, response: ConsumerGroupHeartbeatResponse
) -> dict[str, list[int]] | None:
    """Return the assignment of a response, or None if it contains none."""
    assert not response.error_code, response
    if response.assignment is None:
        return None
    return {
        h.topics.name_of(row.topic_id) or "?": row.partitions
        for row in response.assignment.topic_partitions
    }


ALL = {"orders": [0, 1, 2, 3]}


def members(h: Harness) -> dict[str, tuple[int, Mapping[str, list[int]]]]:
    """Return the epoch and the partitions of each described member."""
    return {
        row.member_id: (
            row.member_epoch,
            {each.topic_name: each.partitions for each in row.assignment.topic_partitions},
        )
        for row in h.describe_consumer().members
    }


SESSION_MS = AT_ONCE.session_timeout_ms
