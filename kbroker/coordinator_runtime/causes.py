"""Causes of group rebalances: as text, and classified into a few reasons for metrics."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from kbroker.coordinator import Event
from kbroker.partitions.history import clock_time

PREPARING = "PreparingRebalance"
REBALANCING = (PREPARING, "CompletingRebalance")
# State of a consumer group whose target assignment is older than its epoch.
ASSIGNING = "Assigning"
OTHER = "other"
# Regular expressions for causes by reason, the label under which rebalances are counted. The first
# match in the cause counts.
REASONS = {
    "missed_heartbeats": "missed heartbeats",
    "late": "did not .* in time",
    "left": "left|disconnected",
    "rejoined": "joined again",
    "metadata_changed": (
        "joined with new metadata|changed its (?:subscription|metadata)"
        "|topics (?:or group configs )?have changed"
    ),
    "returned": "rejoined as",
    "joined": "joined",
}
_REASON = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in REASONS.items()))


# A random UUID, which a coordinator or client appends to the client ID in a member ID.
_UUID = re.compile(r"\b([0-9a-f]{8})-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b")


def with_short_ids(text: str) -> str:
    """Return a text for people in which member IDs have only the first part of their UUID."""
    return _UUID.sub(r"\1", text)


def cause_of_ended_rebalance(past: Sequence[Event], event: Event) -> str | None:
    """Return the cause of the rebalance that ends with this event, or None if none ends."""
    if event.state in REBALANCING:
        return None
    steps = list(itertools.takewhile(lambda each: each.state in REBALANCING, reversed(past)))
    return cause_of(steps[-1]) if steps else None


def cause_of(event: Event) -> str:
    """Return the cause of an event, with begin and end time if the event has a duration."""
    if event.since_ms is None:
        return event.cause
    return f"{event.cause} {clock_time(event.since_ms)}-{clock_time(event.at_ms)}"


def reason_of(past: Sequence[Event], event: Event) -> str | None:
    """Return the reason of the rebalance that begins with this event, or None if none begins.

    Client-supplied IDs in the cause may match another reason; the only effect is a wrong count.
    """
    if event.state == PREPARING:
        begins = not past or past[-1].state != PREPARING
    else:
        begins = event.state == ASSIGNING and (not past or past[-1].generation < event.generation)
    if not begins:
        return None
    found = _REASON.search(event.cause)
    return OTHER if found is None or found.lastgroup is None else found.lastgroup
