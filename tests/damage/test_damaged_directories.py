"""Randomly damaged data directories: a broker serves acknowledged records or names the damage.

`--damages` sets the number of cases, and `--seed` determines them.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
import trio

from kbroker.partitions.log_opening import LogOpening
from kbroker.storage.partition_directories import PartitionDirectories

from .cases import Damage, replace_by_other_cluster, run_case, swap
from .directories import Templates, make_templates


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Templates:
    return trio.run(make_templates, tmp_path_factory.mktemp("templates"))


@pytest.mark.sized
@pytest.mark.slow
async def test_damaged_directory_is_served_exactly_or_named(
    templates: Templates, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    cases, first = pytestconfig.getoption("--damages"), pytestconfig.getoption("--seed")
    results: Counter[str] = Counter()
    wrong = []
    for seed in range(first, first + cases):
        outcome = await run_case(templates, tmp_path, seed)
        results[outcome.result] += 1
        if outcome.faults:
            wrong.append(f"{outcome.case}: {'; '.join(outcome.faults)}")
            print(wrong[-1], flush=True)
    print(
        f"figures: {cases} damaged directories from seed {first}: {dict(results)}, {len(wrong)} wrong"
    )
    assert not wrong, "\n".join(wrong)
    assert results.total() == cases


def first_segment(data: Path, _: random.Random, __: Templates) -> str:
    path = min((data / "many-1").glob("*.log"))
    path.unlink()
    return f"remove {path.name} of many-1"


def swapped_partitions(data: Path, _: random.Random, __: Templates) -> str:
    swap(data / "many-0", data / "many-1")
    return "swap many-0 and many-1"


@pytest.mark.slow
async def test_undamaged_directories_are_served_exactly(
    templates: Templates, tmp_path: Path
) -> None:
    for seed in range(3):
        outcome = await run_case(templates, tmp_path, seed, [lambda *_: "nothing"])
        assert outcome[1:] == ("served", []), outcome


def plant_unchecked_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.storage.recovery._check_log_start", lambda *_: None)


def plant_silent_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delete directories with another topic ID silently."""
    monkeypatch.setattr(
        LogOpening,
        "_move_aside",
        lambda self, topic, index, error: self._logs.move_aside([(topic.name, index)]) and None,
    )


def plant_unchecked_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionDirectories, "check_identity", lambda *_, **__: None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "damage"),
    [
        (plant_unchecked_start, first_segment),
        (plant_silent_deletion, replace_by_other_cluster),
        (plant_unchecked_identity, swapped_partitions),
    ],
)
async def test_planted_silent_loss_is_reported(
    templates: Templates,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plant: object,
    damage: Damage,
) -> None:
    assert callable(plant)
    correct = await run_case(templates, tmp_path, 1, [damage])
    assert (correct.result, correct.faults) == ("named", [])
    plant(monkeypatch)
    outcome = await run_case(templates, tmp_path, 1, [damage])
    assert "differs, and no warning names it" in " ".join(outcome.faults), outcome
