from __future__ import annotations

import dataclasses
import random
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import pytest

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.primitives import Buffer
from kbroker.protocol.records import (
    LOG_APPEND_TIME_BIT,
    Marker,
    Record,
    end_transaction_marker,
    placed,
    read_header,
    read_records,
    with_timestamps,
)
from kbroker.storage.crash_files import CrashFiles
from kbroker.storage.errors import CorruptLogError, StorageError
from kbroker.storage.files import FileRange, Files, OsFiles
from kbroker.storage.log import Log, LogAppendInfo
from kbroker.storage.log_config import LogConfig
from kbroker.storage.lookups import aborted_transactions
from kbroker.storage.manager import LogManager

from .helpers import (
    NOW,
    SMALL,
    TOPIC_ID,
    append,
    batch,
    commit,
    content,
    open_log,
    open_manager,
    records,
    reopen_after_shutdown,
    values,
)
from .time_lookups import latest_record, offset_for_timestamp

Place = tuple[Files, str]


@pytest.fixture
def manager(place: Place) -> LogManager:
    return open_manager(*place)


@pytest.fixture
def log(manager: LogManager) -> Log:
    return open_log(manager)


def fill(log: Log, count: int, start: int = 0, **fields: int) -> None:
    for number in range(start, start + count):
        append(log, b"value %d" % number, timestamp=NOW + number, **fields)


def error_of(error: pytest.ExceptionInfo[KafkaError]) -> ErrorCode:
    return error.value.code


class TestAppend:
    def test_append_assigns_offsets_and_epoch(self, log: Log) -> None:
        assert append(log, b"a", b"b", leader_epoch=3) == LogAppendInfo(0, 1, -1, False)
        assert append(log, b"c", leader_epoch=3) == LogAppendInfo(2, 2, -1, False)
        header = read_header(content(log.read(2, 1000, limit=3)))
        assert (header.base_offset, header.leader_epoch) == (2, 3)
        assert log.log_end_offset == 3

    def test_append_keeps_the_bytes_of_the_records(self, log: Log) -> None:
        data, header = batch(b"x" * 100, b"y", codec=1)
        log.append(data, header, leader_epoch=0, now_ms=NOW)
        stored = content(log.read(0, 1000, limit=2))
        assert stored[16:] == data[16:]

    def test_append_returns_the_log_append_time(self, log: Log) -> None:
        data, header = batch(b"a", timestamp=5)
        header = with_timestamps(data, header, header.attributes | LOG_APPEND_TIME_BIT, NOW)
        assert log.append(data, header, leader_epoch=0, now_ms=NOW).log_append_time_ms == NOW
        assert next(records(log)).timestamp == NOW

    def test_log_has_no_files_before_the_first_append(
        self, log: Log, place: Place, manager: LogManager
    ) -> None:
        files, data_dir = place
        assert "orders-0" not in files.listdir(data_dir)
        assert not log.pending.dirty
        manager.checkpoint(NOW).run()
        assert "orders-0" not in files.listdir(data_dir)
        append(log, b"a")
        assert files.listdir(f"{data_dir}/orders-0") == [
            "00000000000000000000.log",
            "partition.metadata",
        ]

    def test_batch_above_the_segment_size_is_rejected(self, log: Log) -> None:
        with pytest.raises(KafkaError) as error:
            append(log, b"x" * 3000)
        assert error_of(error) == ErrorCode.RECORD_LIST_TOO_LARGE
        assert log.log_end_offset == 0

    def test_offline_log_rejects_appends(self, log: Log) -> None:
        append(log, b"a")
        log.fail("because")
        for use in (
            lambda: append(log, b"b"),
            lambda: log.read(0, 100, limit=1),
            lambda: offset_for_timestamp(log, 0, limit=1),
            lambda: log.apply_retention(NOW),
            lambda: log.truncate_to(0, now_ms=NOW),
        ):
            with pytest.raises(StorageError, match="because"):
                use()


