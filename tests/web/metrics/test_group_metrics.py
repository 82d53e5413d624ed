"""Metrics of consumer groups."""

from __future__ import annotations

from kbroker.runtime.time_slices import DutyCycle
from kbroker.web.metrics.group_metrics import GroupMetrics

from ...wire import connected
from ..client import served
from .nodes import commit, create


async def test_group_series_are_limited() -> None:
    async with served() as (broker, _), connected(broker.endpoint) as wire:
        await create(broker, "orders", 3)
        for index in range(4):
            await commit(wire, f"group-{index}", "orders", 0, 0)
        groups = GroupMetrics(broker.node, rows_max=3)
        await groups.collect(DutyCycle())
        assert sum(len(each.lines) for each in groups.families()) <= 3 * 4
        assert groups.dropped_series == 3, "a row of the second group, and two groups"
