"""State batches, compared with a table of single offsets."""

from __future__ import annotations

import itertools
import random

import pytest

from kbroker.coordinator.share.state_batches import PersisterStateBatch, PersisterStateBatches

OFFSETS = 40


def table_of(batches: PersisterStateBatches) -> dict[int, tuple[int, int]]:
    return {
        offset: each.progress for each in batches for offset in range(each.first, each.last + 1)
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200))
def test_greater_progress_wins_for_each_offset(seed: int) -> None:
    rng = random.Random(seed)
    batches, expected = PersisterStateBatches(), dict[int, tuple[int, int]]()
    start = 0
    for _ in range(30):
        first = rng.randrange(OFFSETS)
        new = PersisterStateBatch(
            first, first + rng.randrange(8), rng.choice((0, 2, 4)), rng.randrange(4)
        )
        batches.add([new])
        for offset in range(new.first, new.last + 1):
            expected[offset] = max(new.progress, expected.get(offset, new.progress))
        if not rng.randrange(10):
            start = rng.randrange(start, OFFSETS)
            batches.forget_before(start)
            expected = {offset: row for offset, row in expected.items() if offset >= start}
        assert table_of(batches) == expected
        check_order(batches)


def check_order(batches: PersisterStateBatches) -> None:
    known = list(batches)
    for before, after in itertools.pairwise(known):
        assert before.last < after.first
        touch = before.last + 1 == after.first
        assert not (touch and before.progress == after.progress), "the ranges should be merged"


def test_adjacent_ranges_with_equal_state_are_merged() -> None:
    batches = PersisterStateBatches(
        PersisterStateBatch(offset, offset, 2, 1) for offset in range(1000)
    )
    assert list(batches) == [PersisterStateBatch(0, 999, 2, 1)]


def test_empty_range_is_ignored() -> None:
    assert not len(PersisterStateBatches([PersisterStateBatch(5, 4, 2, 1)]))