class TestRoll:
    def test_segment_rolls_by_size(self, log: Log, place: Place) -> None:
        files, _ = place
        fill(log, 60)
        names = [name for name in files.listdir(log.directory) if name.endswith(".log")]
        assert len(names) > 2
        assert all(files.size(f"{log.directory}/{name}") <= 2000 for name in names)
        assert values(log) == [b"value %d" % number for number in range(60)]

    def test_segment_rolls_by_time(self, manager: LogManager, place: Place) -> None:
        log = open_log(manager, config=LogConfig(segment_ms=1000))
        for time in (0, 500, 1000, 1001, 1500):
            append(log, b"x", timestamp=NOW + time)
        assert _bases(log, place) == [0, 3]
        log.configure(LogConfig(segment_ms=100))
        append(log, b"x", timestamp=NOW + 1501)
        assert _bases(log, place) == [0, 3, 5]

    def test_segment_rolls_by_time_after_a_manual_roll(
        self, manager: LogManager, place: Place
    ) -> None:
        log = open_log(manager, config=LogConfig(segment_ms=1000))
        append(log, b"x", timestamp=NOW)
        log.roll()
        append(log, b"x", timestamp=NOW)
        append(log, b"x", timestamp=-1)
        append(log, b"x", timestamp=NOW + 1001)
        assert _bases(log, place) == [0, 1, 3]

    def test_segment_rolls_by_time_with_jitter(self, manager: LogManager, place: Place) -> None:
        log = open_log(manager, config=LogConfig(segment_ms=1000, segment_jitter_ms=500))
        for number in range(200):
            append(log, b"x", timestamp=NOW + number * 100)
        bases = _bases(log, place)
        lengths = {b - a for a, b in pairwise(bases)}
        assert lengths <= set(range(5, 12))
        assert len(lengths) > 1

    def test_segment_rolls_by_time_after_a_restart(self, manager: LogManager, place: Place) -> None:
        log = open_log(manager, config=LogConfig(segment_ms=1000))
        append(log, b"x", timestamp=NOW)
        commit(log)
        manager.close()
        log = open_log(open_manager(*place), config=LogConfig(segment_ms=1000))
        append(log, b"x", timestamp=NOW + 1000)
        assert _bases(log, place) == [0]
        append(log, b"x", timestamp=NOW + 1001)
        assert _bases(log, place) == [0, 2]

    def test_segment_rolls_by_index_size(self, manager: LogManager, place: Place) -> None:
        log = open_log(manager, config=LogConfig(index_interval_bytes=0, segment_index_bytes=60))
        fill(log, 12)
        bases = _bases(log, place)
        assert len(bases) > 2
        assert values(log) == [b"value %d" % number for number in range(12)]

    def test_segment_rolls_by_offset_range(self, manager: LogManager, place: Place) -> None:
        log = open_log(manager)
        append(log, b"a")
        data, header = batch(b"b")
        far = header._replace(base_offset=1 << 31)
        raw = bytearray(data)
        raw[0:8] = far.base_offset.to_bytes(8, "big")
        log.append_replicated(memoryview(bytes(raw)), now_ms=NOW)
        assert _bases(log, place) == [0, 1]
        assert [record.offset for record in records(log)] == [0, 1 << 31]

    def test_empty_active_segment_is_not_rolled(self, log: Log) -> None:
        assert log.roll() is log.roll()
        append(log, b"a")
        assert log.roll() is log.roll()


def _bases(log: Log, place: Place) -> list[int]:
    return [int(name[:20]) for name in place[0].listdir(log.directory) if name.endswith(".log")]


class TestProducers:
    def test_retry_returns_the_first_offsets(self, log: Log) -> None:
        first = append(log, b"a", b"b", producer_id=9, epoch=0, sequence=0)
        append(log, b"c", producer_id=9, epoch=0, sequence=2)
        retry = append(log, b"a", b"b", producer_id=9, epoch=0, sequence=0)
        assert retry == first._replace(duplicate=True, log_append_time_ms=NOW)
        assert log.log_end_offset == 3

    def test_sequence_gap_and_old_epoch_are_rejected(self, log: Log) -> None:
        append(log, b"a", producer_id=9, epoch=1, sequence=0)
        with pytest.raises(KafkaError) as error:
            append(log, b"b", producer_id=9, epoch=1, sequence=2)
        assert error_of(error) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        with pytest.raises(KafkaError) as error:
            append(log, b"a", producer_id=9, epoch=0, sequence=0)
        assert error_of(error) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert log.log_end_offset == 1

    def test_unknown_producer_may_start_at_any_sequence(self, log: Log) -> None:
        append(log, b"a", producer_id=9, epoch=0, sequence=17)
        append(log, b"b", producer_id=9, epoch=0, sequence=18)

    def test_producer_state_survives_shutdown_crash_and_roll(
        self, manager: LogManager, place: Place
    ) -> None:
        log = open_log(manager)
        for number in range(40):
            append(log, b"%d" % number * 30, producer_id=9, epoch=2, sequence=number)
        commit(log)
        manager.close()
        for clean in (True, False):
            manager = open_manager(*place)
            assert manager.clean == clean
            log = open_log(manager)
            retry = append(log, b"39" * 30, producer_id=9, epoch=2, sequence=39)
            assert retry == LogAppendInfo(39, 39, NOW, True)
            with pytest.raises(KafkaError):
                append(log, b"x", producer_id=9, epoch=2, sequence=41)
            manager._lock.release()

    def test_idle_producers_expire_by_the_time_of_the_broker(self, log: Log) -> None:
        append(log, b"old event", producer_id=9, epoch=0, sequence=0, timestamp=1)
        log.apply_retention(NOW + 86_399_999)
        assert log.producers.get(9)
        log.apply_retention(NOW + 86_400_000)
        assert not log.producers.get(9)


