"""Simulated clusters: many seeds, that a seed is one run, and that a defect does not get through.

A seed that fails says how to repeat it. `tests/soak.toml` has a part with thousands of seeds.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from kbroker.handlers.rejected_batches import RejectedBatches
from kbroker.partitions.leader_state import LeaderState

from .clients import Violation
from .world import Outcome, simulate, simulate_aside

pytestmark = pytest.mark.slow

SEEDS = 20
SEEDS_EACH = 10
WORTHLESS_MAX = 2
DEFECT_SEEDS = 20


def test_one_seed_one_run() -> None:
    first, again = simulate(7), simulate(7)
    assert (first.digest, first.work) == (again.digest, again.work)
    assert simulate(8).digest != first.digest


def test_a_seed_is_the_same_run_in_every_process() -> None:
    outputs = set()
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-m", "tests.simulation", "--seed", "9"]
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        outputs.add(done.stdout)
    assert len(outputs) == 1


@pytest.fixture(scope="module")
def runs() -> Iterator[list[Future[list[Outcome]]]]:
    """All seeds, in groups, on as many cores as there are."""
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        yield [pool.submit(_simulate, first) for first in range(0, SEEDS, SEEDS_EACH)]
        pool.shutdown(cancel_futures=True)


def _simulate(first: int) -> list[Outcome]:
    return [simulate_aside(seed) for seed in range(first, first + SEEDS_EACH)]


@pytest.mark.parametrize("group", range(SEEDS // SEEDS_EACH))
def test_nothing_is_lost(group: int, runs: list[Future[list[Outcome]]]) -> None:
    """Seeds in which nothing took place that replication is about do not count."""
    work: Counter[str] = Counter()
    for outcome in runs[group].result():
        work["seeds that count" if outcome.counts else "worthless seeds"] += 1
        work.update(outcome.work)
    print(", ".join(f"{number} {what}" for what, number in sorted(work.items())))
    assert work["worthless seeds"] <= WORTHLESS_MAX
    needed = (
        "elections",
        "ISR changes",
        "truncations",
        "given away",
        "stop_store",
        "acked",
        "read",
    )
    for what in needed:
        assert work[what], f"these seeds are worth nothing: {work}"


def test_a_planted_defect_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def own_end(leader_state: LeaderState, own_end: int, log_end: int, now: float) -> int:
        return own_end

    monkeypatch.setattr(LeaderState, "high_watermark", own_end)
    with pytest.raises(BaseExceptionGroup) as raised:
        _simulate_all(DEFECT_SEEDS)
    assert raised.group_contains(Violation, depth=None)
    assert "python -m tests.simulation --seed" in "".join(raised.value.__notes__)


def test_batches_that_pass_a_refused_one_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RejectedBatches, "check", lambda *_: None)
    with pytest.raises(BaseExceptionGroup) as raised:
        _simulate_all(DEFECT_SEEDS)
    assert raised.group_contains(Violation, match="OUT_OF_ORDER_SEQUENCE_NUMBER", depth=None)


def _simulate_all(seeds: int) -> None:
    for seed in range(seeds):
        simulate(seed)
