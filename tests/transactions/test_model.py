"""The checker against histories of the correct model and of models with planted bugs."""

from __future__ import annotations

import pytest

from . import model
from .checker import Kind, Minimum, check, judge, report
from .model import Model
from .simulation import Simulation

SEEDS = 40
BUG_SEEDS = 10
ENOUGH = Minimum(commits=20, aborts=5, broker_kills=1, client_kills=2)

# The anomalies that show each planted bug; there may be more.
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


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_correct_model_has_no_anomalies(seed: int) -> None:
    simulation = Simulation(Model, seed)
    history = simulation.run()
    verdict = judge(history, ENOUGH)
    assert verdict.findings == [], report(history, verdict)
    assert verdict.refusals == []
    assert simulation.is_drained


@pytest.mark.slow
@pytest.mark.parametrize("bug", SHOWN_BY, ids=lambda bug: bug.__name__)
def test_checker_detects_planted_bug_of_model(bug: type[Model]) -> None:
    findings = [check(Simulation(bug, seed).run()) for seed in range(BUG_SEEDS)]
    assert sum(map(bool, findings)) > BUG_SEEDS / 3, "most runs do not show the bug"
    assert {finding.kind for found in findings for finding in found} >= SHOWN_BY[bug]


def test_every_planted_bug_of_model_has_expected_anomalies() -> None:
    assert set(SHOWN_BY) == set(Model.__subclasses__())


def test_same_seed_gives_same_history() -> None:
    assert Simulation(Model, 7).run() == Simulation(Model, 7).run() != Simulation(Model, 8).run()
