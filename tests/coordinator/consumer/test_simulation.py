"""Random runs of one group with many consumers."""

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


@pytest.mark.slow
def test_random_runs_assign_every_partition_to_one_member() -> None:
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
    for event in ("NONE", "lost", "left", "away", "died", "topics"):
        assert work[event] > SEEDS / 4, work
    assert work["committed"] > SEEDS, work
    assert work["UNRELEASED_INSTANCE_ID"], work
    assert work["restarted"] > SEEDS / 2, work


def test_missing_holder_check_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_no_holder(self: ConsumerGroup, *place: Any) -> None:
        return None

    monkeypatch.setattr(ConsumerGroup, "holder", find_no_holder)
    with pytest.raises(Violation):
        run_all()


def test_missing_wait_for_revocation_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconciliation, "_owns_any", lambda owned, revoking: False)
    with pytest.raises(Violation):
        run_all()
