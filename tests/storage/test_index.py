from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.storage.batches import BEGINNING, Position
from kbroker.storage.index import (
    AbortedTransaction,
    OffsetIndex,
    TimeIndex,
    aborted_from_bytes,
)


def offset_index(*entries: tuple[int, int]) -> OffsetIndex:
    index = OffsetIndex()
    for offset, position in entries:
        index.append(offset, Position(position))
    return index


class TestOffsetIndex:
    def test_index_has_kafkas_layout(self) -> None:
        data = offset_index((5, 4200), (260, 8500)).to_bytes()
        assert data.hex() == "00000005000010680000010400002134"
        index = OffsetIndex.from_bytes(data, 10_000)
        assert index is not None
        assert list(index.offsets) == [5, 260]
        assert list(index.positions) == [4200, 8500]

    def test_floor_finds_the_last_entry_at_or_before_an_offset(self) -> None:
        index = offset_index((5, 100), (9, 200))
        assert [index.floor(offset) for offset in (0, 4, 5, 8, 9, 99)] == [-1, -1, 0, 0, 1, 1]
        assert [index.floor_position(Position(at)) for at in (0, 99, 100, 200, 300)] == [
            -1,
            -1,
            0,
            1,
            1,
        ]

    def test_truncated_index_drops_later_entries(self) -> None:
        for position, left in ((0, 0), (100, 0), (101, 1), (200, 1), (201, 2)):
            index = offset_index((5, 100), (9, 200))
            index.truncate(Position(position))
            assert len(index) == len(index.positions) == left

    def test_later_entries_are_encoded_alone(self) -> None:
        assert offset_index((5, 100), (9, 200)).to_bytes(1) == offset_index((9, 200)).to_bytes()

    def test_preallocated_index_of_kafka_is_read(self) -> None:
        index = OffsetIndex.from_bytes(offset_index((5, 100)).to_bytes() + bytes(8000), 1000)
        assert index is not None
        assert len(index) == 1

    @pytest.mark.parametrize(
        "data",
        [
            b"1234567",
            offset_index((5, 100), (5, 200)).to_bytes(),
            offset_index((5, 100), (6, 100)).to_bytes(),
            offset_index((5, 100), (6, 5000)).to_bytes(),
            offset_index((5, -100), (6, 50)).to_bytes(),
            offset_index((5, 100)).to_bytes() + bytes(8) + offset_index((9, 200)).to_bytes(),
        ],
    )
    def test_damaged_index_is_rejected(self, data: bytes) -> None:
        assert OffsetIndex.from_bytes(data, 5000) is None

    @given(st.lists(st.tuples(st.integers(1, 500), st.integers(1, 5000)), max_size=40))
    def test_index_survives_round_trip(self, steps: list[tuple[int, int]]) -> None:
        index, offset, position = OffsetIndex(), 0, BEGINNING
        for more, further in steps:
            offset, position = offset + more, position + further
            index.append(offset, position)
        decoded = OffsetIndex.from_bytes(index.to_bytes(), position + 1)
        assert decoded is not None
        assert decoded.to_bytes() == index.to_bytes()


class TestTimeIndex:
    def test_index_has_kafkas_layout(self) -> None:
        index = TimeIndex()
        index.append(1_700_000_000_000, 258)
        assert index.to_bytes().hex() == "0000018bcfe5680000000102"

    def test_only_higher_timestamps_are_added(self) -> None:
        index = TimeIndex()
        for timestamp, offset in ((10, 1), (10, 2), (5, 3), (11, 4)):
            index.append(timestamp, offset)
        assert list(index.timestamps) == [10, 11]
        assert list(index.offsets) == [1, 4]
        assert [index.floor(time) for time in (9, 10, 11, 12)] == [-1, 0, 1, 1]

    def test_truncated_index_drops_later_entries(self) -> None:
        for offset, left in ((1, 0), (2, 1), (4, 1), (5, 2)):
            index = TimeIndex()
            index.append(10, 1)
            index.append(11, 4)
            index.truncate(offset)
            assert len(index) == left

    def test_preallocated_index_of_kafka_is_read(self) -> None:
        index = TimeIndex()
        index.append(256, 0)
        index.append(512, 256)
        decoded = TimeIndex.from_bytes(index.to_bytes() + bytes(1200))
        assert decoded is not None
        assert list(decoded.timestamps) == [256, 512]

    @pytest.mark.parametrize("entries", [[(10, 1), (10, 2)], [(10, 1), (11, 1)], [(10, 5), (9, 6)]])
    def test_damaged_index_is_rejected(self, entries: list[tuple[int, int]]) -> None:
        index = TimeIndex()
        for timestamp, offset in entries:
            index.timestamps.append(timestamp)
            index.offsets.append(offset)
        assert TimeIndex.from_bytes(index.to_bytes()) is None
        assert TimeIndex.from_bytes(b"short") is None


class TestAborted:
    def test_index_survives_round_trip(self) -> None:
        entries = [AbortedTransaction(7, 0, 10, 11), AbortedTransaction(8, 3, 20, 15)]
        data = b"".join(entry.to_bytes() for entry in entries)
        assert len(data) == 68
        assert aborted_from_bytes(data) == entries

    def test_damaged_index_is_rejected(self) -> None:
        data = AbortedTransaction(7, 0, 10, 11).to_bytes()
        assert aborted_from_bytes(data[:-1]) is None
        assert aborted_from_bytes(b"\0\1" + data[2:]) is None