class TestTransactions:
    def write(self, log: Log, producer_id: int, sequence: int) -> None:
        data, header = batch(
            b"t", producer_id=producer_id, epoch=0, sequence=sequence, transactional=True
        )
        log.append(data, header, leader_epoch=0, now_ms=NOW)

    def end(self, log: Log, producer_id: int, *, commit: bool, coordinator_epoch: int = 0) -> None:
        marker = Marker(commit, coordinator_epoch)
        data = end_transaction_marker(
            marker, producer_id=producer_id, producer_epoch=0, timestamp=NOW
        )
        log.append(memoryview(data), read_header(data), leader_epoch=0, now_ms=NOW)

    def test_open_transaction_limits_the_last_stable_offset(self, log: Log) -> None:
        append(log, b"a")
        self.write(log, 1, 0)
        self.write(log, 2, 0)
        assert commit(log) == 3
        assert log.last_stable_offset == 1
        self.end(log, 1, commit=True)
        assert log.last_stable_offset == 1  # the marker is not visible yet
        commit(log)
        assert log.last_stable_offset == 2
        self.end(log, 2, commit=False)
        commit(log)
        assert log.last_stable_offset == log.high_watermark == 5

    def test_aborted_transactions_of_a_range_are_found(self, log: Log, place: Place) -> None:
        self.write(log, 1, 0)
        self.end(log, 1, commit=False)
        self.write(log, 2, 0)
        self.end(log, 2, commit=True)
        self.write(log, 1, 1)
        fill(log, 40)
        self.end(log, 1, commit=False)
        commit(log)
        end = log.log_end_offset
        assert aborted_transactions(log, 0, end) == [(1, 0), (1, 4)]
        assert aborted_transactions(log, 0, 2) == [(1, 0)]
        assert aborted_transactions(log, 2, end) == [(1, 4)]

    @pytest.mark.parametrize("clean", [True, False])
    def test_transactions_survive_a_restart(
        self, manager: LogManager, place: Place, clean: bool
    ) -> None:
        log = open_log(manager)
        self.write(log, 1, 0)
        self.end(log, 1, commit=False)
        self.write(log, 2, 0)
        commit(log)
        if clean:
            manager.close()
        else:
            manager._lock.release()
        log = open_log(open_manager(*place))
        log.advance_high_watermark(3)
        assert aborted_transactions(log, 0, 3) == [(1, 0)]
        assert log.last_stable_offset == 2

    def test_transaction_index_lost_in_a_crash_is_rebuilt(
        self, manager: LogManager, place: Place
    ) -> None:
        log = open_log(manager)
        self.write(log, 1, 0)
        self.end(log, 1, commit=False)
        log.roll()
        commit(log)
        manager._lock.release()
        manager = open_manager(*place)
        open_log(manager)
        manager.close()
        log = open_log(open_manager(*place))
        assert aborted_transactions(log, 0, 2) == [(1, 0)]

    @pytest.mark.parametrize("damage", ["cut", "zeros", "twice", "another version"])
    def test_damaged_transaction_index_takes_the_log_offline(
        self, tmp_path: Path, damage: str
    ) -> None:
        """Consumers would get aborted records as committed."""
        place = (OsFiles(), (tmp_path / "data").as_posix())
        manager = open_manager(*place)
        log = open_log(manager)
        for sequence in (0, 1):
            self.write(log, 1, sequence)
            self.end(log, 1, commit=False)
        log.roll()
        self.write(log, 1, 2)
        commit(log)
        manager.close()
        index = Path(log.directory) / "00000000000000000000.txnindex"
        sound = index.read_bytes()
        damages = {
            "cut": sound[:-1],
            "zeros": bytes(len(sound)),
            "twice": sound * 2,
            "another version": b"\0\1" + sound[2:],
        }
        index.write_bytes(damages[damage])
        manager = open_manager(*place)
        log = open_log(manager)
        with pytest.raises(CorruptLogError, match="log repair"):
            aborted_transactions(log, 0, 2)
        assert log.offline
        manager.close()
        repaired = open_manager(*place).repair_log("orders", TOPIC_ID, 0, SMALL, now_ms=NOW).log
        assert aborted_transactions(repaired, 0, 5) == [(1, 0), (1, 2)]
        assert repaired.log_end_offset == 5
        repaired.advance_high_watermark(5)
        assert repaired.last_stable_offset == 4

    def test_marker_is_not_appended_with_a_damaged_transaction_index(self, tmp_path: Path) -> None:
        place = (OsFiles(), (tmp_path / "data").as_posix())
        manager = open_manager(*place)
        log = open_log(manager)
        self.write(log, 1, 0)
        self.end(log, 1, commit=False)
        commit(log)
        log.save()
        manager.close()
        index = Path(log.directory) / "00000000000000000000.txnindex"
        index.write_bytes(index.read_bytes()[:-1])
        log = open_log(open_manager(*place))
        self.write(log, 1, 1)
        with pytest.raises(CorruptLogError):
            self.end(log, 1, commit=False)
        assert log.log_end_offset == 3

    def test_nontransactional_batch_within_a_transaction_is_rejected(self, log: Log) -> None:
        self.write(log, 1, 0)
        with pytest.raises(KafkaError) as error:
            append(log, b"apart", producer_id=1, epoch=0, sequence=1)
        assert error_of(error) == ErrorCode.INVALID_TXN_STATE
        append(log, b"of nobody")
        assert log.log_end_offset == 2
        self.end(log, 1, commit=True)
        assert append(log, b"apart", producer_id=1, epoch=0, sequence=1).base_offset == 3

    def test_truncation_of_a_marker_reopens_its_transaction(self, log: Log) -> None:
        """Truncation also removes the markers' entries in the index."""
        self.write(log, 1, 0)
        self.write(log, 2, 0)
        end = commit(log)
        self.end(log, 1, commit=False)
        self.end(log, 2, commit=True)
        log.truncate_to(end, now_ms=NOW)
        assert aborted_transactions(log, 0, 10) == []
        assert log.last_stable_offset == 0
        self.end(log, 1, commit=True)
        commit(log)
        assert log.last_stable_offset == 1
        assert aborted_transactions(log, 0, 10) == []

    def test_truncation_of_all_records_survives_a_shutdown(
        self, manager: LogManager, place: Place
    ) -> None:
        log = open_log(manager)
        self.write(log, 1, 0)
        self.end(log, 1, commit=False)
        log.roll()
        log.truncate_to(0, now_ms=NOW)
        manager.close()
        log = open_log(open_manager(*place))
        assert log.log_end_offset == 0
        self.write(log, 1, 0)
        self.end(log, 1, commit=True)
        assert aborted_transactions(log, 0, 2) == []

    def test_log_start_may_pass_an_open_transaction(self, log: Log) -> None:
        self.write(log, 1, 0)
        append(log, b"a")
        commit(log)
        log.delete_records_before(1)
        assert log.last_stable_offset == 1, "the transaction is not open any more"
        self.end(log, 1, commit=False)
        commit(log)
        assert log.last_stable_offset == 3

    def test_marker_of_a_fenced_coordinator_is_rejected(self, log: Log) -> None:
        self.write(log, 1, 0)
        self.end(log, 1, commit=True, coordinator_epoch=5)
        with pytest.raises(KafkaError) as error:
            self.end(log, 1, commit=True, coordinator_epoch=4)
        assert error_of(error) == ErrorCode.TRANSACTION_COORDINATOR_FENCED


