from __future__ import annotations

import logging
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from kbroker.protocol.records import read_header
from kbroker.storage.crash_files import CrashFile, CrashFiles
from kbroker.storage.errors import CorruptLogError, StorageError
from kbroker.storage.log import Log
from kbroker.storage.log_config import LogConfig
from kbroker.storage.manager import LogManager
from kbroker.storage.scrubbing import scrub

from .helpers import NOW, append, commit, open_log, open_manager, records, values
from .time_lookups import offset_for_timestamp

CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=200)
ONE_SEGMENT = LogConfig(index_interval_bytes=200)
DIRECTORY = "data/orders-0"


def fill(log: Log, count: int, start: int = 0, *, leader_epoch: int = 0) -> None:
    for number in range(start, start + count):
        append(
            log,
            b"value %d" % number,
            timestamp=NOW + number,
            producer_id=5,
            epoch=0,
            sequence=number,
            leader_epoch=leader_epoch,
        )


def fill_epochs(log: Log, epochs: int, count: int) -> None:
    """Write `count` records in each epoch from 0 on."""
    for epoch in range(epochs):
        fill(log, count, epoch * count, leader_epoch=epoch)


def disk_after_shutdown(count: int = 60, *, config: LogConfig = CONFIG) -> CrashFiles:
    """Return a disk after a clean shutdown with `count` records."""
    files = CrashFiles()
    manager = open_manager(files)
    log = open_log(manager, config=config)
    fill(log, count)
    commit(log)
    manager.close(now_ms=NOW)
    return files


def crashed(
    checkpointed: int, synced: int, written: int, *, config: LogConfig = ONE_SEGMENT
) -> CrashFiles:
    """Return a disk after a kill, with records up to three positions and all bytes written."""
    files = CrashFiles()
    manager = open_manager(files)
    log = open_log(manager, config=config)
    fill(log, checkpointed)
    commit(log)
    manager.checkpoint(NOW).run()
    fill(log, synced - checkpointed, checkpointed)
    commit(log)
    fill(log, written - synced, synced)
    return files


def position_of(files: CrashFiles, offset: int, name: str = "00000000000000000000.log") -> int:
    """Return the file position of the batch that contains an offset."""
    data, position = files.read_bytes(f"{DIRECTORY}/{name}"), 0
    while read_header(data, position).last_offset < offset:
        position += read_header(data, position).size
    return position


def damage(
    files: CrashFiles, name: str, change: Callable[[bytearray], object], directory: str = DIRECTORY
) -> None:
    data = bytearray(files.read_bytes(f"{directory}/{name}"))
    change(data)
    files.damage(f"{directory}/{name}", bytes(data))


@contextmanager
def bytes_read() -> Iterator[list[int]]:
    """Record the size of each read of an open file."""
    read, sizes = CrashFile.read, list[int]()

    def counted(file: CrashFile, position: int, size: int) -> bytes:
        data = read(file, position, size)
        sizes.append(len(data))
        return data

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CrashFile, "read", counted)
        yield sizes


def numbers(log: Log) -> list[int]:
    return [int((value or b"").split()[1]) for value in values(log)]


def read_everything(log: Log) -> None:
    """Read, search and scrub the log, so that any damage can be detected."""
    assert numbers(log) == list(range(log.log_start_offset, log.log_end_offset))
    for number in range(log.log_start_offset, log.log_end_offset, 7):
        found = offset_for_timestamp(log, NOW + number, limit=log.log_end_offset)
        assert found == (number, NOW + number, 0)
    while scrub(log, 300):
        pass


