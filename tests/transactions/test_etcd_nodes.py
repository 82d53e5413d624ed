"""Transactions on three broker processes while brokers and etcd members fail."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest

from ..cluster.etcd import Etcd
from .checker import Minimum, judge, report
from .client import PLACES
from .etcd_nodes import ETCD_FAULTS, FAULTS, BankOverEtcd, three_processes

ROUNDS_PER_FAULT = 6
MISSES_PER_ROUND_MAX = 3


def plan(rounds: int, draw: random.Random) -> list[str]:
    """Return the fault that ends each round; at least one is a fault of etcd."""
    shuffled = draw.sample(list(FAULTS), len(FAULTS))
    planned = [shuffled[number % len(shuffled)] for number in range(rounds)]
    if not set(ETCD_FAULTS) & set(planned):
        planned[0] = draw.choice(ETCD_FAULTS)
    draw.shuffle(planned)
    return planned


@pytest.mark.long
def test_every_input_has_one_output_when_nodes_and_etcd_fail(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rounds: int = max(1, request.config.getoption("rounds") // ROUNDS_PER_FAULT)
    seed: int = request.config.getoption("seed")
    planned = plan(rounds, random.Random(seed))
    missed, began = 0, time.monotonic()
    directories = [tmp_path / name for name in ("etcd", "history")]
    for directory in directories:
        directory.mkdir()
    etcd = Etcd(directories[0], members=3)
    server = three_processes(tmp_path / "brokers", etcd)
    try:
        server.start()
        server.await_in_sync(PLACES)
        bank = BankOverEtcd(server, etcd, directories[1], seed)
        try:
            for fault in planned:
                print(f"{time.monotonic() - began:.0f} s: {fault}", flush=True)
                while not bank.round(fault):
                    missed += 1
                    assert missed <= MISSES_PER_ROUND_MAX * rounds, "too many rounds do not count"
            bank.finish()
        finally:
            bank.close()
    finally:
        server.close()
        etcd.stop()
    minutes = (time.monotonic() - began) / 60
    history = bank.history()
    verdict = judge(history, Minimum(commits=10 * rounds))
    kinds = ", ".join(f"{count} {each}" for each, count in Counter(planned).items())
    print(f"figures: seed {seed}, {rounds} rounds in {minutes:.1f} min ({kinds}), {missed} missed")
    print(
        f"figures: {verdict.had.commits} transactions committed, {verdict.had.aborts} aborted; "
        f"{bank.elections} elections; {len(history)} events; {len(verdict.findings)} anomalies"
    )
    assert verdict.findings == [], report(history, verdict)
    assert verdict.refusals == []
