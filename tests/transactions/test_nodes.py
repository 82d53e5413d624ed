"""Transactions during crashes and stops of one of three nodes, and kill -9 of all.

Each node leads some partitions and coordinates some groups and transactional IDs. For the clients
its failure only causes retries.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .bank import FAULTS as SINGLE_NODE_FAULTS
from .checker import Minimum, judge, report
from .client import PLACES
from .nodes import FAULTS, BankOfNodes, three_nodes

# Share of the rounds of the one-node test: each round takes longer.
SHARE = 0.3
MISSES_PER_ROUND_MAX = 3


def plan(rounds: int, draw: random.Random) -> list[str]:
    """Return the fault that ends each round."""
    planned = [FAULTS[number % len(FAULTS)] for number in range(rounds)]
    draw.shuffle(planned)
    return planned


@pytest.mark.long
def test_every_input_has_one_output_when_nodes_crash_or_stop(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rounds = max(len(FAULTS), int(request.config.getoption("rounds") * SHARE))
    seed: int = request.config.getoption("seed")
    print(f"\nseed {seed}")
    planned = plan(rounds, random.Random(seed))
    missed = 0
    began = time.monotonic()
    with running(tmp_path, seed) as bank:
        for fault in planned:
            while not bank.round(fault):
                missed += 1
                assert missed <= MISSES_PER_ROUND_MAX * rounds, "too many rounds do not count"
        bank.finish()
    history = bank.history()
    verdict = judge(history, Minimum(commits=10 * rounds, aborts=rounds, broker_kills=rounds))
    print(
        f"figures: three nodes, seed {seed}, {rounds} rounds in {time.monotonic() - began:.0f} s, "
        f"{missed} did not count ({', '.join(f'{n} {each}' for each, n in Counter(planned).items())})"
    )
    print(
        f"figures: {verdict.had.commits} transactions committed, {verdict.had.aborts} aborted; "
        f"{bank.elections} elections; {len(history)} events; {len(verdict.findings)} anomalies"
    )
    assert verdict.findings == [], report(history, verdict)
    assert verdict.refusals == []


@contextmanager
def running(directory: Path, seed: int) -> Iterator[BankOfNodes]:
    """Run three nodes and the bank; stop all processes at the end."""
    server = three_nodes(directory / "broker")
    try:
        server.start()
        server.await_in_sync(PLACES)
        bank = BankOfNodes(server, _create(directory / "history"), seed)
        try:
            yield bank
        finally:
            bank.close()
    finally:
        server.close()


def _create(directory: Path) -> Path:
    directory.mkdir(parents=True)
    return directory


def test_faults_of_nodes_differ_from_faults_of_one_node() -> None:
    assert set(FAULTS) - set(SINGLE_NODE_FAULTS) == {"crash node", "stop node"}