class TestTail:
    def test_undamaged_records_survive_a_crash_and_are_synced(self) -> None:
        files = crashed(10, 20, 30)
        log = open_log(open_manager(files), config=ONE_SEGMENT)
        assert numbers(log) == list(range(30))
        assert log.synced_offset == 30
        log = open_log(open_manager(files.crashed("drop", 0)), config=ONE_SEGMENT)
        assert numbers(log) == list(range(30))

    def test_torn_end_is_truncated(self, caplog: pytest.LogCaptureFixture) -> None:
        files = crashed(10, 20, 30)
        damage(files, "00000000000000000000.log", lambda data: data.__delitem__(slice(-5, None)))
        log = open_log(open_manager(files), config=ONE_SEGMENT)
        assert numbers(log) == list(range(29))
        assert not [name for name in files.listdir(DIRECTORY) if "corrupt" in name]
        assert not [record for record in caplog.records if record.levelno > logging.INFO]
        fill(log, 1, 29)
        assert log.log_end_offset == 30

    def test_valid_batches_after_a_corrupt_one_are_kept(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        files = crashed(10, 20, 30)
        at = position_of(files, 25)
        whole = files.read_bytes(f"{DIRECTORY}/00000000000000000000.log")
        damage(files, "00000000000000000000.log", lambda data: data.__setitem__(at + 70, 1))
        log = open_log(open_manager(files), config=ONE_SEGMENT)
        assert numbers(log) == list(range(25))
        name = f"00000000000000000000.log.{at}.corrupt"
        kept = files.read_bytes(f"{DIRECTORY}/{name}")
        assert kept[71:] == whole[at + 71 :]
        warning = caplog.records[-1].getMessage()
        assert "truncated at offset 25" in warning
        assert "4 later unsynced records" in warning
        assert name in warning

    def test_later_segments_are_kept_or_removed(self, caplog: pytest.LogCaptureFixture) -> None:
        files = crashed(5, 6, 60, config=CONFIG)
        bases = [int(name[:20]) for name in files.listdir(DIRECTORY) if name.endswith(".log")]
        assert len(bases) >= 3
        last = f"{bases[-1]:020d}.log"
        damage(files, last, lambda data: data.__setitem__(slice(None), bytes(len(data))))
        damage(files, "00000000000000000000.log", lambda data: data.__delitem__(slice(-9, None)))
        log = open_log(open_manager(files), config=CONFIG)
        assert numbers(log) == list(range(bases[1] - 1))
        names = files.listdir(DIRECTORY)
        assert f"{bases[1]:020d}.log.corrupt" in names
        assert f"{bases[1]:020d}.log" not in names
        assert not any(name.startswith(f"{bases[-1]:020d}.") for name in names)
        assert f"{bases[-1] - bases[1]} later unsynced records" in caplog.text

    def test_missing_segment_ends_the_log(self) -> None:
        files = crashed(5, 6, 60, config=CONFIG)
        bases = [int(name[:20]) for name in files.listdir(DIRECTORY) if name.endswith(".log")]
        files.remove(f"{DIRECTORY}/{bases[1]:020d}.log")
        log = open_log(open_manager(files), config=CONFIG)
        assert log.log_end_offset == bases[1]

    def test_recovered_indexes_are_saved(self) -> None:
        files = crashed(5, 6, 60, config=CONFIG)
        manager = open_manager(files)
        open_log(manager, config=CONFIG)
        manager.close(now_ms=NOW)
        sealed = [name for name in files.listdir(DIRECTORY) if name.endswith(".log")][:-1]
        for name in sealed:
            assert files.size(f"{DIRECTORY}/{name[:20]}.index") > 0
            assert files.size(f"{DIRECTORY}/{name[:20]}.timeindex") > 0

    def test_epochs_of_unsaved_batches_are_recovered(self) -> None:
        files = CrashFiles()
        log = open_log(open_manager(files))
        fill_epochs(log, 5, 7)
        log = open_log(open_manager(files))
        assert log.epochs.entries == [(epoch, epoch * 7) for epoch in range(5)]

    def test_check_of_many_epochs_reads_the_batches_once(self) -> None:
        """Each start after a crash adds an epoch, and an unclosed segment has no index."""

        def bytes_of_a_start(epochs: int) -> int:
            files = CrashFiles()
            manager = open_manager(files)
            log = open_log(manager, config=ONE_SEGMENT)
            fill_epochs(log, epochs, 7)
            commit(log)
            manager.checkpoint(NOW).run()
            for name in ("00000000000000000000.index", "00000000000000000000.timeindex"):
                files.remove(f"{DIRECTORY}/{name}")
            with bytes_read() as sizes:
                found = open_log(open_manager(files), config=ONE_SEGMENT)
            assert found.epochs.entries == log.epochs.entries
            return sum(sizes)

        assert bytes_of_a_start(400) < 3 * bytes_of_a_start(200)

    def test_recovered_batches_are_not_walked_after_the_next_crash(self) -> None:
        """Each run may be too short to save indexes and producer state."""
        files = CrashFiles()
        for life in range(4):
            manager = open_manager(files)
            log = open_log(manager, config=ONE_SEGMENT)
            for number in range(12):
                value, sequence = b"value" * 10_000, life * 12 + number
                append(log, value, producer_id=5, epoch=0, sequence=sequence)
            commit(log)
            manager.checkpoint(NOW).run()
        with bytes_read() as sizes:
            log = open_log(open_manager(files), config=ONE_SEGMENT)
        assert log.log_end_offset == 48
        assert append(log, value, producer_id=5, epoch=0, sequence=sequence).duplicate
        assert sum(sizes) < log.segments.size / 2

    def test_epochs_of_lost_records_are_dropped(self) -> None:
        """A truncation or a crash happened before the file was updated."""
        files = crashed(20, 22, 30)
        epochs = b"0\n3\n0 0\n5 24\n7 28\n"
        files.write_atomic(f"{DIRECTORY}/leader-epoch-checkpoint", epochs)
        at = position_of(files, 23)
        damage(files, "00000000000000000000.log", lambda data: data.__setitem__(at + 70, 1))
        log = open_log(open_manager(files), config=ONE_SEGMENT)
        assert log.epochs.entries == [(0, 0)]
        assert log.log_end_offset == 23

    def test_epochs_below_the_log_start_are_not_checked(self) -> None:
        """Records before the log start may be in the same segment, without known epochs."""
        files = CrashFiles()
        manager = open_manager(files)
        log = open_log(manager, config=ONE_SEGMENT)
        fill_epochs(log, 3, 2)
        commit(log)
        log.delete_records_before(5)
        log.truncate_to(5, now_ms=NOW)
        manager.close(now_ms=NOW)
        files.remove("data/.kafka_cleanshutdown")
        log = open_log(open_manager(files), config=ONE_SEGMENT)
        assert (log.log_start_offset, log.log_end_offset) == (5, 5)
        assert log.epochs.entries == []

    def test_unsynced_names_of_the_last_process_are_synced(self) -> None:
        """The process died between creation and sync of a segment. The power fails later."""
        files = CrashFiles()
        open_log(open_manager(files)).roll()
        log = open_log(open_manager(files))
        append(log, b"value 0")
        commit(log)
        log = open_log(open_manager(files.crashed("lost-name", 0)))
        assert numbers(log) == [0]

    def test_damaged_epoch_file_is_rebuilt(self) -> None:
        files = CrashFiles()
        manager = open_manager(files)
        log = open_log(manager)
        fill_epochs(log, 5, 7)
        commit(log)
        manager.close(now_ms=NOW)
        files.damage(f"{DIRECTORY}/leader-epoch-checkpoint", b"\0" * 12)
        log = open_log(open_manager(files))
        assert log.epochs.entries == [(epoch, epoch * 7) for epoch in range(5)]

    def test_contradicting_epoch_file_is_rebuilt(self) -> None:
        files = CrashFiles()
        manager = open_manager(files)
        log = open_log(manager, config=ONE_SEGMENT)
        fill_epochs(log, 2, 7)
        commit(log)
        manager.close(now_ms=NOW)
        files.write_atomic(f"{DIRECTORY}/leader-epoch-checkpoint", b"0\n2\n0 0\n1 3\n")
        log = open_log(open_manager(files), config=ONE_SEGMENT)
        assert log.epochs.entries == [(0, 0), (1, 7)]


class TestBitRot:
    """Records below the recovery point are never truncated."""

    def check_refused(self, files: CrashFiles, name: str, config: LogConfig = ONE_SEGMENT) -> None:
        before = {path: data for path, data in files.image().items() if DIRECTORY in path}
        with pytest.raises(CorruptLogError) as error:
            read_everything(open_log(open_manager(files), config=config))
        assert error.value.path == f"{DIRECTORY}/{name}"
        assert f"{DIRECTORY}/{name} is damaged at byte {error.value.position}" in str(error.value)
        assert "kbroker log repair data/orders-0" in str(error.value)
        after = {path: data for path, data in files.image().items() if DIRECTORY in path}
        assert {path: after[path] for path in before if ".log" in path} == {
            path: before[path] for path in before if ".log" in path
        }

    def test_corrupt_synced_batch_is_an_error(self) -> None:
        files = crashed(20, 25, 30)
        at = position_of(files, 12)
        damage(files, "00000000000000000000.log", lambda data: data.__setitem__(at + 70, 1))
        self.check_refused(files, "00000000000000000000.log")

    def test_truncated_synced_file_is_an_error(self) -> None:
        name = "00000000000000000000.log"
        for offset in (0, 1, 12, 19):
            files = crashed(20, 25, 30)
            at = position_of(files, offset)
            for end in (at + 61, at + 1, at):
                files.damage(f"{DIRECTORY}/{name}", files.read_bytes(f"{DIRECTORY}/{name}")[:end])
                self.check_refused(files, name)

    @pytest.mark.parametrize("clean", [True, False])
    def test_sealed_segment_that_ends_early_is_an_error(self, clean: bool) -> None:
        files = disk_after_shutdown()
        if not clean:
            files.remove("data/.kafka_cleanshutdown")
        bases = [int(name[:20]) for name in files.listdir(DIRECTORY) if name.endswith(".log")]
        name = f"{bases[1]:020d}.log"
        end = position_of(files, bases[2] - 1, name)
        damage(files, name, lambda data: data.__delitem__(slice(end, None)))
        self.check_refused(files, name, CONFIG)

    @pytest.mark.parametrize("clean", [True, False])
    def test_missing_synced_file_is_an_error(self, clean: bool) -> None:
        bases = [
            int(name[:20])
            for name in disk_after_shutdown().listdir(DIRECTORY)
            if name.endswith(".log")
        ]
        for base in bases[1:]:
            files = disk_after_shutdown()
            if not clean:
                files.remove("data/.kafka_cleanshutdown")
            files.remove(f"{DIRECTORY}/{base:020d}.log")
            with pytest.raises(CorruptLogError):
                open_log(open_manager(files), config=CONFIG)
        files = disk_after_shutdown()
        if not clean:
            files.remove("data/.kafka_cleanshutdown")
        files.rmtree(DIRECTORY)
        with pytest.raises(CorruptLogError, match="it is missing"):
            open_log(open_manager(files), config=CONFIG)

    def test_end_after_a_clean_shutdown_is_checked(self) -> None:
        files = disk_after_shutdown(20, config=ONE_SEGMENT)
        end = position_of(files, 19)
        damage(files, "00000000000000000000.log", lambda data: data.__delitem__(slice(end, None)))
        self.check_refused(files, "00000000000000000000.log")

    def test_corrupt_partition_does_not_affect_others(self) -> None:
        files = CrashFiles()
        manager = open_manager(files)
        for topic in ("orders", "other"):
            log = open_log(manager, topic)
            fill(log, 10)
            commit(log)
        manager.close(now_ms=NOW)
        damage(files, "00000000000000000000.log", lambda data: data.__setitem__(70, 1))
        manager = open_manager(files)
        log, other = open_log(manager), open_log(manager, "other")
        for _ in range(2):
            with pytest.raises(StorageError, match="is damaged at byte 0"):
                log.read(0, 100, limit=10)
        with pytest.raises(StorageError, match="is damaged at byte 0"):
            append(log, b"x")
        assert numbers(other) == list(range(10))
        fill(other, 1, 10)
        commit(other)
        manager.close(now_ms=NOW)
        assert not open_manager(files).clean, "the shutdown counts as clean despite damage"


class TestDamageAnywhere:
    """Flipped bits, zeroed pages and truncated files, in files of every kind.

    Damaged records are detected and never served. Indexes are rebuilt. Damaged checkpoints and
    snapshots are ignored.
    """

    NAMES = (
        "00000000000000000000.log",
        "00000000000000000000.index",
        "00000000000000000000.timeindex",
        "{last}.log",
        "{last}.index",
        "{last}.timeindex",
        "{last}.snapshot",
        "{end}.snapshot",
        "leader-epoch-checkpoint",
        "partition.metadata",
        "../recovery-point-offset-checkpoint",
        "../replication-offset-checkpoint",
        "../.kafka_cleanshutdown",
    )

    @pytest.mark.slow
    @pytest.mark.parametrize("clean", [True, False])
    @pytest.mark.parametrize("name", NAMES)
    def test_damage_is_detected_or_harmless(self, name: str, clean: bool) -> None:
        pristine = disk_after_shutdown()
        if not clean:
            pristine.remove("data/.kafka_cleanshutdown")
        last = max(
            file_name for file_name in pristine.listdir(DIRECTORY) if file_name.endswith(".log")
        )[:20]
        path = f"{DIRECTORY}/{name.format(last=last, end='0' * 18 + '60')}"
        path = re.sub(r"/[^/]+/\.\.", "", path)
        if not pristine.exists(path):
            assert not clean
            return
        outcomes = Counter[str]()
        for seed in range(120):
            files = pristine.crashed("drop", 0)
            self._damage(files, path, random.Random(seed))
            outcomes[self._outcome(files, path)] += 1
        records_hit = path.endswith(".log")
        assert outcomes["noticed"] + outcomes["harmless"] == 120, outcomes
        if records_hit:
            assert outcomes["noticed"] == 120, outcomes
        else:
            assert outcomes["harmless"] == 120, outcomes

    def _damage(self, files: CrashFiles, path: str, random_: random.Random) -> None:
        data = bytearray(files.read_bytes(path))
        before = bytes(data)
        kind = random_.choice(["flip", "zero", "cut"])
        position = random_.randrange(len(data))
        if kind == "flip":
            data[position] ^= 1 << random_.randrange(8)
        elif kind == "zero":
            start = position // 512 * 512
            data[start : start + 512] = bytes(len(data[start : start + 512]))
        if kind == "cut" or bytes(data) == before:
            del data[position:]
        files.damage(path, bytes(data))

    def _outcome(self, files: CrashFiles, path: str) -> str:
        try:
            log = open_log(open_manager(files), config=CONFIG)
            read_everything(log)
        except CorruptLogError as error:
            return "noticed" if error.path == path else f"blamed {error.path}"
        assert log.log_end_offset == 60
        assert append(log, b"value 59", producer_id=5, epoch=0, sequence=59).duplicate
        assert log.epochs.entries == [(0, 0)]
        return "harmless"


def test_damaged_meta_properties_is_an_error() -> None:
    files = disk_after_shutdown()
    files.damage("data/meta.properties", b"")
    with pytest.raises(StorageError, match=r"meta\.properties is damaged"):
        open_manager(files)


def test_leftovers_of_a_crash_are_removed() -> None:
    files = disk_after_shutdown()
    for name in ("00000000000000000099.index", "leader-epoch-checkpoint.tmp", "x.deleted"):
        files.open(f"{DIRECTORY}/{name}", create=True).append([b"x"])
    before = set(files.listdir(DIRECTORY))
    log = open_log(open_manager(files), config=CONFIG)
    assert before - set(files.listdir(DIRECTORY)) == {
        "00000000000000000099.index",
        "leader-epoch-checkpoint.tmp",
        "x.deleted",
    }
    assert numbers(log) == list(range(60))


def test_snapshot_after_the_log_end_is_removed_durably() -> None:
    files = crashed(10, 20, 30)
    files.write_atomic(f"{DIRECTORY}/00000000000000000025.snapshot", b"what was true before 25")
    at = position_of(files, 22)
    damage(files, "00000000000000000000.log", lambda data: data.__delitem__(slice(at, None)))
    manager = open_manager(files)
    log = open_log(manager, config=ONE_SEGMENT)
    assert log.log_end_offset == 22
    files = files.crashed("lost-name", 0)
    assert f"{25:020d}.snapshot" not in files.listdir(DIRECTORY)


def test_unopened_logs_prevent_the_clean_shutdown_marker() -> None:
    files = disk_after_shutdown()
    files.remove("data/.kafka_cleanshutdown")
    manager = LogManager(files, "data", open_manager(files).meta)
    manager.close(now_ms=NOW)
    manager = open_manager(files)
    assert not manager.clean
    assert list(records(open_log(manager, config=CONFIG)))
    manager.close(now_ms=NOW)
    assert open_manager(files).clean


@pytest.mark.parametrize("more", [0, 1])
def test_log_never_starts_after_lost_records(more: int) -> None:
    """A power failure may leave the names of any of two unsynced segments."""
    for seed in range(100):
        files = CrashFiles()
        log = open_log(open_manager(files))
        append(log, b"first")
        log.roll()
        for _ in range(more):
            append(log, b"second")
        reopened = open_log(open_manager(files.crashed("mixed", seed)))
        assert reopened.log_start_offset == 0
        assert reopened.log_end_offset <= 1 + more
