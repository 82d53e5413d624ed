"""Random histories of logs, transactions, offsets, sessions and shares, compared with Kafka."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import ClassVar

import pytest
from harness.brokers import FixedQuorumBroker, KbrokerBroker
from harness.compare import Comparison
from harness.differences import HISTORY_DIFFERENCES
from harness.histories.areas import AREAS, PROPERTIES
from harness.histories.history import Area, Histories
from harness.histories.pair import Differs, Pair

CLIENT = "differential"
IS_LONG = "KBROKER_COMPAT_HISTORY_SEEDS" in os.environ
SEEDS = int(os.environ.get("KBROKER_COMPAT_HISTORY_SEEDS", "1"))
FIRST = int(os.environ.get("KBROKER_COMPAT_HISTORY_FIRST", "1"))
STEPS = 80 if IS_LONG else 40
# Chance of a step that kills both brokers, in every second history of a long run.
RESTARTS = 0.02


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    brokers = [
        KbrokerBroker(tmp_path_factory.mktemp("kbroker"), PROPERTIES),
        FixedQuorumBroker(tmp_path_factory.mktemp("apache"), PROPERTIES),
    ]
    try:
        for broker in brokers:
            broker.start()
        pair = Pair(brokers, Comparison(HISTORY_DIFFERENCES))
        yield pair
        pair.close()
    finally:
        for broker in brokers:
            broker.kill()


@pytest.mark.parametrize("area", AREAS)
def test_histories_have_same_responses(area: type[Area], pair: Pair) -> None:
    plain, restarted = Histories(area, pair), Histories(area, pair, RESTARTS)
    calls, values = pair.calls, pair.comparison.values
    failures = []
    for seed in range(FIRST, FIRST + SEEDS):
        histories = restarted if IS_LONG and seed % 2 == 0 else plain
        failures.append(histories.check(seed, STEPS))
    found = [each for each in failures if each is not None]
    print(
        f"\nfigures: {area.__name__}: {SEEDS} histories of {STEPS} steps, "
        f"{pair.calls - calls} calls, {pair.comparison.values - values} values compared, "
        f"{len(found)} differences"
    )
    assert not found, "\n\n".join(found)


# --- the histories themselves


class Planted(Area):
    """An area whose steps differ after a "first" and a "second" step."""

    weights: ClassVar[Mapping[str, int]] = {"first": 1, "second": 1, "other": 6}
    lost_by_kafka = frozenset({"second"})

    def begin(self) -> None:
        self.done: list[str] = []

    def first(self) -> None:
        self.done.append("first")

    def second(self) -> None:
        if "first" in self.done:
            raise Differs("planted")

    def other(self) -> None:
        self.done.append("other")


class NoPair:
    """A pair without brokers."""

    def begin(self) -> None:
        pass


def test_report_of_difference_has_fewest_steps() -> None:
    report = Histories(Planted, NoPair()).check(1, 60)  # type: ignore[arg-type]
    assert report == "seed 1, 2 steps (first, second):\nplanted"


def test_steps_are_equal_for_equal_seeds() -> None:
    histories = Histories(Planted, NoPair(), 0.1)  # type: ignore[arg-type]
    assert histories.steps(7, 50) == histories.steps(7, 50)
    assert histories.steps(7, 50) != histories.steps(8, 50)
    assert {step.name for step in histories.steps(7, 50)} == {"first", "other", "restart"}