class TestSync:
    def test_sync_and_high_watermark_advance_in_order(self, log: Log, place: Place) -> None:
        durable = place[0].durable
        append(log, b"a")
        assert log.pending.dirty == durable
        end = log.sync()
        assert (end, log.pending.dirty, log.synced_offset, log.high_watermark) == (1, False, 0, 0)
        append(log, b"b")
        log.synced(end)
        log.advance_high_watermark(log.synced_offset)
        assert (log.synced_offset, log.high_watermark, log.log_end_offset) == (1, 1, 2)
        assert log.pending.dirty == durable
        log.synced(0)
        log.advance_high_watermark(0)
        assert (log.synced_offset, log.high_watermark) == (1, 1)

    def test_high_watermark_stays_within_the_log(self, log: Log) -> None:
        append(log, b"a")
        log.advance_high_watermark(17)
        assert log.high_watermark == 1

    def test_sealed_segment_is_synced(self, tmp_path: Path) -> None:
        log = open_log(open_manager(OsFiles(), (tmp_path / "data").as_posix()))
        fill(log, 30)
        items = log.pending.take_dirty()
        assert sum(type(item).__name__ == "SegmentFile" for item in items) > 1


class TestRead:
    def test_read_starts_with_the_batch_of_the_offset(self, log: Log) -> None:
        append(log, b"a", b"b", b"c")
        append(log, b"d", b"e")
        part = log.read(1, 10_000, limit=5)
        assert (part.first_offset, part.next_offset) == (0, 5)
        assert [record.offset for record in read_records(content(part))] == [0, 1, 2, 3, 4]
        part = log.read(4, 10_000, limit=5)
        assert (part.first_offset, part.next_offset) == (3, 5)
        assert part.size == len(content(part))

    def test_read_stops_at_the_limit(self, log: Log) -> None:
        for value in (b"a", b"b", b"c"):
            append(log, value)
        part = log.read(0, 10_000, limit=2)
        assert [record.offset for record in read_records(content(part))] == [0, 1]
        assert part.next_offset == 2
        assert log.read(2, 10_000, limit=2) == (b"", 2, 2, 0)
        assert log.read(3, 10_000, limit=3).size == 0

    def test_read_respects_max_bytes(self, log: Log) -> None:
        sizes = [len(batch(b"x" * count)[0]) for count in (100, 50, 200)]
        for count in (100, 50, 200):
            append(log, b"x" * count)
        assert log.read(0, sizes[0] + sizes[1], limit=3).size == sizes[0] + sizes[1]
        assert log.read(0, sizes[0] + sizes[1] + 1, limit=3).next_offset == 2
        assert log.read(0, 10, limit=3).size == sizes[0]
        empty = log.read(0, 10, limit=3, at_least_one=False)
        assert (empty.size, empty.next_offset) == (0, 0)

    @pytest.mark.parametrize("max_bytes", [1, 150, 700, 5000])
    def test_every_offset_in_many_segments_is_read(self, log: Log, max_bytes: int) -> None:
        count = 0
        while count < 120:
            size = 1 + count % 4
            append(log, *(b"v%d" % (count + i) for i in range(size)))
            count += size
        for offset in range(count):
            part = log.read(offset, max_bytes, limit=count)
            found = list(read_records(content(part)))
            assert part.first_offset == found[0].offset <= offset < part.next_offset
            assert found[-1].offset == part.next_offset - 1
            assert [record.value for record in found] == [b"v%d" % r.offset for r in found]

    def test_read_out_of_range_is_rejected(self, log: Log) -> None:
        fill(log, 5)
        commit(log)
        log.delete_records_before(2)
        for offset in (-1, 1, 6):
            with pytest.raises(KafkaError) as error:
                log.read(offset, 100, limit=5)
            assert error_of(error) == ErrorCode.OFFSET_OUT_OF_RANGE

    def test_range_outlives_its_segment(
        self, log: Log, manager: LogManager, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("kbroker.storage.segment.FEW_BYTES", 0)
        fill(log, 60)
        commit(log)
        part = log.read(0, 500, limit=60)
        open_range = log.read(59, 500, limit=60)
        log.delete_records_before(50)
        manager.checkpoint(NOW).run()
        assert _bases(log, place)[0] > 0
        manager.delete_logs([("orders", 0)], TOPIC_ID)
        manager.empty_trash()
        assert isinstance(part.records, FileRange)
        assert next(read_records(content(part))).value == b"value 0"
        assert next(read_records(content(open_range))).value == b"value 50"[:6] + b"59"

    def test_read_in_a_gap_returns_the_next_batch(self, manager: LogManager) -> None:
        config = dataclasses.replace(SMALL, cleanup_policy=frozenset({"compact"}))
        log = open_log(manager, config=config)
        for offset in (3, 10, 40, 41, 90):
            data, _ = batch(b"x" * 600)
            raw = offset.to_bytes(8, "big") + bytes(data[8:12]) + bytes(4) + bytes(data[16:])
            log.append_replicated(memoryview(raw), now_ms=NOW)
        assert [record.offset for record in records(log, 0)] == [3, 10, 40, 41, 90]
        for offset, first in ((0, 3), (4, 10), (11, 40), (42, 90), (90, 90)):
            assert log.read(offset, 10, limit=91).first_offset == first


class TestTimes:
    TIMES = (5, 3, 9, 9, 20, 1, 30)

    def fill(self, log: Log) -> None:
        for time in self.TIMES:
            append(log, b"x" * 300, timestamp=NOW + time)

    @pytest.mark.parametrize("reopen", [False, True])
    def test_first_record_at_or_after_a_timestamp_is_found(
        self, manager: LogManager, place: Place, reopen: bool
    ) -> None:
        log = open_log(manager)
        self.fill(log)
        if reopen:
            commit(log)
            manager.close()
            log = open_log(open_manager(*place))
        for time in range(32):
            expected = next((i for i, time_ in enumerate(self.TIMES) if time_ >= time), None)
            found = offset_for_timestamp(log, NOW + time, limit=7)
            if expected is None:
                assert found is None
            else:
                assert found == (expected, NOW + self.TIMES[expected], 0)

    def test_record_inside_a_compressed_batch_is_found(self, log: Log) -> None:
        data, header = batch(b"a", b"b", b"c", timestamps=[NOW, NOW + 10, NOW + 20], codec=1)
        log.append(data, header, leader_epoch=4, now_ms=NOW)
        assert offset_for_timestamp(log, NOW + 5, limit=3) == (1, NOW + 10, 4)
        assert latest_record(log) == (2, NOW + 20, 4)

    def test_time_lookup_respects_the_log_bounds(self, log: Log) -> None:
        assert offset_for_timestamp(log, 0, limit=0) is None
        assert latest_record(log) is None
        self.fill(log)
        assert offset_for_timestamp(log, NOW + 10, limit=4) is None
        commit(log)
        log.delete_records_before(5)
        found = offset_for_timestamp(log, NOW, limit=7)
        assert found is not None
        assert found.offset == 5

    def test_record_with_the_maximum_timestamp_is_found(self, log: Log) -> None:
        self.fill(log)
        append(log, b"late", timestamp=NOW + 30)
        assert latest_record(log) == (6, NOW + 30, 0)


class TestRetention:
    def test_segments_expire_by_size(self, manager: LogManager, place: Place) -> None:
        log = open_log(
            manager, config=dataclasses.replace(SMALL, retention_bytes=4000, retention_ms=-1)
        )
        fill(log, 100)
        assert log.apply_retention(NOW) == 0, "records above the high watermark were deleted"
        commit(log)
        assert log.apply_retention(NOW) > 0
        assert log.log_start_offset > 0
        assert 4000 <= log.segments.size < 4000 + 2000
        before = _bases(log, place)
        manager.checkpoint(NOW).run()
        assert _bases(log, place)[0] == log.log_start_offset > before[0]
        assert log.apply_retention(NOW) == 0
        assert values(log)[-1] == b"value 99"

    def test_retention_by_time_deletes_the_newest_segment(self, manager: LogManager) -> None:
        log = open_log(manager, config=dataclasses.replace(SMALL, retention_ms=1000))
        fill(log, 50)
        commit(log)
        assert log.apply_retention(NOW + 49 + 1000) > 0
        assert log.log_start_offset < 50
        assert log.apply_retention(NOW + 49 + 1001) == 1
        assert (log.log_start_offset, log.log_end_offset, log.segments.size) == (50, 50, 0)
        assert append(log, b"next").base_offset == 50

    def test_emptied_log_keeps_its_end_offset(self, manager: LogManager, place: Place) -> None:
        log = open_log(manager, config=dataclasses.replace(SMALL, retention_ms=1000))
        append(log, b"a", producer_id=3, epoch=0, sequence=0)
        commit(log)
        log.apply_retention(NOW + 10_000)
        manager.checkpoint(NOW).run()
        manager._lock.release()
        log = open_log(open_manager(*place))
        assert (log.log_start_offset, log.log_end_offset) == (1, 1)
        assert append(log, b"a", producer_id=3, epoch=0, sequence=0).duplicate

    def test_segments_without_timestamps_age_from_their_last_append(
        self, manager: LogManager, place: Place
    ) -> None:
        config = LogConfig(segment_bytes=200, retention_ms=1000)
        log = open_log(manager, config=config)
        for number in range(10):
            append(log, b"value %d" % number, timestamp=-1)
        commit(log)
        assert log.apply_retention(NOW + 1000) == 0
        manager.close(now_ms=NOW)
        # The time is unknown after a restart, so it counts from the restart.
        manager = open_manager(*place)
        log = open_log(manager, config=config, now_ms=NOW + 5000)
        assert log.apply_retention(NOW + 6000) == 0
        assert log.apply_retention(NOW + 6001) > 0
        assert log.log_start_offset == log.log_end_offset

    def test_future_timestamp_delays_retention_of_later_segments(self, manager: LogManager) -> None:
        log = open_log(manager, config=LogConfig(segment_bytes=100, retention_ms=1000))
        append(log, b"x", timestamp=NOW - 5000)
        append(log, b"x", timestamp=NOW + 5000)
        append(log, b"x", timestamp=NOW - 5000)
        commit(log)
        assert log.apply_retention(NOW) == 1
        assert log.apply_retention(NOW + 6001) == 2

    def test_retention_ignores_compacted_logs(self, manager: LogManager) -> None:
        config = dataclasses.replace(
            SMALL, retention_ms=0, retention_bytes=0, cleanup_policy=frozenset({"compact"})
        )
        log = open_log(manager, config=config)
        fill(log, 50)
        commit(log)
        assert log.apply_retention(NOW + 1_000_000) == 0

    def test_delete_records_moves_the_log_start(
        self, log: Log, manager: LogManager, place: Place
    ) -> None:
        fill(log, 60)
        commit(log)
        assert log.delete_records_before(30) == 30
        assert log.delete_records_before(10) == 30
        assert values(log)[0] == b"value 30"
        with pytest.raises(KafkaError) as error:
            log.delete_records_before(61)
        assert error_of(error) == ErrorCode.OFFSET_OUT_OF_RANGE
        manager.checkpoint(NOW).run()
        manager._lock.release()
        log = open_log(open_manager(*place))
        assert log.log_start_offset == 30
        assert values(log) == [b"value %d" % number for number in range(30, 60)]

    def test_delete_all_records_rolls_the_log(
        self, log: Log, manager: LogManager, place: Place
    ) -> None:
        fill(log, 60)
        commit(log)
        assert log.delete_records_before(60) == 60
        manager.checkpoint(NOW).run()
        assert _bases(log, place) == [60]
        assert append(log, b"next").base_offset == 60


class TestTruncate:
    def test_truncation_restores_offsets_epochs_and_producers(self, log: Log) -> None:
        for number in range(40):
            append(
                log,
                b"v%d" % number * 20,
                leader_epoch=number // 10,
                producer_id=9,
                epoch=0,
                sequence=number,
            )
        commit(log)
        log.truncate_to(23, now_ms=NOW)
        assert (log.log_end_offset, log.synced_offset, log.high_watermark) == (23, 23, 23)
        assert log.epochs.entries == [(0, 0), (1, 10), (2, 20)]
        assert values(log) == [b"v%d" % number * 20 for number in range(23)]
        assert not log.pending.dirty
        assert append(log, b"v22" * 20, producer_id=9, epoch=0, sequence=22).duplicate
        assert (
            append(log, b"new", producer_id=9, epoch=0, sequence=23, leader_epoch=7).base_offset
            == 23
        )
        assert log.epochs.end_offset_for(2, 24) == (2, 23)

    @pytest.mark.parametrize("offset", [0, 1, 13, 39])
    def test_truncated_log_equals_a_log_without_the_rest(
        self, manager: LogManager, place: Place, offset: int
    ) -> None:
        log, other = open_log(manager), open_log(manager, "other")
        fill(log, 40)
        commit(log)
        log.truncate_to(offset, now_ms=NOW)
        fill(log, 40 - offset, offset)
        fill(other, 40)
        commit(log)
        manager.checkpoint(NOW).run()
        manager._lock.release()
        manager = open_manager(*place)
        log, other = open_log(manager), open_log(manager, "other")
        assert list(records(log)) == list(records(other))
        assert offset_for_timestamp(log, NOW + 39, limit=40) == (39, NOW + 39, 0)

    def test_indexes_are_saved_before_a_truncation(self, log: Log, place: Place) -> None:
        fill(log, 100)
        commit(log)
        log.truncate_to(90, now_ms=NOW)
        sealed = _bases(log, place)[:-1]
        assert len(sealed) >= 3
        for base in sealed:
            assert place[0].size(f"{log.directory}/{base:020d}.index") > 0

    def test_truncation_inside_a_batch_removes_the_batch(self, log: Log) -> None:
        append(log, b"a", b"b")
        append(log, b"c", b"d")
        log.truncate_to(3, now_ms=NOW)
        assert log.log_end_offset == 2

    @pytest.mark.parametrize("next_step", ["stops", "is killed", "loses what was not synced"])
    def test_restart_before_the_log_start_survives_a_restart(self, next_step: str) -> None:
        """A follower restarts its log if the leader has less than the follower (KIP-101)."""
        files = CrashFiles()
        manager = open_manager(files)
        log = open_log(manager)
        append(log, b"a")
        append(log, b"b")
        commit(log)
        log.delete_records_before(1)
        manager.checkpoint(NOW).run()
        log.restart_at(0, now_ms=NOW)
        append(log, b"c")
        append(log, b"d")
        commit(log)
        if next_step == "stops":
            manager.close(now_ms=NOW)
        elif next_step == "is killed":
            files = files.killed()
        else:
            files = files.crashed("drop", 0)
        assert values(open_log(open_manager(files))) == [b"c", b"d"]

    def test_restart_at_another_offset_drops_all_records(self, log: Log, place: Place) -> None:
        fill(log, 40)
        commit(log)
        log.restart_at(100, now_ms=NOW)
        assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (100, 100, 100)
        assert _bases(log, place) == [100]
        assert append(log, b"x").base_offset == 100


class TestReplicated:
    def test_replicated_batches_are_stored_unchanged(self, manager: LogManager) -> None:
        leader, follower = open_log(manager), open_log(manager, "copy")
        for number in range(30):
            append(leader, b"v%d" % number, b"w", leader_epoch=number // 7)
        offset = 0
        while offset < leader.log_end_offset:
            part = leader.read(offset, 500, limit=leader.log_end_offset)
            assert follower.append_replicated(memoryview(content(part)), now_ms=NOW) == (
                part.next_offset
            )
            offset = part.next_offset
        assert list(records(follower)) == list(records(leader))
        assert follower.epochs.entries == leader.epochs.entries

    def test_known_batches_are_skipped_and_corrupt_ones_rejected(self, log: Log) -> None:
        append(log, b"a", b"b")
        stored = content(log.read(0, 1000, limit=2))
        assert log.append_replicated(memoryview(stored), now_ms=NOW) == 2
        damaged = bytearray(stored)
        damaged[0:8] = (2).to_bytes(8, "big")
        damaged[-1] ^= 1
        with pytest.raises(KafkaError) as error:
            log.append_replicated(memoryview(bytes(damaged)), now_ms=NOW)
        assert error_of(error) == ErrorCode.CORRUPT_MESSAGE
        damaged[0:8] = (1).to_bytes(8, "big")
        with pytest.raises(KafkaError) as error:
            log.append_replicated(memoryview(bytes(damaged)), now_ms=NOW)
        assert error_of(error) == ErrorCode.OFFSET_OUT_OF_RANGE

    def test_replicated_batch_may_exceed_the_segment_size(self, manager: LogManager) -> None:
        leader = open_log(manager, config=LogConfig(segment_bytes=10_000))
        follower = open_log(manager, "copy", config=SMALL)
        for value in (b"x", b"y" * 5000, b"z"):
            append(leader, value)
        copied = content(leader.read(0, 10_000, limit=3))
        assert follower.append_replicated(memoryview(copied), now_ms=NOW) == 3
        assert values(follower) == [b"x", b"y" * 5000, b"z"]
        assert len(follower.segments) == 3

    def test_replicated_gaps_are_kept_after_a_restart(self, place: Place) -> None:
        parts: list[Buffer] = []
        for first in (5, 20, 40):
            data, header = batch(b"v%d" % first)
            parts += placed(data, header, first, 1)
        manager = open_manager(*place)
        log = open_log(manager, config=SMALL)
        log.append_replicated(memoryview(b"".join(parts)), now_ms=NOW)
        commit(log)
        manager.close(now_ms=NOW)
        reopened = open_log(open_manager(*place), config=SMALL)
        assert [record.offset for record in records(reopened)] == [5, 20, 40]
        assert reopened.log_end_offset == 41


def test_indexes_of_few_sealed_segments_stay_in_memory(log: Log) -> None:
    fill(log, 400)
    for offset in (0, 399, 100, 200, 0):
        assert next(records(log, offset)) == Record(
            b"k", b"value %d" % offset, NOW + offset, [], offset
        )
    in_memory = [segment for segment in log.segments if segment.indexes.in_memory]
    assert len(log.segments) > 15
    assert len(in_memory) <= 9


def test_log_of_another_topic_id_is_not_opened(log: Log) -> None:
    assert log.topic_id == UUID(int=7)
    assert repr(log) == "<Log orders-0 to 0>"


def timed_rolls(times: list[tuple[int, int]], segment_ms: int) -> list[int]:
    """Return the base offsets of the segments that Kafka creates for batches of one record.

    Args:
        times: Timestamp of each batch (ms), -1 for none, and the clock at its append (ms).
        segment_ms: The topic's `segment.ms`.
    """
    bases: list[int] = []
    first = created = 0
    for offset, (timestamp, clock) in enumerate(times):
        waited = timestamp - first if first >= 0 else clock - created
        if not bases or waited > segment_ms:
            bases.append(offset)
            first, created = timestamp, clock
    return bases


def test_segments_roll_by_time_as_in_kafka(
    place: tuple[Files, str], pytestconfig: pytest.Config
) -> None:
    """Without record timestamps, the age of the segment counts."""
    random_ = random.Random(pytestconfig.getoption("--seed"))
    manager = open_manager(*place)
    for number in range(30):
        log = open_log(manager, f"topic-{number}", LogConfig(segment_ms=100))
        clock, times = NOW, []
        for _ in range(25):
            clock += random_.choice([0, 20, 60, 101, 150])
            timestamp = random_.choice([-1, -1, clock, clock - 70])
            times.append((timestamp, clock))
            data, header = batch(b"v", timestamp=timestamp)
            log.append(data, header, leader_epoch=0, now_ms=clock)
        assert [segment.base_offset for segment in log.segments] == timed_rolls(times, 100)


def test_segment_without_timestamps_rolls_by_time_after_restart(place: tuple[Files, str]) -> None:
    manager = open_manager(*place)
    config = LogConfig(segment_ms=100)
    append(open_log(manager, config=config), b"1", timestamp=-1)
    log = open_log(reopen_after_shutdown(manager), config=config)
    for later in (0, 100, 101):
        data, header = batch(b"v", timestamp=-1)
        log.append(data, header, leader_epoch=0, now_ms=NOW + later)
    assert [segment.base_offset for segment in log.segments] == [0, 3]
