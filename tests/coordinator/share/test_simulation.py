"""Random runs of one share group with many members."""

from __future__ import annotations

from collections import Counter

import pytest

from kbroker.coordinator.share import initialization as share_making
from kbroker.coordinator.share.group import ShareGroup

from .simulation import ShareSimulation, Violation

SEEDS = 25
STEPS = 100


def run_all() -> Counter[str]:
    work: Counter[str] = Counter()
    for seed in range(SEEDS):
        simulation = ShareSimulation(seed)
        try:
            simulation.run(STEPS)
            simulation.heal()
        except Violation as error:
            raise Violation(f"seed {seed}: {error}") from error
        work += simulation.work
    return work


@pytest.mark.slow
def test_random_runs_assign_every_member_and_partition() -> None:
    work = run_all()
    for event in ("NONE", "lost", "left", "died", "topics", "made", "not made", "never made"):
        assert work[event] > SEEDS / 4, work
    for event in ("restarted", "refused", "operated", "GROUP_MAX_SIZE_REACHED"):
        assert work[event] > SEEDS / 10, work


def test_missing_reassignment_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShareGroup, "lacks_partitions", property(lambda group: False))
    with pytest.raises(Violation):
        run_all()


def test_missing_retry_of_initialization_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        share_making.ShareStateInitializations, "_must_repeat", lambda *anything: False
    )
    with pytest.raises(Violation):
        run_all()
