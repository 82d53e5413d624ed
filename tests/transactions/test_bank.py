"""Exactly one output per input, with kill -9 of a broker, producers and transformers.

The clients are librdkafka processes; the broker is a process with files. `checker` checks the
recorded history at the end.
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
from .bank import FAULTS, SETTINGS, TOPICS, Bank, running_bank
from .checker import Kind, Minimum, check, judge, report

MISSES_PER_ROUND_MAX = 3
# Seconds; the start of a client takes longer.
BEFORE_START_SECONDS = 0.2


def plan(rounds: int, draw: random.Random) -> list[str]:
    """Return the fault that ends each round; the broker is killed in four of ten."""
    faults = [fault for fault in FAULTS if fault != "kill broker"]
    draw.shuffle(faults)
    killed = max(1, rounds * 4 // 10)
    planned = [faults[number % len(faults)] for number in range(rounds - killed)]
    planned += ["kill broker"] * killed
    draw.shuffle(planned)
    return planned


def minimum(planned: list[str]) -> Minimum:
    """Return the minimum counts of a history of these rounds."""
    kills = Counter(planned)
    return Minimum(
        commits=10 * len(planned),
        aborts=len(planned),
        broker_kills=kills["kill broker"],
        client_kills=kills["kill producer"] + kills["kill transformer"],
    )


@pytest.mark.sized
@pytest.mark.slow
def test_every_input_has_one_output_when_broker_and_clients_are_killed(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rounds: int = request.config.getoption("rounds")
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
    verdict = judge(history, minimum(planned))
    print(
        f"figures: seed {seed}, {rounds} rounds in {time.monotonic() - began:.0f} s, {missed} did "
        f"not count ({', '.join(f'{n} {fault}' for fault, n in Counter(planned).items())})"
    )
    print(
        f"figures: {verdict.had.commits} transactions committed, {verdict.had.aborts} aborted; "
        f"{verdict.had.broker_kills} kills of the broker and {verdict.had.client_kills} of clients "
        f"in transactions; {len(history)} events; {len(verdict.findings)} anomalies"
    )
    assert verdict.findings == [], report(history, verdict)
    assert verdict.refusals == []


@pytest.mark.long
def test_successor_of_last_killed_producer_ends_its_transaction(tmp_path: Path) -> None:
    """The transaction times out after a minute and blocks read_committed consumers until then."""
    with running(tmp_path, 1) as bank:
        bank.await_commits()
        assert bank.kill("producer-0")
        time.sleep(BEFORE_START_SECONDS)  # others commit after the transaction that is left open
        bank.finish()
    history = bank.history()
    verdict = judge(history, Minimum(client_kills=1))
    assert verdict.findings == [], report(history, verdict)
    assert verdict.refusals == []


@contextmanager
def running(directory: Path, seed: int, module: Sequence[str] = ("kbroker",)) -> Iterator[Bank]:
    """Run a broker and the bank; stop all processes at the end."""
    server = Server(directory / "broker", SETTINGS, TOPICS, module)
    try:
        server.start()
        with running_bank(server, directory / "history", seed) as bank:
            yield bank
    finally:
        server.close()


# The anomaly that shows each planted bug, and the fault that provokes it.

SHOWN_BY: dict[str, tuple[Kind, str]] = {
    "ignore_open_transactions_in_stable_offset": (Kind.PASSED, "kill producer"),
    "return_no_aborted_transactions": (Kind.ABORTED_READ, "kill producer"),
    "respond_before_markers": (Kind.UNMARKED, "kill producer"),
    "commit_offsets_of_aborted": (Kind.OFFSETS_KEPT, "kill transformer"),
    "accept_fenced_producers": (Kind.ZOMBIE, "replace producer"),
    "ignore_epoch_in_end_txn": (Kind.ZOMBIE, "replace producer"),
    "ignore_generation_in_txn_offset_commit": (Kind.TWICE, "stall transformer"),
}
BUG_SECONDS = 60
BUGS_PER_RUN, ROUNDS_FOR_ALL_BUGS = 1, 100


@pytest.mark.long
def test_checker_detects_planted_bugs_of_broker(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Try one planted bug in a test run and all of them in a soak test."""
    rounds: int = request.config.getoption("rounds")
    seed: int = request.config.getoption("seed")
    count = len(SHOWN_BY) if rounds >= ROUNDS_FOR_ALL_BUGS else BUGS_PER_RUN
    took = []
    for bug in random.Random(seed).sample(sorted(SHOWN_BY), count):
        began = time.monotonic()
        with running(tmp_path / bug, seed, (defects.__name__, bug)) as bank:
            assert is_detected(bank, *SHOWN_BY[bug]), f"{bug} was not seen, seed {seed}"
        took.append(f"{bug} in {time.monotonic() - began:.0f} s")
    print(f"\nfigures: broken brokers that were seen: {', '.join(took)}")


def is_detected(bank: Bank, kind: Kind, fault: str) -> bool:
    """Return True if the checker finds this anomaly while the fault is repeated."""
    deadline = time.monotonic() + BUG_SECONDS
    while time.monotonic() < deadline:
        bank.round(fault)
        bank.read_all()
        if kind in {finding.kind for finding in check(bank.history())}:
            return True
    return False


def test_every_planted_bug_of_broker_has_an_expected_anomaly() -> None:
    assert set(defects.BUGS) == set(SHOWN_BY)
