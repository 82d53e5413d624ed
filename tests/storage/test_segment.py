from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.storage.batches import BEGINNING, Position
from kbroker.storage.epochs import LeaderEpochs
from kbroker.storage.errors import CorruptLogError
from kbroker.storage.files import Files, MemFiles, OsFiles
from kbroker.storage.index import OffsetIndex, TimeIndex
from kbroker.storage.lookups import segment_batch_since
from kbroker.storage.segment import FULL, Segment, SegmentRules
from kbroker.storage.sync import sync_in_order

from .helpers import NOW, batch

RULES = SegmentRules(index_interval_bytes=200, index_bytes=10_000, gaps_allowed=False)


def make(files: Files, count: int, *, directory: str = "d", rules: SegmentRules = RULES) -> Segment:
    """Return a segment from offset 100 with `count` batches of two records, about 80 bytes each."""
    files.mkdir(directory)
    segment = Segment.create(files, directory, 100, rules)
    for number in range(count):
        add(segment, number)
    return segment


def add(segment: Segment, number: int) -> None:
    data, header = batch(b"a%04d" % number, b"b%04d" % number, timestamp=NOW + number)
    offset = 100 + 2 * number
    parts = [offset.to_bytes(8, "big"), bytes(data[8:12]), bytes(4), bytes(data[16:])]
    segment.append(parts, len(data), offset + 1, header.max_timestamp)


def sealed(files: Files, count: int = 40) -> Segment:
    """Return the segment as loaded at the next start, with everything saved."""
    segment = make(files, count)
    sync_in_order(segment.close_for_appends())
    loaded = Segment.load(files, "d", 100, RULES)
    loaded.load_latest()
    loaded.find_end()
    return loaded


SIZE = len(batch(b"a0000", b"b0000")[0])


class TestAppend:
    def test_index_entries_are_placed_as_in_kafka(self) -> None:
        """The first batch after more than the interval gets an entry with its last offset."""
        segment = make(MemFiles(), 12)
        every = 200 // SIZE + 1
        expected = list(range(every, 12, every))
        assert list(segment.indexes.offsets.positions) == [SIZE * number for number in expected]
        assert list(segment.indexes.offsets.offsets) == [2 * number + 1 for number in expected]
        assert list(segment.indexes.times.timestamps) == [NOW + number for number in expected]
        segment.close_for_appends()
        assert segment.indexes.times.timestamps[-1] == NOW + 11
        assert segment.indexes.times.offsets[-1] == 23

    def test_append_updates_size_offsets_and_timestamps(self) -> None:
        segment = make(MemFiles(), 3)
        assert (segment.size, segment.end_offset) == (3 * SIZE, 106)
        assert (segment.max_timestamp, segment.max_timestamp_offset) == (NOW + 2, 105)

    def test_full_index_requires_a_new_segment(self) -> None:
        rules = RULES._replace(index_bytes=48)
        segment = make(MemFiles(), 5, rules=rules)
        assert segment.roll_at_ms != FULL
        for number in range(5, 12):
            add(segment, number)
        assert segment.roll_at_ms == FULL

    def test_sealed_segment_keeps_no_file_open(self, tmp_path: Path) -> None:
        files, directory = OsFiles(), (tmp_path / "d").as_posix()
        before = len(os.listdir("/proc/self/fd"))
        segment = make(files, 3, directory=directory)
        segment.file.dirty = True
        segment.close_for_appends()
        assert len(os.listdir("/proc/self/fd")) == before + 1, "the file was closed before its sync"
        segment.file.sync()
        assert len(os.listdir("/proc/self/fd")) == before
        found = segment.range(BEGINNING, SIZE, LeaderEpochs())
        assert len(os.listdir("/proc/self/fd")) == before + 1
        del found
        assert len(os.listdir("/proc/self/fd")) == before

    def test_loaded_segment_accepts_appends(self) -> None:
        files = MemFiles()
        loaded, whole = sealed(files, 30), make(MemFiles(), 41)
        loaded.open_for_append()
        assert loaded.first_timestamp() == NOW
        for number in range(30, 41):
            add(loaded, number)
        for segment in (loaded, whole):
            segment.close_for_appends()
        assert loaded.indexes.offsets.to_bytes() == whole.indexes.offsets.to_bytes()
        assert (loaded.size, loaded.end_offset) == (whole.size, whole.end_offset)
        assert (loaded.max_timestamp, loaded.max_timestamp_offset) == (NOW + 40, 181)


