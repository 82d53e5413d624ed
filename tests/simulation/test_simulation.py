"""Simulated clusters: many seeds, and that a seed is worth something."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from .world import simulate


def test_one_seed_one_run() -> None:
    first, again = simulate(7, nodes=1), simulate(7, nodes=1)
    assert (first.digest, first.work) == (again.digest, again.work)
    assert simulate(8, nodes=1).digest != first.digest


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_a_seed_is_the_same_run_in_every_process(hash_seed: str) -> None:
    command = [sys.executable, "-m", "tests.simulation", "--seed", "7", "--nodes", "1"]
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert f"digest {simulate(7, nodes=1).digest:08x}" in done.stdout


@pytest.mark.parametrize("seed", range(10))
def test_nothing_is_lost(seed: int) -> None:
    outcome = simulate(seed, nodes=1)
    assert outcome.work["acked"]
    assert outcome.counts
