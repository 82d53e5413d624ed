"""Why groups rebalanced, in words, and as one of few reasons that can be counted."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from kbroker.coordinator import Event
from kbroker.partitions.history import clock_time

PREPARING = "PreparingRebalance"
REBALANCING = (PREPARING, "CompletingRebalance")
ASSIGNING = "Assigning"
"""Of a consumer group: an epoch whose assignment is still to be made."""
OTHER = "other"
REASONS = {
    "missed_heartbeats": "missed heartbeats",
    "late": "did not .* in time",
    "left": "left|disconnected",
    "rejoined": "joined again",
    "metadata_changed": "joined with new metadata|changed its subscription|topics have changed",
    "returned": "rejoined as",
    "joined": "joined",
}
"""What a cause says, by the name under which rebalances are counted; the first one that fits counts."""
_REASON = re.compile("|".join(f"(?P<{name}>{words})" for name, words in REASONS.items()))


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


def reason_of(past: Sequence[Event], event: Event) -> str | None:
    """Under which reason a rebalance is counted that began with this event; None when none did.

    What a client calls itself may look like another reason: it can do no more than be miscounted.
    """
    if event.state == PREPARING:
        begins = not past or past[-1].state != PREPARING
    else:
        begins = event.state == ASSIGNING and (not past or past[-1].generation < event.generation)
    if not begins:
        return None
    found = _REASON.search(event.cause)
    return OTHER if found is None or found.lastgroup is None else found.lastgroup
