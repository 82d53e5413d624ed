"""Simulated clusters: runs of many seeds, their determinism, and detection of planted bugs.

A failed seed prints the command that repeats it. The soak test `simulation` runs more seeds.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from kbroker.handlers.rejected_batches import RejectedBatches
from kbroker.partitions.leader_state import LeaderState

from .clients import Violation
from .world import simulate

pytestmark = pytest.mark.slow

SEEDS_EACH = 10
UNEVENTFUL_MAX = 2
PLANTED_BUG_SEEDS = 20


@pytest.mark.long
def test_same_seed_gives_same_run() -> None:
    first, second = simulate(7), simulate(7)
    assert (first.digest, first.work) == (second.digest, second.work)
    assert simulate(8).digest != first.digest


def test_same_seed_gives_same_run_in_every_process() -> None:
    outputs = set()
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-m", "tests.simulation", "--seed", "9"]
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        outputs.add(done.stdout)
    assert len(outputs) == 1


@pytest.mark.parametrize("first", [0, pytest.param(SEEDS_EACH, marks=pytest.mark.long)])
def test_seeds_lose_no_acknowledged_records(first: int) -> None:
    """A seed without an election, truncation or ISR change does not count."""
    work: Counter[str] = Counter()
    for seed in range(first, first + SEEDS_EACH):
        outcome = simulate(seed)
        work["seeds that count" if outcome.counts else "worthless seeds"] += 1
        work.update(outcome.work)
    print(", ".join(f"{number} {name}" for name, number in sorted(work.items())))
    assert work["worthless seeds"] <= UNEVENTFUL_MAX
    needed = (
        "elections",
        "ISR changes",
        "truncations",
        "given away",
        "stop_store",
        "acked",
        "read",
    )
    for name in needed:
        assert work[name], f"these seeds never exercised {name}: {work}"


def test_simulator_detects_too_high_high_watermark(monkeypatch: pytest.MonkeyPatch) -> None:
    def leader_end(leader_state: LeaderState, own_end: int, log_end: int, now: float) -> int:
        return own_end

    monkeypatch.setattr(LeaderState, "high_watermark", leader_end)
    with pytest.raises(BaseExceptionGroup) as raised:
        _simulate_all()
    assert raised.group_contains(Violation, depth=None)
    assert "python -m tests.simulation --seed" in "".join(raised.value.__notes__)


def test_simulator_detects_batches_stored_after_a_rejected_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RejectedBatches, "check", lambda *_: None)
    with pytest.raises(BaseExceptionGroup) as raised:
        _simulate_all(first=7)  # seeds 0 to 6 do not find it
    assert raised.group_contains(Violation, match="OUT_OF_ORDER_SEQUENCE_NUMBER", depth=None)


def _simulate_all(first: int = 0) -> None:
    for seed in range(first, first + PLANTED_BUG_SEEDS):
        simulate(seed)
