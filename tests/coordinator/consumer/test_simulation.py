"""Seeded runs of many consumers of one group."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kbroker.coordinator.consumer import reconciliation
from kbroker.coordinator.consumer.group import ConsumerGroup

from .simulation import ConsumerSimulation, Violation

SEEDS = 80
STEPS = 150


def run_all() -> None:
    for seed in range(SEEDS):
        ConsumerSimulation(seed).run(STEPS)


def test_no_partition_has_two_readers_and_all_are_read_in_the_end() -> None:
    work: Counter[str] = Counter()
    for seed in range(SEEDS):
        simulation = ConsumerSimulation(seed)
        try:
            simulation.run(STEPS)
            simulation.heal()
        except Violation as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        work += simulation.work
    assert work["FENCED_MEMBER_EPOCH"] >= 5, work
    for what in ("NONE", "lost", "left", "away", "died", "topics"):
        assert work[what] > SEEDS / 4, work
    assert work["committed"] > SEEDS, work
    assert work["UNRELEASED_INSTANCE_ID"], work
    assert work["restarted"] > SEEDS / 2, work


def test_a_planted_defect_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(self: ConsumerGroup, *place: Any) -> None:
        return None

    monkeypatch.setattr(ConsumerGroup, "holder", nobody)
    with pytest.raises(Violation):
        run_all()


def test_a_coordinator_that_does_not_wait_for_revocation_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconciliation, "_owns_any", lambda owned, revoking: False)
    with pytest.raises(Violation):
        run_all()
