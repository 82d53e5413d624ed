"""Offsets that are probably times."""

from __future__ import annotations

import pytest

from kbroker.client.offset_spec import LooksLikeTime, check_offsets

TIME_MS = 1_700_000_000_000


def test_time_in_place_of_offset_is_rejected() -> None:
    offsets = {("t", 0): TIME_MS, ("t", 1): TIME_MS, ("t", 2): 5}
    with pytest.raises(
        LooksLikeTime, match=r"end of the log \(9\), .*time 2023-11-14 22:13:20 UTC"
    ):
        check_offsets(offsets, {("t", 0): 7, ("t", 1): 9, ("t", 2): 5})


@pytest.mark.parametrize("offset", [0, 77, 10**12 - 1, 10**13, 2**63 - 1])
def test_offset_that_is_no_time_is_accepted_after_end(offset: int) -> None:
    check_offsets({("t", 0): offset}, {("t", 0): 5})


def test_offset_of_13_digits_is_accepted_if_a_partition_has_it() -> None:
    ends = {("t", 0): 5, ("t", 1): TIME_MS}
    check_offsets(dict.fromkeys(ends, TIME_MS), ends)
    check_offsets({}, {})
