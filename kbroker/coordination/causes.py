"""Why groups rebalanced, in words."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from kbroker.coordinator import Event
from kbroker.partitions.history import clock_time

PREPARING = "PreparingRebalance"
REBALANCING = (PREPARING, "CompletingRebalance")


def rebalance_ended_by(past: Sequence[Event], event: Event) -> str | None:
    """Why the rebalance began that ends with this event of a group; None when it ends none."""
    if event.state in REBALANCING:
        return None
    steps = list(itertools.takewhile(lambda each: each.state in REBALANCING, reversed(past)))
    return cause_of(steps[-1]) if steps else None


def cause_of(event: Event) -> str:
    """The cause of a group's change, with the time that it took."""
    if event.since_ms is None:
        return event.cause
    return f"{event.cause} {clock_time(event.since_ms)}-{clock_time(event.at_ms)}"
