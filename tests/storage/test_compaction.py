"""Compaction of one log, on disk and in memory."""

from __future__ import annotations

import random
import sys
import time
import tracemalloc
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kbroker.protocol.records import (
    BatchHeader,
    Marker,
    ProduceRules,
    Record,
    encode_batch,
    end_transaction_marker,
    iter_headers,
    read_header,
    read_records,
)
from kbroker.storage.cleaning import (
    Dirtiness,
    discard,
    finish,
    install,
    is_due,
    measure,
    plan,
    prepare,
    replaced_from_bytes,
)
from kbroker.storage.compaction import (
    KEY_BYTES,
    Compaction,
    CompactionResult,
    CompactionTask,
    digest,
)
from kbroker.storage.errors import CorruptLogError, StorageError
from kbroker.storage.files import Files, MemFiles, OsFiles
from kbroker.storage.log import Log
from kbroker.storage.log_config import LogConfig
from kbroker.storage.lookups import aborted_transactions
from kbroker.storage.manager import LogManager
from kbroker.storage.naming import TXN_INDEX

from .helpers import NOW, commit, content, open_log, open_manager, records
from .time_lookups import latest_record, offset_for_timestamp

KEYED = LogConfig(
    segment_bytes=1500,
    index_interval_bytes=200,
    cleanup_policy=frozenset({"compact"}),
    delete_retention_ms=1000,
)
KEYS = 1 << 20


def put(
    log: Log, *pairs: tuple[bytes, bytes | None], timestamp: int = NOW, **fields: Any
) -> BatchHeader:
    """Append one batch with these keys and values."""
    listed = [Record(key, value, timestamp + i) for i, (key, value) in enumerate(pairs)]
    data = encode_batch(listed, **fields)
    header = read_header(data)
    log.append(memoryview(data), header, leader_epoch=0, now_ms=NOW)
    return header


def mark(log: Log, producer_id: int, *, is_commit: bool) -> None:
    """End a transaction."""
    data = end_transaction_marker(
        Marker(is_commit, 0), producer_id=producer_id, producer_epoch=0, timestamp=NOW
    )
    log.append(memoryview(data), read_header(data), leader_epoch=0, now_ms=NOW)


def compact(
    files: Files, manager: LogManager, log: Log, *, now_ms: int = NOW, key_map_bytes: int = KEYS
) -> CompactionResult | None:
    """Roll the log and compact it once."""
    log.roll()
    commit(log)
    manager.checkpoint(now_ms).run()
    return compact_sealed(files, manager, log, now_ms=now_ms, key_map_bytes=key_map_bytes)


def compact_sealed(
    files: Files, manager: LogManager, log: Log, *, now_ms: int = NOW, key_map_bytes: int = KEYS
) -> CompactionResult | None:
    found = replace_sealed(files, manager, log, now_ms=now_ms, key_map_bytes=key_map_bytes)
    if found is not None:
        manager.checkpoint(now_ms).run()
    return found


def replace_sealed(
    files: Files, manager: LogManager, log: Log, *, now_ms: int = NOW, key_map_bytes: int = KEYS
) -> CompactionResult | None:
    """Compact closed segments without the checkpoint that removes the old files."""
    task = plan(log, now_ms, key_map_bytes=key_map_bytes, decompressed_max=1 << 20)
    if task is None:
        return None
    run = Compaction(files, task)
    carry_out(run)
    manager.note_compaction(log, task.end_offset)
    assert put_in_place(files, log, task, run.result)
    return run.result


def carry_out(run: Compaction) -> int:
    """Run all steps of a compaction and return their number."""
    count = 0
    for work in run.steps():
        count += 1
        if work is not None:
            work()
    return count


def put_in_place(files: Files, log: Log, task: CompactionTask, result: CompactionResult) -> bool:
    """Install the segments of a run, in order. Return True if all of them took their place."""
    segments = prepare(files, task, result)
    for cleaned, segment in zip(result.segments, segments, strict=True):
        if not install(log, cleaned, segment):
            return False
        log.segments.sync_directory()
    finish(log, result)
    return True


def batches(log: Log) -> list[tuple[BatchHeader, list[Record]]]:
    """Return all batches from the log start on."""
    found = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        part = log.read(offset, 1, limit=log.log_end_offset)
        if part.size:
            data = content(part)
            [(_, header)] = iter_headers(data)
            found.append((header, list(read_records(data))))
        offset = part.next_offset
    return found


def latest(found: Iterable[Record]) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in found}


def names(files: Files, log: Log, ending: str) -> list[str]:
    return [name for name in files.listdir(log.directory) if name.endswith(ending)]


@pytest.fixture
def files(place: tuple[Files, str]) -> Files:
    return place[0]


@pytest.fixture
def manager(place: tuple[Files, str]) -> LogManager:
    return open_manager(*place)


@pytest.fixture
def log(manager: LogManager) -> Log:
    return open_log(manager, config=KEYED)


def fill(log: Log, count: int, *, keys: int = 7, codec: int = 0) -> None:
    for number in range(count):
        put(log, (b"key %d" % (number % keys), b"value %d " % number * 5), codec=codec)


