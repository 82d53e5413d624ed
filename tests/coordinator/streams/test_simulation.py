"""Seeded runs of many members of one streams group."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kbroker.coordinator.streams.group import StreamsGroup, TasksTuple

from ..consumer.simulation import Violation
from .simulation import StreamsSimulation

SEEDS = 40
STEPS = 150


def run_all() -> None:
    for seed in range(SEEDS):
        StreamsSimulation(seed).run(STEPS)


@pytest.mark.slow
def test_no_task_has_two_members_and_all_are_worked_on_in_the_end() -> None:
    work: Counter[str] = Counter()
    for seed in range(SEEDS):
        simulation = StreamsSimulation(seed)
        try:
            simulation.run(STEPS)
            simulation.heal()
        except Violation as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        work += simulation.work
    assert work["FENCED_MEMBER_EPOCH"] >= 5, work
    for what in ("NONE", "lost", "left", "died", "topics", "made", "settings"):
        assert work[what] > SEEDS / 4, work
    assert work["committed"] > SEEDS, work
    assert work["restarted"] > SEEDS / 2, work


def test_a_planted_defect_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(self: StreamsGroup, *task: Any) -> None:
        return None

    monkeypatch.setattr(StreamsGroup, "active_process", nobody)
    with pytest.raises(Violation):
        run_all()


def test_a_coordinator_that_does_not_wait_for_revocation_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TasksTuple, "has_any", lambda self, revoking: False)
    with pytest.raises(Violation):
        run_all()
