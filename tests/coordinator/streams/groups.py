"""Helpers for tests of streams groups."""

from __future__ import annotations

from typing import Any

from kbroker.coordinator import StreamsGroupSettings

from ..harness import Harness

QUICK = StreamsGroupSettings(initial_rebalance_delay_ms=0, assignment_interval_ms=0)


def active_tasks(response: Any) -> dict[str, list[int]] | None:
    """Return the active tasks of a response, or None if it contains none."""
    assert not response.error_code, response
    if response.active_tasks is None:
        return None
    return {row.subtopology_id: row.partitions for row in response.active_tasks}


def group_state(h: Harness) -> str:
    return str(h.describe_streams().group_state)


def status_codes(response: Any) -> list[int]:
    """Return the status codes of a response."""
    return [each.status_code for each in response.status]
