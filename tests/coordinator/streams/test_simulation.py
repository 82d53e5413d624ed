"""Random runs of one streams group with many members."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kbroker.coordinator.streams.tasks import TaskProcessIds, TasksTuple

from ..consumer.simulation import Violation
from .simulation import StreamsSimulation

SEEDS = 40
STEPS = 150


def run_all() -> None:
    for seed in range(SEEDS):
        StreamsSimulation(seed).run(STEPS)


@pytest.mark.slow
def test_random_runs_assign_every_task_to_one_member() -> None:
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
    for event in ("NONE", "lost", "left", "died", "topics", "made", "settings"):
        assert work[event] > SEEDS / 4, work
    assert work["committed"] > SEEDS, work
    for event in ("left temporarily", "came back"):
        assert work[event] > SEEDS / 4, work
    assert work["restarted"] > SEEDS / 2, work


def test_missing_active_process_check_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_no_process(self: TaskProcessIds, *task: Any) -> None:
        return None

    monkeypatch.setattr(TaskProcessIds, "active", find_no_process)
    with pytest.raises(Violation):
        run_all()


def test_missing_wait_for_revocation_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TasksTuple, "has_any", lambda self, revoking: False)
    with pytest.raises(Violation):
        run_all()
