"""Hashes of many records: different ones, and those that come again."""

from __future__ import annotations

import random

import pytest

from kbroker.pipelines.audit.distinct import Distinct
from kbroker.pipelines.audit.identity import BadIdentity, Identity
from kbroker.pipelines.audit.rows import Rows
from kbroker.pipelines.audit.spill import PARTITIONS_MAX, Difference, Place, Spill
from kbroker.protocol.records import Record


def hashes(count: int, seed: int = 0) -> list[int]:
    chance = random.Random(seed)
    return [chance.getrandbits(64) - (1 << 63) for _ in range(count)]


def test_few_different_hashes_are_counted_exactly() -> None:
    distinct = Distinct(kept=1000)
    for _ in range(3):
        distinct.add(hashes(999))
    assert distinct.is_exact
    assert distinct.count() == 999


@pytest.mark.parametrize("count", [5_000, 60_000])
def test_many_are_estimated(count: int) -> None:
    distinct = Distinct(kept=1000)
    everything = hashes(count)
    for at in range(0, count, 700):
        distinct.add(everything[at : at + 700])
        distinct.add(everything[at : at + 700])
    assert not distinct.is_exact
    assert abs(distinct.count() / count - 1) < 0.12  # four standard errors


@pytest.mark.parametrize("in_memory", [10, 1_000_000])
def test_hashes_that_come_again(in_memory: int) -> None:
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


@pytest.mark.parametrize("in_memory", [10, 1_000_000])
def test_differences(in_memory: int) -> None:
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


def test_limits_of_places() -> None:
    with Spill() as spill:
        spill.add(PARTITIONS_MAX - 1, [(1 << 48) - 1], [5])
        spill.add(0, [3], [5])
        assert list(spill.repeated()) == [
            Difference(1, 2, [Place(PARTITIONS_MAX - 1, (1 << 48) - 1)])
        ]
        with pytest.raises(ValueError, match="beyond the limits"):
            spill.add(PARTITIONS_MAX, [0], [5])


ROWS = Rows.of(
    [
        Record(b"a", b'{"id": 1, "x": 1}', 10, [("id", b"7"), ("id", b"8")], 0),
        Record(b"a", b'{"x": 2, "id": 1}', 10, [("id", b"7")], 1),
        Record(b"b", b'{"id": "1"}', 11, [("other", b"7")], 2),
        Record(b"b", b"no JSON", 11, [], 3),
        Record(None, None, 12, [("id", None)], 4),
        Record(b"a", b'{"id": 1, "x": 1}', 99, [("id", b"7"), ("id", b"8")], 5),
    ]
)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("record", [[0, 5], [1], [2], [3], [4]]),
        ("key", [[0, 1, 5], [2, 3], [4]]),
        ("header:id", [[0, 1, 5], [2, 3, 4]]),
        ("field:id", [[0, 1, 5], [2], [3, 4]]),
    ],
)
def test_what_identifies_a_record(text: str, same: list[list[int]]) -> None:
    identity = Identity.parse(text)
    assert str(identity) == text
    groups: dict[int, list[int]] = {}
    for number, one in enumerate(identity.hashes(ROWS)):
        groups.setdefault(one, []).append(number)
    assert list(groups.values()) == same


def test_the_time_counts_when_asked_for() -> None:
    found = Identity(with_time=True).hashes(ROWS)
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("text", ["", "offset", "key:x", "header", "header:", "field:", "field"])
def test_texts_that_identify_nothing(text: str) -> None:
    with pytest.raises(BadIdentity, match="record, key, header:NAME, field:NAME"):
        Identity.parse(text)
