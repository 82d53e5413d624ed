"""Tests of the range and round-robin assignors against the results of Kafka's own."""

from __future__ import annotations

import pytest

from kbroker.client.assignors import Assignments, assign_ranges, assign_round_robin


def parts(topic: str, *indexes: int) -> list[tuple[str, int]]:
    return [(topic, index) for index in indexes]


BOTH = {"m1": ["t", "u"], "m2": ["t", "u"]}


@pytest.mark.parametrize(
    ("members", "counts", "given"),
    [
        (BOTH, {"t": 3}, {"m1": parts("t", 0, 1), "m2": parts("t", 2)}),
        (
            BOTH,
            {"u": 3, "t": 3},
            {"m1": parts("t", 0, 1) + parts("u", 0, 1), "m2": parts("t", 2) + parts("u", 2)},
        ),
        (BOTH, {"t": 1}, {"m1": parts("t", 0), "m2": []}),
        ({"m1": ["t"], "m2": ["u"]}, {"t": 2, "u": 1}, {"m1": parts("t", 0, 1), "m2": parts("u", 0)}),
        ({"m1": ["t"]}, {"t": 0, "other": 2}, {"m1": []}),
    ],
)  # fmt: skip
def test_assign_ranges_gives_consecutive_partitions(
    members: dict[str, list[str]], counts: dict[str, int], given: Assignments
) -> None:
    assert assign_ranges(members, counts) == given


@pytest.mark.parametrize(
    ("members", "counts", "given"),
    [
        (BOTH, {"t": 3}, {"m1": parts("t", 0, 2), "m2": parts("t", 1)}),
        (
            BOTH,
            {"u": 3, "t": 3},
            {"m1": parts("t", 0, 2) + parts("u", 1), "m2": parts("t", 1) + parts("u", 0, 2)},
        ),
        ({"m1": ["t"], "m2": ["u"]}, {"t": 2, "u": 1}, {"m1": parts("t", 0, 1), "m2": parts("u", 0)}),
        ({"m1": ["t"]}, {"t": 0, "other": 2}, {"m1": []}),
    ],
)  # fmt: skip
def test_assign_round_robin_gives_partitions_in_turn(
    members: dict[str, list[str]], counts: dict[str, int], given: Assignments
) -> None:
    assert assign_round_robin(members, counts) == given
