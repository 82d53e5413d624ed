"""kill -9 of a broker, of producers and of transformers: exactly one output for every input.

The clients are processes with librdkafka; the broker is a process that keeps its files. What all of
them saw is checked at the end, see `checker`.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from ..kill.server import Server
from . import defects
from .bank import MOMENTS, SETTINGS, TOPICS, Bank, opened
from .checker import Kind, Minimum, check, judge, report

MISSES_PER_ROUND_MAX = 3
BEFORE_IT_BEGINS = 0.2
"""Seconds: a client takes longer to start."""


def plan(rounds: int, draw: random.Random) -> list[str]:
    """What each round ends with: the broker is killed in four of ten."""
    others = [moment for moment in MOMENTS if moment != "kill broker"]
    draw.shuffle(others)
    killed = max(1, rounds * 4 // 10)
    planned = [others[number % len(others)] for number in range(rounds - killed)]
    planned += ["kill broker"] * killed
    draw.shuffle(planned)
    return planned


def minimum(planned: list[str]) -> Minimum:
    """What a history of these rounds must have had."""
    kills = Counter(planned)
    return Minimum(
        commits=10 * len(planned),
        aborts=len(planned),
        broker_kills=kills["kill broker"],
        client_kills=kills["kill producer"] + kills["kill transformer"],
    )


@pytest.mark.sized
@pytest.mark.slow
def test_one_output_for_every_input(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    rounds: int = request.config.getoption("rounds")
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
    verdict = judge(history, minimum(planned))
    print(
        f"figures: seed {seed}, {rounds} rounds in {time.monotonic() - began:.0f} s, {missed} did "
        f"not count ({', '.join(f'{n} {moment}' for moment, n in Counter(planned).items())})"
    )
    print(
        f"figures: {verdict.had.commits} transactions committed, {verdict.had.aborts} aborted; "
        f"{verdict.had.broker_kills} kills of the broker and {verdict.had.client_kills} of clients "
        f"in transactions; {len(history)} events; {len(verdict.findings)} anomalies"
    )
    assert verdict.findings == [], report(history, verdict)
    assert verdict.refusals == []


@pytest.mark.long
def test_who_is_killed_last_has_a_successor_that_ends_its_transaction(tmp_path: Path) -> None:
    """It is not aborted by itself for a minute, and nobody reads beyond it until then."""
    with running(tmp_path, 1) as bank:
        bank.await_commits()
        assert bank.kill("producer-0")
        time.sleep(BEFORE_IT_BEGINS)  # others commit behind the transaction that is left open
        bank.finish()
    history = bank.history()
    verdict = judge(history, Minimum(client_kills=1))
    assert verdict.findings == [], report(history, verdict)
    assert verdict.refusals == []


@contextmanager
def running(directory: Path, seed: int, module: Sequence[str] = ("kbroker",)) -> Iterator[Bank]:
    """A broker and the bank at work; all processes are gone at the end."""
    server = Server(directory / "broker", SETTINGS, TOPICS, module)
    try:
        server.start()
        with opened(server, directory / "history", seed) as bank:
            yield bank
    finally:
        server.close()


# What has to be seen of a broken broker, and what brings it to light.

SHOWN_BY: dict[str, tuple[Kind, str]] = {
    "stable_offset_passes_open": (Kind.PASSED, "kill producer"),
    "aborted_list_empty": (Kind.ABORTED_READ, "kill producer"),
    "end_answered_before_markers": (Kind.UNMARKED, "kill producer"),
    "offsets_of_aborted": (Kind.OFFSETS_KEPT, "kill transformer"),
    "zombie_produces": (Kind.ZOMBIE, "replace producer"),
    "old_epoch_ends": (Kind.ZOMBIE, "replace producer"),
    "old_generation_commits": (Kind.TWICE, "stall transformer"),
}
DEFECT_SECONDS = 60
DEFECTS_PER_RUN, ROUNDS_FOR_ALL_DEFECTS = 1, 100


@pytest.mark.long
def test_broken_brokers_are_seen(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """One of them in a test run, all in a long one."""
    rounds: int = request.config.getoption("rounds")
    seed: int = request.config.getoption("seed")
    count = len(SHOWN_BY) if rounds >= ROUNDS_FOR_ALL_DEFECTS else DEFECTS_PER_RUN
    took = []
    for defect in random.Random(seed).sample(sorted(SHOWN_BY), count):
        began = time.monotonic()
        with running(tmp_path / defect, seed, (defects.__name__, defect)) as bank:
            assert is_seen(bank, *SHOWN_BY[defect]), f"{defect} was not seen, seed {seed}"
        took.append(f"{defect} in {time.monotonic() - began:.0f} s")
    print(f"\nfigures: broken brokers that were seen: {', '.join(took)}")


def is_seen(bank: Bank, kind: Kind, moment: str) -> bool:
    """Whether the checker finds that kind when the moment comes again and again."""
    deadline = time.monotonic() + DEFECT_SECONDS
    while time.monotonic() < deadline:
        bank.round(moment)
        bank.read_all()
        if kind in {finding.kind for finding in check(bank.history())}:
            return True
    return False


def test_every_defect_is_tried() -> None:
    assert set(defects.DEFECTS) == set(SHOWN_BY)
