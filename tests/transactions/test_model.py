"""Histories of a right model have no findings; those of models with a defect have."""

from __future__ import annotations

import pytest

from . import model
from .checker import Kind, Minimum, check, judge, report
from .model import Model
from .simulation import Simulation

SEEDS = 40
DEFECT_SEEDS = 10
ENOUGH = Minimum(commits=20, aborts=5, broker_kills=1, client_kills=2)

SHOWN_BY: dict[type[Model], set[Kind]] = {
    model.StableOffsetPassesOpen: {Kind.PASSED, Kind.DIRTY_READ},
    model.AbortedListEmpty: {Kind.ABORTED_READ},
    model.EndAnsweredBeforeMarkers: {Kind.UNMARKED},
    model.OffsetsOfAborted: {Kind.OFFSETS_KEPT, Kind.NEVER},
    model.OffsetsOfCommittedDropped: {Kind.OFFSETS_LOST, Kind.TWICE},
    model.PendingOffsetsShown: {Kind.OFFSETS_KEPT},
    model.ZombieProduces: {Kind.ZOMBIE},
    model.OldEpochEnds: {Kind.ABORTED_READ},
    model.OldGenerationCommits: {Kind.TWICE},
    model.RetriesDouble: {Kind.DUPLICATE},
    model.CrashLosesLast: {Kind.LOST, Kind.FELL},
    model.CrashTurnsMarkers: {Kind.LOST, Kind.FRACTURED},
}
"""What a broker with the defect is caught by; there may be more."""


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_right_model_has_no_findings(seed: int) -> None:
    simulation = Simulation(Model, seed)
    history = simulation.run()
    verdict = judge(history, ENOUGH)
    assert verdict.findings == [], report(history, verdict)
    assert verdict.refusals == []
    assert simulation.is_drained


@pytest.mark.slow
@pytest.mark.parametrize("defect", SHOWN_BY, ids=lambda defect: defect.__name__)
def test_a_defect_is_seen(defect: type[Model]) -> None:
    findings = [check(Simulation(defect, seed).run()) for seed in range(DEFECT_SEEDS)]
    assert sum(map(bool, findings)) > DEFECT_SEEDS / 3, "most runs do not see it"
    assert {finding.kind for found in findings for finding in found} >= SHOWN_BY[defect]


def test_every_defect_is_tried() -> None:
    assert set(SHOWN_BY) == set(Model.__subclasses__())


def test_a_seed_gives_the_same_history() -> None:
    assert Simulation(Model, 7).run() == Simulation(Model, 7).run() != Simulation(Model, 8).run()