class TestWhatStays:
    def test_last_value_of_each_key_is_kept(
        self, files: Files, manager: LogManager, log: Log
    ) -> None:
        fill(log, 100)
        before = list(records(log))
        end = log.log_end_offset
        result = compact(files, manager, log)
        assert result is not None
        after = list(records(log))
        assert latest(after) == latest(before)
        assert after == before[-7:]
        assert (log.log_start_offset, log.log_end_offset) == (0, end)
        assert len(log.segments) == 2
        assert (result.records_read, result.records_kept) == (100, 7)
        assert log.segments.size < 1000
        assert len(names(files, log, ".log")) == 2
        assert not names(files, log, ".cleaned")
        assert not names(files, log, ".replaces")

    def test_active_segment_is_not_compacted(
        self, files: Files, manager: LogManager, log: Log
    ) -> None:
        fill(log, 40)
        commit(log)
        manager.checkpoint(NOW).run()
        active = log.active
        assert active is not None
        young = [record for record in records(log) if record.offset >= active.base_offset]
        assert young
        compact_sealed(files, manager, log)
        found = list(records(log))
        assert [record for record in found if record.offset >= active.base_offset] == young
        # The active segment is not scanned, so older values of its keys remain.
        assert len(found) == len(young) + 7

    @pytest.mark.parametrize("codec", range(5))
    def test_batches_of_every_codec_are_compacted(
        self, files: Files, manager: LogManager, log: Log, codec: int
    ) -> None:
        for number in range(20):
            pairs = [(b"%d" % key, b"value %d %d" % (number, key)) for key in range(number, 25)]
            put(log, *pairs, codec=codec)
        before = list(records(log, max_bytes=1 << 20))
        compact(files, manager, log)
        after = list(records(log, max_bytes=1 << 20))
        assert latest(after) == latest(before)
        assert all(record in before for record in after)
        assert {header.codec for header, found in batches(log) if found} == {codec}
        [last] = [header for header, found in batches(log) if len(found) == 6]
        assert (last.last_offset, last.record_count) == (log.log_end_offset - 1, 6)

    def test_partly_replaced_batch_keeps_its_offsets(
        self, files: Files, manager: LogManager, log: Log
    ) -> None:
        put(log, (b"a", b"1"), (b"b", b"2"), (b"c", b"3"), timestamp=NOW)
        put(log, (b"c", b"4"), (b"a", b"5"), timestamp=NOW + 100)
        compact(files, manager, log)
        [(first, kept), (second, all_kept)] = batches(log)
        assert (first.base_offset, first.last_offset, first.record_count) == (0, 2, 1)
        assert (first.base_timestamp, first.max_timestamp) == (NOW, NOW + 1)
        assert kept == [Record(b"b", b"2", NOW + 1, [], 1)]
        assert (second.base_offset, len(all_kept)) == (3, 2)
        found = offset_for_timestamp(log, NOW + 50, limit=log.log_end_offset)
        assert found is not None
        assert found.offset == 3

    def test_headers_and_null_values_are_unchanged(
        self, files: Files, manager: LogManager, log: Log
    ) -> None:
        headers = [("h", b"x" * 200), ("empty", None)]
        long = Record(b"k" * 300, b"v" * 400, NOW + 5_000_000, headers)
        data = encode_batch([Record(b"gone", b"1", NOW), long, Record(b"t", None, NOW)])
        log.append(memoryview(data), read_header(data), leader_epoch=0, now_ms=NOW)
        put(log, (b"gone", b"2"))
        compact(files, manager, log)
        assert list(records(log))[:2] == [
            long._replace(offset=1),
            Record(b"t", None, NOW, [], 2),
        ]

    def test_unreadable_batch_is_kept_whole(
        self, files: Files, manager: LogManager, log: Log
    ) -> None:
        put(log, (b"a", b"1"))
        big = put(log, (b"a", b"2" * 1000), (b"b", b"3"), codec=3)
        put(log, (b"a", b"4"))
        log.roll()
        commit(log)
        manager.checkpoint(NOW).run()
        task = plan(log, NOW, key_map_bytes=KEYS, decompressed_max=500)
        assert task is not None
        run = Compaction(files, task)
        assert carry_out(run) > 3
        assert run.result.unreadable == 1
        manager.note_compaction(log, task.end_offset)
        assert put_in_place(files, log, task, run.result)
        assert [record.value for record in records(log)] == [b"2" * 1000, b"3", b"4"]
        assert big.record_count == 2

    def test_missing_codec_fails_the_run(
        self, files: Files, manager: LogManager, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(log, (b"a", b"1"), codec=3)
        put(log, (b"a", b"2"), codec=3)
        with monkeypatch.context() as missing:
            missing.setitem(sys.modules, "lz4.frame", None)
            with pytest.raises(StorageError, match=r"offset 0: .*pip install lz4"):
                compact(files, manager, log)
        assert [record.value for record in records(log)] == [b"1", b"2"]

    @pytest.mark.parametrize("codec", [0, 3])
    def test_record_above_the_size_limit_fails_the_run_until_the_limit_is_raised(
        self, files: Files, manager: LogManager, codec: int
    ) -> None:
        """The limit applies to compressed batches only; the log keeps all its records."""
        small = replace(KEYED, produce_rules=ProduceRules(max_record_bytes=900))
        log = open_log(manager, config=small)
        put(log, (b"a", b"1"), (b"a", b"2" * 1000), (b"b", b"3"), codec=codec)
        if codec:
            with pytest.raises(StorageError, match=r"1\d\d\d bytes; increase max\.decompressed\."):
                compact(files, manager, log)
            assert [record.value for record in records(log)] == [b"1", b"2" * 1000, b"3"]
            log.config = KEYED
        compact(files, manager, log)
        assert [record.value for record in records(log)] == [b"2" * 1000, b"3"]

    def test_batch_above_the_list_limit_is_compacted(
        self, files: Files, manager: LogManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The records beyond the limit are read again, with the same result."""
        monkeypatch.setattr("kbroker.storage.compaction.LISTED_RECORDS_MAX", 10)
        log = open_log(manager, config=replace(KEYED, segment_bytes=100_000))
        for number in range(3):
            pairs = [(b"%d" % key, b"%d" % number) for key in range(number * 10, 50)]
            put(log, *pairs, (b"deleted", None))
        compact(files, manager, log)
        assert latest(records(log)) == {
            **{b"%d" % key: b"%d" % min(key // 10, 2) for key in range(50)},
            b"deleted": None,
        }
        assert [len(found) for _, found in batches(log)] == [10, 10, 31]

    def test_batch_with_more_keys_than_the_map_fails_the_run(
        self, files: Files, manager: LogManager, log: Log
    ) -> None:
        """A partial compaction could remove its tombstones before the older values."""
        put(log, (b"19", b"old"))
        put(log, *[(b"%d" % key, None) for key in range(20)])
        compact(files, manager, log, key_map_bytes=5 * KEY_BYTES)
        assert log.first_dirty_offset == 1
        with pytest.raises(StorageError, match=r"increase log\.cleaner\.dedupe\.buffer\.size"):
            compact_sealed(files, manager, log, key_map_bytes=5 * KEY_BYTES)
        compact_sealed(files, manager, log, now_ms=NOW, key_map_bytes=20 * KEY_BYTES)
        compact_sealed(files, manager, log, now_ms=NOW + 1000)
        assert latest(records(log)) == {}

    def test_corrupt_batch_fails_the_run(self, place: tuple[Files, str]) -> None:
        files, data_dir = place
        manager = open_manager(files, data_dir)
        log = open_log(manager, config=KEYED)
        fill(log, 60)
        log.roll()
        commit(log)
        manager.checkpoint(NOW).run()
        path = log.segments[0].log_path
        data = bytearray(files.read_bytes(path))
        data[100] ^= 1
        files.write_atomic(path, bytes(data))
        task = plan(log, NOW, key_map_bytes=KEYS, decompressed_max=1 << 20)
        assert task is not None
        run = Compaction(files, task)
        with pytest.raises(CorruptLogError, match="CRC"):
            carry_out(run)
        run.discard()
        assert not names(files, log, ".cleaned")


class TestTombstones:
    def test_tombstone_is_kept_until_its_delete_horizon(
        self, files: Files, manager: LogManager, log: Log
    ) -> None:
        put(log, (b"a", b"1"), (b"b", b"2"))
        put(log, (b"x", b"0"), (b"a", None), (b"y", b"0"), timestamp=NOW - 50)
        put(log, (b"z", b"3"))
        compact(files, manager, log, now_ms=NOW)
        [_, (header, found), _] = batches(log)
        assert header.delete_horizon == NOW + 1000
        assert [(record.key, record.value, record.timestamp) for record in found] == [
            (b"x", b"0", NOW - 50),
            (b"a", None, NOW - 49),
            (b"y", b"0", NOW - 48),
        ]
        assert header.max_timestamp == NOW - 48
        assert compact_sealed(files, manager, log, now_ms=NOW + 999) is not None
        assert b"a" in latest(records(log))
        compact_sealed(files, manager, log, now_ms=NOW + 1000)
        assert latest(records(log)) == {b"b": b"2", b"x": b"0", b"y": b"0", b"z": b"3"}
        [_, (header, found), _] = batches(log)
        assert header.delete_horizon == NOW + 1000
        assert [record.timestamp for record in found] == [NOW - 50, NOW - 48]

    def test_value_after_a_tombstone_is_kept(
        self, files: Files, manager: LogManager, log: Log
    ) -> None:
        put(log, (b"a", b"1"))
        put(log, (b"a", None))
        put(log, (b"a", b"2"))
        compact(files, manager, log)
        assert [(record.offset, record.value) for record in records(log)] == [(2, b"2")]


class TestProducers:
    def test_last_batch_of_a_producer_is_kept_empty(
        self, place: tuple[Files, str], files: Files, manager: LogManager, log: Log
    ) -> None:
        for number in range(3):
            put(log, (b"a", b"%d" % number), producer_id=7, producer_epoch=1, base_sequence=number)
        put(log, (b"a", b"last"))
        compact(files, manager, log)
        [(header, found), (last, [record])] = batches(log)
        assert found == []
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 2)
        assert (header.base_offset, header.last_offset) == (2, 2)
        assert (last.producer_id, record.value) == (-1, b"last")
        log.reload_producers(NOW)
        producer = log.producers.get(7)
        assert producer is not None
        assert (producer.epoch, producer.next_sequence) == (1, 3)

    def test_emptied_batch_is_not_found_by_timestamp(
        self, files: Files, manager: LogManager, log: Log
    ) -> None:
        put(log, (b"b", b"1"), timestamp=NOW + 1)
        mine = {"producer_id": 7, "producer_epoch": 1, "base_sequence": 0}
        put(log, (b"a", b"1"), timestamp=NOW + 5, **mine)
        put(log, (b"a", b"2"), timestamp=NOW + 2)
        compact(files, manager, log)
        put(log, (b"c", b"1"), timestamp=NOW)
        assert [len(found) for _, found in batches(log)] == [1, 0, 1, 1]
        found = latest_record(log)
        assert found is not None
        assert (found.offset, found.timestamp) == (2, NOW + 2)
        later = offset_for_timestamp(log, NOW + 3, limit=log.log_end_offset)
        assert later is None

    def test_only_last_marker_of_a_producer_without_sequences_is_kept(
        self, place: tuple[Files, str], files: Files, manager: LogManager, log: Log
    ) -> None:
        """Coordinators write thousands of transactions with the same epoch."""
        for number in range(4):
            put(log, (b"a", b"%d" % number), producer_id=7, producer_epoch=0, transactional=True)
            mark(log, 7, is_commit=True)
        put(log, (b"a", b"last"))
        for days in range(3):
            compact(files, manager, log, now_ms=NOW + days * 86_400_000)
            put(log, (b"b", b"%d" % days))
        mine = [header for header, _ in batches(log) if header.producer_id == 7]
        assert [(header.is_control, header.base_offset) for header in mine] == [(True, 7)]
        log.reload_producers(NOW)
        producer = log.producers.get(7)
        assert producer is not None
        assert (producer.epoch, producer.transaction_start) == (0, -1)

    def test_last_batch_of_an_expired_producer_is_removed(
        self, files: Files, manager: LogManager, log: Log
    ) -> None:
        put(log, (b"a", b"1"), producer_id=7, producer_epoch=1, base_sequence=0)
        put(log, (b"a", b"last"))
        log.producers.expire(NOW + 10, 10)
        compact(files, manager, log)
        assert [header.producer_id for header, _ in batches(log)] == [-1]


class TestTransactions:
    def transact(self, log: Log, producer_id: int, value: bytes, *, is_commit: bool) -> None:
        for part in range(2):
            producer = log.producers.get(producer_id)
            put(
                log,
                (b"%d" % part, value),
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=producer.next_sequence if producer else 0,
                transactional=True,
            )
        mark(log, producer_id, is_commit=is_commit)

    def committed(self, log: Log) -> list[tuple[int, bytes | None]]:
        """Return the records that a read_committed consumer gets."""
        aborted = aborted_transactions(log, 0, log.log_end_offset)
        hidden: set[int] = set()
        found = []
        for header, listed in batches(log):
            hidden |= {pid for pid, first in aborted if first <= header.base_offset}
            if header.is_control:
                hidden.discard(header.producer_id)
                aborted = [(p, f) for p, f in aborted if p != header.producer_id]
                continue
            if not (header.is_transactional and header.producer_id in hidden):
                found += [(record.offset, record.value) for record in listed]
        return found

    @pytest.mark.parametrize("last", [None, b"3"])
    def test_commit_counts_after_abort_of_the_same_producer_in_a_clean_segment(
        self, files: Files, manager: LogManager, log: Log, last: bytes | None
    ) -> None:
        """The abort marker is in a segment that the second run no longer maps."""

        def transact(*pairs: tuple[bytes, bytes | None], is_commit: bool) -> None:
            producer = log.producers.get(7)
            sequence = producer.next_sequence if producer else 0
            fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
            put(log, *pairs, transactional=True, **fields)
            mark(log, 7, is_commit=is_commit)

        transact((b"a", b"1"), (b"b", b"1"), is_commit=True)
        transact((b"a", b"2"), is_commit=False)
        compact(files, manager, log)
        transact((b"a", last), is_commit=True)
        compact(files, manager, log)
        put(log, (b"c", b"1"))
        compact(files, manager, log, now_ms=NOW + 2 * KEYED.delete_retention_ms)
        expected = [(b"b", b"1"), (b"a", last), (b"c", b"1")]
        found = [
            (record.key, record.value)
            for header, listed in batches(log)
            for record in listed
            if not header.is_control
        ]
        assert found == [pair for pair in expected if pair[1] is not None]

    def test_index_left_by_crashes_in_swaps_does_not_hide_later_commits(
        self, place: tuple[Files, str]
    ) -> None:
        """Each crash happens when a new segment is installed without its transaction index."""
        files, data_dir = place
        manager = open_manager(files, data_dir)
        log = open_log(manager, config=KEYED)
        self.transact(log, 7, b"1", is_commit=False)
        self.transact(log, 7, b"2", is_commit=True)
        compact(files, manager, log)
        for number in range(2):
            replace_sealed(files, manager, log, now_ms=NOW + number * 2000)
            manager.close(clean=False)
            manager = open_manager(files, data_dir)
            log = open_log(manager, config=KEYED)
            log.advance_high_watermark(log.log_end_offset)
            assert [value for _, value in self.committed(log)] == [b"2", b"2"]
            manager.checkpoint(NOW).run()
        for number in range(2):
            compact_sealed(files, manager, log, now_ms=NOW + (3 + number) * 1000)
        assert {header.base_offset for header, _ in batches(log)} == {3, 4, 5}
        assert [value for _, value in self.committed(log)] == [b"2", b"2"]

    def test_aborted_records_are_removed_and_committed_ones_kept(
        self, files: Files, manager: LogManager, log: Log
    ) -> None:
        self.transact(log, 1, b"first", is_commit=True)
        self.transact(log, 2, b"aborted", is_commit=False)
        compact(files, manager, log)
        assert self.committed(log) == [(0, b"first"), (1, b"first")]
        assert {
            record.value
            for header, found in batches(log)
            for record in found
            if not header.is_control
        }
        kinds = [(h.is_control, h.producer_id, len(found)) for h, found in batches(log)]
        # The last data batch of producer 2 keeps its sequence, the marker serves consumers.
        assert kinds == [(False, 1, 1), (False, 1, 1), (True, 1, 1), (False, 2, 0), (True, 2, 1)]
        assert aborted_transactions(log, 0, log.log_end_offset) == [(2, 3)]

    def test_marker_is_removed_once_its_transaction_is_empty(
        self, files: Files, manager: LogManager, log: Log
    ) -> None:
        self.transact(log, 1, b"replaced", is_commit=True)
        self.transact(log, 2, b"aborted", is_commit=False)
        put(log, (b"0", b"new"), (b"1", b"new"))
        log.producers.expire(NOW + 10, 10)
        after = [(6, b"new"), (7, b"new")]
        # The first run removes the records. Markers are kept while their transactions have records.
        compact(files, manager, log, now_ms=NOW)
        assert self.committed(log) == after
        assert len(batches(log)) == 3
        assert aborted_transactions(log, 0, 100) == [(2, 3)]
        # The second run sets a delete horizon for the markers, and drops the index entry.
        compact_sealed(files, manager, log, now_ms=NOW)
        horizons = [h.delete_horizon for h, _ in batches(log) if h.is_control]
        assert horizons == [NOW + 1000, NOW + 1000]
        assert aborted_transactions(log, 0, 100) == []
        compact_sealed(files, manager, log, now_ms=NOW + 999)
        assert len(batches(log)) == 3
        compact_sealed(files, manager, log, now_ms=NOW + 1000)
        assert [h.is_control for h, _ in batches(log)] == [False]
        assert self.committed(log) == after
        # No transaction index is left that would hide records after a restart.
        assert not [name for name in files.listdir(log.directory) if name.endswith(TXN_INDEX)]

    def test_aborted_value_does_not_replace_an_earlier_one(
        self, files: Files, manager: LogManager, log: Log
    ) -> None:
        put(log, (b"0", b"kept"))
        self.transact(log, 1, b"aborted", is_commit=False)
        fill(log, 60)  # moves the next records to other segments than the abort
        compact(files, manager, log)
        assert (0, b"kept") in self.committed(log)
        assert all(value != b"aborted" for _, value in self.committed(log))

    def test_control_record_of_unknown_type_is_kept(
        self, files: Files, manager: LogManager, log: Log
    ) -> None:
        kind = Record(b"\0\0\0\7", bytes(6), NOW)
        data = encode_batch([kind], producer_id=4, producer_epoch=0, control=True)
        log.append(memoryview(data), read_header(data), leader_epoch=0, now_ms=NOW)
        put(log, (b"a", b"1"))
        log.producers.expire(NOW + 10, 10)
        for _ in range(3):
            compact(files, manager, log)
        assert [header.is_control for header, _ in batches(log)] == [True, False]

    def test_records_from_an_open_transaction_on_are_not_compacted(
        self, files: Files, manager: LogManager, log: Log
    ) -> None:
        fill(log, 30)
        put(
            log,
            (b"0", b"open"),
            producer_id=1,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        first_open = log.log_end_offset - 1
        fill(log, 30)
        before = [record for record in records(log) if record.offset >= first_open]
        compact(files, manager, log)
        after = list(records(log))
        assert [record for record in after if record.offset >= first_open] == before
        assert len(after) < 60


class TestRuns:
    def test_second_run_starts_at_the_first_dirty_offset(
        self, files: Files, manager: LogManager, log: Log
    ) -> None:
        fill(log, 50)
        compact(files, manager, log)
        clean = log.first_dirty_offset
        assert clean == 50
        assert measure(log, NOW).dirty_bytes == 0
        fill(log, 50, keys=3)
        log.roll()
        commit(log)
        dirtiness = measure(log, NOW)
        assert 0 < dirtiness.clean_bytes < dirtiness.dirty_bytes
        manager.checkpoint(NOW).run()
        compact_sealed(files, manager, log)
        assert set(latest(records(log))) == {b"key %d" % key for key in range(7)}
        assert len(list(records(log))) == 7

    def test_small_key_map_needs_several_runs(
        self, files: Files, manager: LogManager, log: Log
    ) -> None:
        fill(log, 100, keys=20)
        before = latest(records(log))
        compact(files, manager, log, key_map_bytes=5 * KEY_BYTES)
        assert 0 < log.first_dirty_offset < 100
        for _ in range(30):
            compact_sealed(files, manager, log, key_map_bytes=5 * KEY_BYTES)
        assert log.first_dirty_offset == 100
        assert latest(records(log)) == before

    def test_small_segments_are_merged(self, files: Files, manager: LogManager, log: Log) -> None:
        for number in range(100):
            put(log, (b"key %d" % (number % 60), b"v" * 50))
        sealed = len(log.segments)
        compact(files, manager, log)
        sizes = [segment.size for segment, _ in log.segments.closed_segments()]
        assert 1 < len(sizes) < sealed
        assert max(sizes) <= KEYED.segment_bytes
        for _ in range(3):
            compact_sealed(files, manager, log)
        assert [segment.size for segment, _ in log.segments.closed_segments()] == sizes

    def test_run_without_duplicates_replaces_no_segment(
        self, files: Files, manager: LogManager, log: Log
    ) -> None:
        put(log, (b"a", b"1"))
        compact(files, manager, log)
        first = log.segments[0]
        result = compact_sealed(files, manager, log)
        assert result is not None
        assert result.segments == ()
        assert log.segments[0] is first
        assert not names(files, log, ".cleaned")

    def test_log_without_sealed_segments_is_not_planned(
        self, files: Files, manager: LogManager, log: Log
    ) -> None:
        assert plan(log, NOW, key_map_bytes=KEYS, decompressed_max=1) is None
        put(log, (b"a", b"1"))
        assert plan(log, NOW, key_map_bytes=KEYS, decompressed_max=1) is None
        assert measure(log, NOW) == Dirtiness(0, 0, False)

    def test_run_is_not_planned_while_a_checkpoint_is_pending(
        self, log: Log, manager: LogManager
    ) -> None:
        fill(log, 60)
        commit(log)
        assert log.pending.needs_checkpoint
        assert plan(log, NOW, key_map_bytes=KEYS, decompressed_max=1) is None
        manager.checkpoint(NOW).run()
        assert plan(log, NOW, key_map_bytes=KEYS, decompressed_max=1) is not None

    def test_unsynced_segments_are_not_compacted(self, files: Files, log: Log) -> None:
        fill(log, 60)
        log.roll()
        log.advance_high_watermark(log.log_end_offset)
        assert bool(measure(log, NOW).dirty_bytes) is not files.durable
        log.synced(log.sync())
        assert measure(log, NOW).dirty_bytes

    def test_key_equal_to_the_digest_of_another_key_is_distinct(self) -> None:
        long = b"k" * 40
        assert digest(long) != digest(b"k" * 41)
        assert len(digest(long)) == len(digest(b"k" * 16)) == 16
        assert digest(b"k" * 15) == b"k" * 15


class TestWhen:
    def test_log_is_due_above_the_dirty_ratio(self, log: Log, manager: LogManager) -> None:
        fill(log, 60)
        log.roll()
        commit(log)
        assert is_due(log, measure(log, NOW))
        log.configure(replace(KEYED, min_cleanable_dirty_ratio=1.0))
        assert not is_due(log, measure(log, NOW))

    def test_records_within_the_minimum_lag_are_not_compacted(
        self, log: Log, manager: LogManager
    ) -> None:
        log.configure(replace(KEYED, min_compaction_lag_ms=1000))
        fill(log, 60)
        log.roll()
        commit(log)
        assert not is_due(log, measure(log, NOW + 1000 - 1))
        assert is_due(log, measure(log, NOW + 1000))

    def test_log_is_due_after_the_maximum_lag(self, log: Log, manager: LogManager) -> None:
        config = replace(KEYED, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=5000)
        log.configure(config)
        fill(log, 10)
        log.roll()
        commit(log)
        assert not is_due(log, measure(log, NOW + 5000))
        assert is_due(log, measure(log, NOW + 5001))

    def test_idle_segment_rolls_within_the_maximum_lag(self, log: Log) -> None:
        log.configure(replace(KEYED, max_compaction_lag_ms=5000))
        put(log, (b"a", b"1"))
        put(log, (b"a", b"2"), timestamp=NOW + 5000)
        assert len(log.segments) == 1
        put(log, (b"a", b"3"), timestamp=NOW + 5001)
        assert len(log.segments) == 2


class TestResultsThatCameTooLate:
    def run(self, files: Files, manager: LogManager, log: Log) -> Compaction:
        fill(log, 100)
        log.roll()
        commit(log)
        manager.checkpoint(NOW).run()
        task = plan(log, NOW, key_map_bytes=KEYS, decompressed_max=1 << 20)
        assert task is not None
        run = Compaction(files, task)
        carry_out(run)
        self.task = task
        return run

    def test_result_after_retention_is_discarded(
        self, files: Files, manager: LogManager, log: Log
    ) -> None:
        run = self.run(files, manager, log)
        log.delete_records_before(30)
        before = list(records(log))
        assert not put_in_place(files, log, self.task, run.result)
        discard(files, self.task, run.result.segments)
        manager.checkpoint(NOW).run()
        assert list(records(log)) == before
        assert not names(files, log, ".cleaned")
        assert not names(files, log, ".replaces")

    def test_result_after_a_truncation_is_discarded(
        self, files: Files, manager: LogManager, log: Log
    ) -> None:
        run = self.run(files, manager, log)
        log.truncate_to(50, now_ms=NOW)
        assert not put_in_place(files, log, self.task, run.result)

    def test_truncation_lowers_the_first_dirty_offset(
        self, files: Files, manager: LogManager, log: Log
    ) -> None:
        fill(log, 100)
        compact(files, manager, log)
        assert log.first_dirty_offset == 100
        log.truncate_to(95, now_ms=NOW)
        assert log.first_dirty_offset <= 95

    def test_missing_cleaned_file_is_an_error(
        self, files: Files, manager: LogManager, log: Log
    ) -> None:
        run = self.run(files, manager, log)
        for name in names(files, log, ".log.cleaned"):
            files.remove(f"{log.directory}/{name}")
        with pytest.raises(StorageError, match="missing"):
            prepare(files, self.task, run.result)


class TestAcrossRestarts:
    def test_gaps_are_accepted_after_a_policy_change(self, place: tuple[Files, str]) -> None:
        files, data_dir = place
        manager = open_manager(files, data_dir)
        log = open_log(manager, config=KEYED)
        fill(log, 100)
        compact(files, manager, log)
        fill(log, 3)
        commit(log)
        before = list(records(log))
        manager.close(now_ms=NOW)
        plain = LogConfig(segment_bytes=1500, index_interval_bytes=200)
        for clean in (True, False):
            manager = open_manager(files, data_dir)
            log = open_log(manager, config=plain)
            assert list(records(log)) == before
            assert log.first_dirty_offset == 100
            manager.close(clean=clean, now_ms=NOW)

    def test_damaged_cleaner_checkpoint_counts_as_compacted(self, place: tuple[Files, str]) -> None:
        files, data_dir = place
        manager = open_manager(files, data_dir)
        log = open_log(manager, config=KEYED)
        fill(log, 100)
        compact(files, manager, log)
        before = list(records(log))
        manager.close(now_ms=NOW)
        files.write_atomic(f"{data_dir}/cleaner-offset-checkpoint", b"?")
        log = open_log(open_manager(files, data_dir), config=LogConfig(segment_bytes=1500))
        assert list(records(log)) == before
        assert log.first_dirty_offset == 0

    def test_leader_epochs_without_records_survive_a_restart(
        self, place: tuple[Files, str]
    ) -> None:
        files, data_dir = place
        manager = open_manager(files, data_dir)
        log = open_log(manager, config=KEYED)
        for epoch in range(6):
            data = encode_batch([Record(b"a", b"%d" % epoch, NOW)])
            log.append(memoryview(data), read_header(data), leader_epoch=epoch, now_ms=NOW)
        entries = log.epochs.entries
        compact(files, manager, log)
        manager.close(now_ms=NOW)
        assert open_log(open_manager(files, data_dir), config=KEYED).epochs.entries == entries

    def test_cleaner_checkpoint_has_kafkas_format(self, place: tuple[Files, str]) -> None:
        files, data_dir = place
        manager = open_manager(files, data_dir)
        log = open_log(manager, config=KEYED)
        fill(log, 100)
        compact(files, manager, log)
        text = files.read_bytes(f"{data_dir}/cleaner-offset-checkpoint").decode().splitlines()
        assert (text[0], text[2]) == ("0", "orders 0 100")

    def test_unfinished_swap_of_apache_kafka_is_completed(self, place: tuple[Files, str]) -> None:
        files, data_dir = place
        manager = open_manager(files, data_dir)
        log = open_log(manager, config=KEYED)
        fill(log, 100)
        log.roll()
        commit(log)
        manager.checkpoint(NOW).run()
        task = plan(log, NOW, key_map_bytes=KEYS, decompressed_max=1 << 20)
        assert task is not None
        run = Compaction(files, task)
        carry_out(run)
        [new] = run.result.segments
        expected = latest(records(log))
        manager.close(now_ms=NOW)
        directory = log.directory
        # Kafka's names during a swap: old segments are being deleted, the first one already is.
        for name in files.listdir(directory):
            if name.endswith(".cleaned"):
                files.rename(
                    f"{directory}/{name}", f"{directory}/{name.replace('.cleaned', '.swap')}"
                )
        files.rename(f"{directory}/{0:020d}.log", f"{directory}/{0:020d}.log.deleted")
        log = open_log(open_manager(files, data_dir), config=KEYED)
        assert latest(records(log)) == expected
        assert [segment.base_offset for segment in log.segments] == [0, 100]
        assert log.segments[0].size == new.size
        assert not names(files, log, ".swap")


def test_damaged_replaces_file_is_ignored() -> None:
    assert replaced_from_bytes(b"") is None
    assert replaced_from_bytes(b"0\n1\nx\n") is None
    assert replaced_from_bytes(b"0\n2\n7\n5\n") == (7, [5])


def test_log_is_compacted_and_deleted_with_both_policies(place: tuple[Files, str]) -> None:
    files, data_dir = place
    manager = open_manager(files, data_dir)
    config = replace(
        KEYED, cleanup_policy=frozenset({"compact", "delete"}), retention_ms=10_000, segment_ms=100
    )
    log = open_log(manager, config=config)
    for number in range(50):
        put(log, (b"old %d" % (number % 5), b"v"), timestamp=NOW)
    compact(files, manager, log)
    for number in range(50):
        put(log, (b"new %d" % (number % 5), b"v"), timestamp=NOW + 9_000)
    compact(files, manager, log)
    assert len(latest(records(log))) == 10
    log.apply_retention(NOW + 10_050)
    assert set(latest(records(log))) == {b"new %d" % number for number in range(5)}
    log.apply_retention(NOW + 20_000)
    manager.checkpoint(NOW).run()
    assert latest(records(log)) == {}
    assert log.log_start_offset == 100


def test_random_histories_keep_the_last_values(pytestconfig: pytest.Config) -> None:
    """Compaction at any time, with any map size, keeps the latest values."""
    check_random_history(random.Random(pytestconfig.getoption("--seed")))


def check_random_history(random_: random.Random) -> None:
    files = MemFiles()
    manager = open_manager(files)
    log = open_log(manager, config=KEYED)
    truth: dict[bytes | None, bytes | None] = {}
    sequence = 0
    now = NOW
    for _ in range(60):
        for _ in range(random_.randint(1, 15)):
            pairs: Sequence[tuple[bytes, bytes | None]] = [
                (
                    b"%d" % random_.randint(0, 30),
                    random_.choice([None, b"v%d" % sequence, b"x" * 80]),
                )
                for _ in range(random_.randint(1, 6))
            ]
            put(
                log,
                *pairs,
                timestamp=now,
                codec=random_.choice([0, 0, 2, 4]),
                producer_id=9,
                producer_epoch=0,
                base_sequence=sequence,
            )
            sequence += len(pairs)
            truth.update(pairs)
        now += random_.choice([0, 600, 2000])
        if random_.random() < 0.8:
            compact(files, manager, log, now_ms=now, key_map_bytes=random_.choice([1000, KEYS]))
        found = latest(records(log))
        kept = {key: value for key, value in truth.items() if value is not None}
        assert {key: value for key, value in found.items() if value is not None} == kept
    log.reload_producers(now)
    producer = log.producers.get(9)
    assert producer is not None
    assert producer.next_sequence == sequence


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="shows open files on Linux only")
def test_replaced_file_is_freed_by_the_checkpoint(tmp_path: Path) -> None:
    """The rename runs in the event loop, where freeing a large file would take too long."""
    files = OsFiles()
    manager = open_manager(files, str(tmp_path))
    log = open_log(manager, "t", KEYED)
    put(log, (b"a", b"1"), (b"a", b"2"))
    log.roll()
    put(log, (b"b", b"1"))
    log.roll()
    commit(log)
    manager.checkpoint(NOW).run()
    assert replace_sealed(files, manager, log) is not None
    assert [path.name for path in unnamed_open_files(log.directory)] == [f"{0:020d}.log (deleted)"]
    manager.checkpoint(NOW).run()
    assert unnamed_open_files(log.directory) == []
    manager.close()


def unnamed_open_files(directory: str) -> list[Path]:
    """Return the deleted files of a directory that this process still has open."""
    found = [each.readlink() for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    return [
        link for link in found if str(link.parent) == directory and link.name.endswith("(deleted)")
    ]


HOSTILE_RECORDS = 50_000
# Maximum CPU time per step. Without steps within a batch, one batch takes several times as long.
STEP_SECONDS_MAX = 0.05
TRACED_RECORDS = 11_000
# Maximum memory, less than all records of the batch need as objects.
TRACED_BYTES_MAX = 3_000_000


def hostile_task(files: Files, kind: str, count: int) -> CompactionTask:
    """Return a task with small batches that are slow to decode: many records or many headers."""
    manager = open_manager(files)
    log = open_log(manager, config=replace(KEYED, segment_bytes=1 << 20))
    many = [Record(b"k", b"", NOW)] * count
    if kind == "headers":
        many = [Record(b"k", b"", NOW, [("h", b"")] * count)]
    data = encode_batch(many, codec=4)
    for _ in range(2):
        log.append(memoryview(data), read_header(data), leader_epoch=0, now_ms=NOW)
    log.roll()
    commit(log)
    manager.checkpoint(NOW).run()
    task = plan(log, NOW, key_map_bytes=KEYS, decompressed_max=1 << 26)
    assert task is not None
    return task


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["records", "headers"])
def test_steps_stay_short_for_hostile_batch(kind: str) -> None:
    files = MemFiles()
    longest = 0.0
    run = Compaction(files, hostile_task(files, kind, HOSTILE_RECORDS))
    began = time.thread_time()
    for work in run.steps():
        longest = max(longest, time.thread_time() - began)
        if work is not None:
            work()
        began = time.thread_time()
    assert longest < STEP_SECONDS_MAX


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["records", "headers"])
def test_memory_stays_small_for_hostile_batch(kind: str) -> None:
    files = MemFiles()
    run = Compaction(files, hostile_task(files, kind, TRACED_RECORDS))
    tracemalloc.start()
    carry_out(run)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < TRACED_BYTES_MAX
