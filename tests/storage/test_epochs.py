from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.storage.epochs import UNDEFINED, LeaderEpochs


def epochs_of(*entries: tuple[int, int]) -> LeaderEpochs:
    epochs = LeaderEpochs()
    for epoch, start in entries:
        epochs.assign(epoch, start)
    return epochs


def test_assign_keeps_the_first_start_of_an_epoch() -> None:
    epochs = epochs_of((0, 0), (0, 5), (3, 10), (3, 12))
    assert epochs.entries == [(0, 0), (3, 10)]
    assert epochs.latest == 3


def test_assign_drops_contradicting_entries() -> None:
    assert epochs_of((0, 0), (1, 10), (2, 20), (3, 15)).entries == [(0, 0), (1, 10), (3, 15)]
    assert epochs_of((0, 0), (1, 10), (2, 20), (1, 12)).entries == [(0, 0), (1, 12)]
    assert epochs_of((1, 10), (2, 10)).entries == [(2, 10)]
    assert epochs_of((5, 20), (5, 10)).entries == [(5, 10)]


def test_assign_rejects_negative_numbers() -> None:
    for epoch, start in ((-1, 0), (0, -1)):
        with pytest.raises(ValueError, match="leader epoch"):
            LeaderEpochs().assign(epoch, start)


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (-1, (-1, -1)),
        (0, (0, 5)),
        (2, (2, 10)),
        (3, (2, 10)),
        (4, (4, 30)),
        (7, (7, 50)),
        (8, (-1, -1)),
    ],
)
def test_end_offset_for_returns_the_largest_epoch_and_its_end(
    epoch: int, expected: tuple[int, int]
) -> None:
    epochs = epochs_of((2, 5), (4, 10), (7, 30))
    assert epochs.end_offset_for(epoch, 50) == expected


def test_end_offset_for_without_entries_is_undefined() -> None:
    assert LeaderEpochs().end_offset_for(0, 10) == (UNDEFINED, UNDEFINED)


def test_epoch_at_returns_the_epoch_of_an_offset() -> None:
    epochs = epochs_of((2, 5), (4, 10))
    assert [epochs.epoch_at(offset) for offset in (0, 4, 5, 9, 10, 99)] == [-1, -1, 2, 2, 4, 4]


def test_truncation_drops_epochs_outside_of_the_log() -> None:
    epochs = epochs_of((0, 0), (1, 10), (2, 20))
    epochs.truncate_end(20)
    assert epochs.entries == [(0, 0), (1, 10)]
    epochs.truncate_end(11)
    assert epochs.latest == 1
    epochs.truncate_start(10)
    assert epochs.entries == [(1, 10)]
    epochs.truncate_start(15)
    assert epochs.entries == [(1, 15)]
    epochs.truncate_start(3)
    assert epochs.entries == [(1, 15)]
    epochs.truncate_end(0)
    assert (epochs.entries, epochs.latest) == ([], UNDEFINED)


def test_changed_is_set_by_every_change() -> None:
    epochs = epochs_of((0, 0))
    assert epochs.changed
    epochs.changed = False
    epochs.assign(0, 7)
    epochs.truncate_end(9)
    epochs.truncate_start(0)
    assert not epochs.changed


def test_epochs_of_a_kafka_checkpoint_are_read() -> None:
    epochs = LeaderEpochs.from_bytes(b"0\n2\n0 0\n3 17\n")
    assert epochs is not None
    assert epochs.entries == [(0, 0), (3, 17)]
    assert not epochs.changed
    assert epochs.to_bytes() == b"0\n2\n0 0\n3 17\n"


@pytest.mark.parametrize(
    "data", [b"0\n2\n0 0\n", b"0\n1\n-1 0\n", b"0\n1\nx 0\n", b"\0\0", b"0\n1\n5\n"]
)
def test_damaged_checkpoint_is_rejected(data: bytes) -> None:
    assert LeaderEpochs.from_bytes(data) is None


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 12)), max_size=12))
def test_entries_always_increase(assigned: list[tuple[int, int]]) -> None:
    epochs = LeaderEpochs()
    for epoch, start in assigned:
        epochs.assign(epoch, start)
        entries = epochs.entries
        assert epochs.latest == epoch
        assert all(a < c and b < d for (a, b), (c, d) in pairwise(entries))
        decoded = LeaderEpochs.from_bytes(epochs.to_bytes())
        assert decoded is not None
        assert decoded.entries == entries


@pytest.mark.parametrize("epoch", [-1, -2, -(2**31)])
def test_negative_epoch_is_undefined(epoch: int) -> None:
    assert LeaderEpochs().end_offset_for(epoch, 5) == (-1, -1)
