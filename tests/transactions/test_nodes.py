"""Crashes and stops of one of three nodes, and kill -9 of all, in the middle of transactions.

Partitions, groups and transactional ids are spread over the nodes: with each of them goes a
coordinator of some and a leader of others. The clients see no more of it than retries.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .bank import MOMENTS as OF_ONE
from .checker import Minimum, judge, report
from .client import PLACES
from .nodes import MOMENTS, BankOfNodes, three_nodes

SHARE = 0.3
"""Of the rounds that a run on one node has: each takes longer."""
MISSES_PER_ROUND_MAX = 3


def plan(rounds: int, draw: random.Random) -> list[str]:
    """What each round ends with."""
    planned = [MOMENTS[number % len(MOMENTS)] for number in range(rounds)]
    draw.shuffle(planned)
    return planned


@pytest.mark.long
def test_one_output_for_every_input(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    rounds = max(len(MOMENTS), int(request.config.getoption("rounds") * SHARE))
    seed: int = request.config.getoption("seed")
    print(f"\nseed {seed}")
    planned = plan(rounds, random.Random(seed))
    missed = 0
    began = time.monotonic()
    with running(tmp_path, seed) as bank:
        for moment in planned:
            while not bank.round(moment):
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
    """Three nodes and the bank at work; all processes are gone at the end."""
    server = three_nodes(directory / "broker")
    try:
        server.start()
        server.await_in_sync(PLACES)
        bank = BankOfNodes(server, _made(directory / "history"), seed)
        try:
            yield bank
        finally:
            bank.close()
    finally:
        server.close()


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True)
    return directory


def test_moments_have_names_of_their_own() -> None:
    assert set(MOMENTS) - set(OF_ONE) == {"crash node", "stop node"}
