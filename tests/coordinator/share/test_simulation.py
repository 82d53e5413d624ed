"""Seeded runs of many members of one share group."""

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


def test_everybody_has_a_share_and_every_partition_somebody_in_the_end() -> None:
    work = run_all()
    for what in ("NONE", "lost", "left", "died", "topics", "made", "not made", "never made"):
        assert work[what] > SEEDS / 4, work
    for what in ("restarted", "refused", "operated", "GROUP_MAX_SIZE_REACHED"):
        assert work[what] > SEEDS / 10, work


def test_partitions_that_nobody_gets_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShareGroup, "lacks_partitions", property(lambda group: False))
    with pytest.raises(Violation):
        run_all()


def test_a_state_that_nobody_asks_for_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_making.ShareStateInitializations, "_is_late", lambda *anything: False)
    with pytest.raises(Violation):
        run_all()
