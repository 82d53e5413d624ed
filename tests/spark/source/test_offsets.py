"""Limits of batches, splits for tasks, and the offset format of checkpoints."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.spark.source.offsets import OffsetRange, from_json, limited, parse, split, to_json

RANGES = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 300)).map(lambda two: (two[0], sum(two))),
    max_size=6,
)


def test_offset_json_equals_format_of_connector() -> None:
    offsets = {("b", 1): 5, ("a", 10): 3, ("a", 2): 4}
    assert to_json(offsets) == {"a": {"2": 4, "10": 3}, "b": {"1": 5}}
    assert from_json(to_json(offsets)) == offsets


@pytest.mark.parametrize("text", ["3", '{"a": 3}', '{"a": {"0": "x"}}', '{"a": {"x": 1}}', "{"])
def test_invalid_offsets_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected an object|invalid literal|Expecting"):
        parse(text)


@given(RANGES, st.integers(1, 400))
def test_batch_limit_is_kept_without_starving_partitions(
    pairs: list[tuple[int, int]], rows: int
) -> None:
    start = {("t", number): pair[0] for number, pair in enumerate(pairs)}
    end = {("t", number): pair[1] for number, pair in enumerate(pairs)}

    found = limited(start, end, rows)

    taken = {each: found[each] - start[each] for each in found}
    assert all(start[each] <= found[each] <= end[each] for each in end)
    assert all(taken[each] for each in end if end[each] > start[each])
    assert sum(taken.values()) <= max(rows, 0) + len(pairs)
    assert limited(start, end, 10**9) == end


@given(RANGES, st.none() | st.integers(1, 20), st.none() | st.integers(1, 100))
def test_splits_cover_each_offset_once(
    pairs: list[tuple[int, int]], least: int | None, longest: int | None
) -> None:
    ranges = [OffsetRange("t", number, *pair) for number, pair in enumerate(pairs)]

    parts = split(ranges, least, longest)

    covered = [(part.partition, offset) for part in parts for offset in range(part.start, part.end)]
    wanted = [(each.partition, at) for each in ranges for at in range(each.start, each.end)]
    assert covered == wanted
    assert all(part.size <= longest for part in parts if longest)


def test_split_count_matches_requested_minimum_and_size() -> None:
    ranges = [OffsetRange("t", 0, 0, 900), OffsetRange("t", 1, 5, 105), OffsetRange("t", 2, 7, 7)]
    assert len(split(ranges, least=10)) == 10
    assert len(split(ranges, longest=300)) == 4
    assert split(ranges) == ranges[:2]
