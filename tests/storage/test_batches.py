from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.protocol.records import Record, encode_batch
from kbroker.storage.batches import (
    BEGINNING,
    Intervals,
    Place,
    Position,
    check_batches,
    walk,
    walk_headers,
)
from kbroker.storage.epochs import LeaderEpochs
from kbroker.storage.errors import CorruptLogError
from kbroker.storage.files import File, MemFiles


def file_of(*batches: bytes) -> File:
    files = MemFiles()
    files.mkdir("d")
    file = files.open("d/00000000000000000000.log", create=True)
    file.append([b"".join(batches)])
    return file


def batch(base: int, count: int = 1, *, size: int = 1, epoch: int = 0) -> bytes:
    records = [Record(value=b"x" * size)] * count
    return encode_batch(records, base_offset=base, leader_epoch=epoch)


def epochs_of(*entries: tuple[int, int]) -> LeaderEpochs:
    epochs = LeaderEpochs()
    for entry in entries:
        epochs.assign(*entry)
    return epochs


# Sizes around those of single reads, so that headers cross read boundaries.
SIZES = [1, 4000, 4096 - 70, 300_000, 1, 256 * 1024 - 100, 5, 50_000, 1]


def test_walk_finds_every_batch() -> None:
    batches = [batch(number * 2, 2, size=size) for number, size in enumerate(SIZES)]
    file = file_of(*batches)
    batches_found = list(walk(file, BEGINNING, Position(file.size)))
    position = BEGINNING
    for number, (found, data) in enumerate(zip(batches_found, batches, strict=True)):
        assert found == Place(position, len(data), number * 2, number * 2 + 1)
        position += len(data)
    assert [
        found.position for found in walk(file, batches_found[3].position, Position(file.size))
    ] == [found.position for found in batches_found[3:]]
    headers = list(walk_headers(file, BEGINNING, Position(file.size)))
    assert [(at, header.base_offset, header.size) for at, header in headers] == [
        (found.position, found.base_offset, found.size) for found in batches_found
    ]


@pytest.mark.parametrize(
    ("damage", "position", "reason"),
    [
        (lambda data: data[:-1], 80, "no valid batch header"),
        (lambda data: data[:90], 80, "ends within a batch"),
        (lambda data: data[:80] + bytes(80), 80, "no valid batch header"),
        (lambda data: data[:96] + b"\1" + data[97:], 80, "no valid batch header"),
        (lambda data: data[:88] + b"\0\0\0\7" + data[92:], 80, "no valid batch header"),
        (lambda data: data[:80] + batch(0), 80, "expected offset 1, found 0"),
    ],
)
def test_walk_raises_at_damaged_batch(damage: object, position: int, reason: str) -> None:
    first, second = batch(0, size=12), batch(1, size=12)
    assert len(first) == 80
    file = file_of(damage(first + second))  # type: ignore[operator]
    with pytest.raises(CorruptLogError, match=reason) as error:
        list(walk(file, BEGINNING, Position(file.size)))
    assert error.value.position == position
    assert error.value.path == file.path


def test_check_returns_the_offsets() -> None:
    file = file_of(batch(5, 2), batch(7, 3))
    assert check_batches(
        file, BEGINNING, Position(file.size), LeaderEpochs(), gaps_allowed=False
    ) == (
        5,
        10,
    )
    assert check_batches(file, BEGINNING, BEGINNING, LeaderEpochs(), gaps_allowed=False) == (-1, -1)


def test_check_detects_every_flipped_bit_except_in_the_first_offset() -> None:
    """The first batch's offset cannot be compared with that of a previous batch."""
    data = batch(0, epoch=3) + batch(1, epoch=3) + batch(2, epoch=3)
    size = len(data) // 3
    epochs = epochs_of((3, 0))
    for position in range(size, len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            file = file_of(bytes(damaged))
            with pytest.raises(CorruptLogError):
                check_batches(file, BEGINNING, Position(file.size), epochs, gaps_allowed=False)


def test_check_accepts_gaps_only_if_allowed() -> None:
    file = file_of(batch(0), batch(5))
    assert check_batches(
        file, BEGINNING, Position(file.size), LeaderEpochs(), gaps_allowed=True
    ) == (0, 6)
    with pytest.raises(CorruptLogError, match="expected offset 1, found 5"):
        check_batches(file, BEGINNING, Position(file.size), LeaderEpochs(), gaps_allowed=False)
    file = file_of(batch(5), batch(0))
    with pytest.raises(CorruptLogError):
        check_batches(file, BEGINNING, Position(file.size), LeaderEpochs(), gaps_allowed=True)


@given(st.lists(st.tuples(st.integers(0, 29), st.integers(1, 9)), max_size=12))
def test_intervals_behave_like_sets_of_positions(removals: list[tuple[int, int]]) -> None:
    intervals, expected = Intervals(Position(25)), set(range(25))
    for first, length in removals:
        start = Position(first)
        removed = set(range(start, start + length))
        assert intervals.overlaps(start, start + length) == bool(expected & removed)
        intervals.remove(start, start + length)
        expected -= removed
        assert bool(intervals) == bool(expected)
        if expected:
            assert intervals.first[0] == min(expected)