class TestFind:
    @pytest.mark.parametrize("load", [True, False])
    def test_every_offset_is_found(self, load: bool) -> None:
        segment = sealed(MemFiles(), 40) if load else make(MemFiles(), 40)
        for offset in range(100, 180):
            number = (offset - 100) // 2
            assert segment.find(offset) == (number * SIZE, 100 + 2 * number)
        assert segment.find(180) == (segment.size, 180)
        assert segment.find(500) == (segment.size, 500)

    def test_marked_offset_is_found_without_a_lookup(self, monkeypatch: pytest.MonkeyPatch) -> None:
        segment = make(MemFiles(), 40)
        segment.mark(120, Position(10 * SIZE))
        monkeypatch.setattr(segment.file, "opened", None)
        monkeypatch.setattr(segment.file, "_files", None)
        assert segment.find(120) == (10 * SIZE, 120)
        for number in range(100):
            segment.mark(1000 + number, BEGINNING)
        assert len(segment._marks) <= 64

    def test_cut_returns_the_last_boundary_before_a_position(self) -> None:
        segment = make(MemFiles(), 40)
        for limit in range(0, segment.size + 100, 37):
            number = min(limit // SIZE, 40)
            expected = (number * SIZE, 100 + 2 * number)
            assert segment.find_boundary(BEGINNING, Position(limit), at_least_one=False) == expected
        start = Position(3 * SIZE)
        assert segment.find_boundary(start, start + 1, at_least_one=True) == (4 * SIZE, 108)
        assert segment.find_boundary(start, start + 1, at_least_one=False) == (start, 106)


class TestWrongIndex:
    """A valid index from an earlier version of the file."""

    def check(self, change: Callable[[OffsetIndex, TimeIndex], None]) -> None:
        files = MemFiles()
        segment = make(files, 40)
        segment.close_for_appends()
        right = segment.indexes.offsets.to_bytes()
        change(segment.indexes.offsets, segment.indexes.times)
        segment.indexes._offsets_saved = segment.indexes._times_saved = 0
        sync_in_order(segment.unsaved())
        loaded = Segment.load(files, "d", 100, RULES)
        loaded.load_latest()
        assert loaded.find_end() == 180
        assert loaded.max_timestamp == NOW + 39
        for offset in range(100, 180):
            number = (offset - 100) // 2
            assert loaded.find(offset) == (number * SIZE, 100 + 2 * number)
            found = segment_batch_since(loaded, NOW + number, 100, LeaderEpochs())
            assert found is not None
            assert found.header.base_offset == 100 + 2 * number
        while loaded.scrub(300, LeaderEpochs()):
            pass
        if loaded.indexes.is_trusted:
            assert loaded.indexes.offsets.to_bytes() == right

    def test_wrong_positions_in_the_index_are_rebuilt(self) -> None:
        def change(offsets: OffsetIndex, times: TimeIndex) -> None:
            for slot in range(len(offsets)):
                offsets.positions[slot] -= 7

        self.check(change)

    def test_wrong_offsets_in_the_index_are_rebuilt(self) -> None:
        def change(offsets: OffsetIndex, times: TimeIndex) -> None:
            for slot in range(len(offsets)):
                offsets.offsets[slot] += 2

        self.check(change)

    def test_wrong_times_in_the_index_are_rebuilt(self) -> None:
        def change(offsets: OffsetIndex, times: TimeIndex) -> None:
            for slot in range(len(times)):
                times.timestamps[slot] += 3

        self.check(change)

    def test_missing_index_entries_are_rebuilt(self) -> None:
        def change(offsets: OffsetIndex, times: TimeIndex) -> None:
            offsets.truncate(Position(20 * SIZE))
            times.truncate(40)

        self.check(change)

    def test_one_wrong_index_entry_is_rebuilt(self) -> None:
        def change(offsets: OffsetIndex, times: TimeIndex) -> None:
            offsets.positions[5] += 1
            times.timestamps[6] -= 1

        self.check(change)


class TestDamage:
    def test_damage_is_checked_once_where_it_is_read(self) -> None:
        files = MemFiles()
        segment = sealed(files)
        data = bytearray(files.read_bytes(segment.log_path))
        data[30 * SIZE + 70] ^= 1
        files.write_atomic(segment.log_path, bytes(data))
        epochs = LeaderEpochs()
        assert len(segment.range(BEGINNING, 10 * SIZE, epochs).read()) == 10 * SIZE
        with pytest.raises(CorruptLogError) as error:
            segment.range(Position(28 * SIZE), 6 * SIZE, epochs)
        assert error.value.position == 30 * SIZE
        with pytest.raises(CorruptLogError):
            sum(iter(lambda: segment.scrub(500, epochs), 0))

    def test_missing_file_is_corruption(self) -> None:
        files = MemFiles()
        segment = sealed(files)
        files.remove(segment.log_path)
        with pytest.raises(CorruptLogError, match="it is missing"):
            segment.range(BEGINNING, 10, LeaderEpochs())

    def test_swapped_batches_are_corruption(self) -> None:
        """Each batch is valid, but two of them are swapped."""
        files = MemFiles()
        segment = sealed(files)
        data = files.read_bytes(segment.log_path)
        first, second = data[:SIZE], data[SIZE : 2 * SIZE]
        files.write_atomic(segment.log_path, second + first + data[2 * SIZE :])
        with pytest.raises(CorruptLogError):
            segment.range(BEGINNING, SIZE, LeaderEpochs())


def test_remove_deletes_every_file() -> None:
    files = MemFiles()
    segment = sealed(files)
    assert len(files.listdir("d")) == 3
    segment.remove()
    assert files.listdir("d") == []


def test_create_removes_old_files() -> None:
    files = MemFiles()
    sealed(files)
    segment = Segment.create(files, "d", 100, RULES)
    assert segment.size == files.size(segment.log_path) == 0
    assert files.listdir("d") == ["00000000000000000100.log"]
