"""Tests of the selection of a partition's records between two bounds."""

from __future__ import annotations

import pytest

from kbroker.client.offset_spec import END, START, Kind, OffsetSpec
from kbroker.pipelines.replay.window import Window

# Offsets and timestamps; the timestamps are not sorted.
ROWS = [(0, 100), (1, 200), (3, 150), (4, 300), (5, 250)]


def offset(value: int) -> OffsetSpec:
    return OffsetSpec(Kind.OFFSET, value)


def time(value: int) -> OffsetSpec:
    return OffsetSpec(Kind.TIME, value)


@pytest.mark.parametrize(
    ("first", "last", "inside"),
    [
        (START, END, [0, 1, 3, 4, 5]),
        (offset(1), offset(4), [1, 3]),
        (offset(2), END, [3, 4, 5]),
        (START, offset(9), [0, 1, 3, 4, 5]),
        # the first record that is not earlier, and all records after it
        (time(200), END, [1, 3, 4, 5]),
        (START, time(250), [0, 1, 3]),
        (time(150), time(300), [1, 3]),
        (time(999), END, []),
        (offset(4), offset(2), []),
    ],
)
def test_window_selects_records_between_bounds(
    first: OffsetSpec, last: OffsetSpec, inside: list[int]
) -> None:
    window = Window(first, last)
    assert [at for at, when in ROWS if window.has(at, when)] == inside
