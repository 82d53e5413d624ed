"""Hashes of many records: distinct and repeated ones."""

from __future__ import annotations

import random

import pytest

from kbroker.pipelines.audit.distinct import Distinct
from kbroker.pipelines.audit.spill import PARTITIONS_MAX, Difference, Place, Spill


def hashes(count: int, seed: int = 0) -> list[int]:
    chance = random.Random(seed)
    return [chance.getrandbits(64) - (1 << 63) for _ in range(count)]


def test_few_distinct_hashes_are_counted_exactly() -> None:
    distinct = Distinct(kept=1000)
    for _ in range(3):
        distinct.add(hashes(999))
    assert distinct.is_exact
    assert distinct.count() == 999


@pytest.mark.parametrize("count", [5_000, 60_000])
def test_many_distinct_hashes_are_estimated(count: int) -> None:
    distinct = Distinct(kept=1000)
    everything = hashes(count)
    for at in range(0, count, 700):
        distinct.add(everything[at : at + 700])
        distinct.add(everything[at : at + 700])
    assert not distinct.is_exact
    assert abs(distinct.count() / count - 1) < 0.12  # four standard errors


@pytest.mark.parametrize("in_memory", [10, 1_000_000])
def test_repeated_hashes_are_found(in_memory: int) -> None:
    everything = hashes(500)
    with Spill(in_memory) as spill:
        for at in range(0, 500, 50):
            spill.add(0, list(range(at, at + 50)), everything[at : at + 50])
        assert list(spill.repeated()) == []
        spill.add(3, [7, 8], [everything[1], everything[1]])
        spill.add(4, [1], [everything[499]])
        found = sorted(spill.repeated())
    assert found == [
        Difference(1, 2, [Place(4, 1)]),
        Difference(1, 3, [Place(3, 7), Place(3, 8)]),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("in_memory", [10, 1_000_000])
def test_differences_between_spills_are_found(in_memory: int) -> None:
    everything = hashes(300)
    with Spill(in_memory) as left, Spill(in_memory) as right:
        left.add(0, list(range(300)), everything)
        right.add(1, list(range(300)), everything)
        assert list(left.differences(right, distinct=False)) == []
        left.add(0, [300], [42])
        right.add(1, [300, 301], [everything[0], 43])
        assert sorted(left.differences(right, distinct=False)) == [
            Difference(0, 1, [Place(1, 301)]),
            Difference(1, 0, [Place(0, 300)]),
            Difference(1, 2, [Place(1, 300)]),
        ]
        assert sorted(left.differences(right, distinct=True)) == [
            Difference(0, 1, [Place(1, 301)]),
            Difference(1, 0, [Place(0, 300)]),
        ]


def test_positions_beyond_limits_are_rejected() -> None:
    with Spill() as spill:
        spill.add(PARTITIONS_MAX - 1, [(1 << 48) - 1], [5])
        spill.add(0, [3], [5])
        assert list(spill.repeated()) == [
            Difference(1, 2, [Place(PARTITIONS_MAX - 1, (1 << 48) - 1)])
        ]
        with pytest.raises(ValueError, match="exceeds the limits"):
            spill.add(PARTITIONS_MAX, [0], [5])
