"""Classification of rebalance causes into reasons."""

from __future__ import annotations

import pytest

from kbroker.coordinator import Event
from kbroker.coordinator_runtime.causes import OTHER, REASONS, reason_of, with_short_ids

AT = 1_700_000_000_000


def event(cause: str, state: str = "PreparingRebalance", generation: int = 1) -> Event:
    return Event(AT, "g", cause, generation, state)


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        ("member a joined", "joined"),
        ("member a joined again", "rejoined"),
        ("member a joined with new metadata", "metadata_changed"),
        ("member a changed its subscription", "metadata_changed"),
        ("member a changed its metadata", "metadata_changed"),
        ("topics have changed", "metadata_changed"),
        ("topics or group configs have changed", "metadata_changed"),
        ("member a (client reason: it was told to end) left", "left"),
        ("member a disconnected before it received its member ID", "left"),
        ("static member i rejoined as a", "returned"),
        ("member a missed heartbeats", "missed_heartbeats"),
        ("member a did not sync in time", "late"),
        ("something else", OTHER),
    ],
)
def test_cause_is_classified_by_reason(cause: str, reason: str) -> None:
    assert reason_of([], event(cause)) == reason
    assert reason == OTHER or reason in REASONS


def test_rebalance_is_counted_once() -> None:
    past = [event("member a joined", "Stable"), event("member b joined")]
    assert reason_of(past, event("member c missed heartbeats")) is None
    assert reason_of(past[:1], event("member c missed heartbeats")) == "missed_heartbeats"
    assert reason_of(past, event("leader a assigned 2 members", "Stable", 2)) is None


def test_consumer_group_epoch_counts_as_rebalance() -> None:
    joined = event("member a joined", "Assigning", 1)
    assert reason_of([], joined) == "joined"
    assert reason_of([joined], event("topics have changed", "Assigning", 2)) == "metadata_changed"
    assert reason_of([joined], event("all members are reconciled", "Stable", 1)) is None
    assert reason_of([joined], event("something of the same epoch", "Assigning", 1)) is None


def test_short_ids_keep_client_id_and_first_part_of_uuid() -> None:
    member = "my-app-1-571e2222-87b5-40b2-bebb-0a4085f67eb1"
    assert with_short_ids(f"member {member} joined") == "member my-app-1-571e2222 joined"
    assert with_short_ids("member a (client reason: 1-2-3) left") == (
        "member a (client reason: 1-2-3) left"
    )
