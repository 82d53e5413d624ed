"""Several log directories: placement of partitions, moves, crashes and failing disks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from uuid import UUID

import pytest

from kbroker.protocol.records import placed
from kbroker.storage.crash_files import CrashFiles, Operation
from kbroker.storage.directories import LogDirectories
from kbroker.storage.errors import StorageError
from kbroker.storage.files import Files
from kbroker.storage.future import FutureLog
from kbroker.storage.log import Log
from kbroker.storage.manager import CHECKPOINT_EVERY_MS, LogManager

from .helpers import META, NOW, SMALL, TOPIC_ID, append, batch, commit, records, values
from .test_crash_enumeration import Enumeration

ONE, TWO = "disks/one", "disks/two"
OTHER_META = replace(META, directory_id="CCCCCCCCCCCCCCCCCCCCCC")
FUTURE = f"{TWO}/a-0.{TOPIC_ID.hex}-future"


def open_directories(files: Files) -> LogDirectories:
    return LogDirectories(files, [LogManager(files, ONE, META), LogManager(files, TWO, OTHER_META)])


def open_log(directories: LogDirectories, name: str = "a", index: int = 0) -> Log:
    return directories.open_log(name, TOPIC_ID, index, SMALL, now_ms=NOW)


def place(directories: LogDirectories, name: str = "a", index: int = 0) -> str:
    return directories.where(name, index).data_dir


def move(directories: LogDirectories, source: Log, path: str) -> Log:
    future = directories.start_move(source, path)
    while not future.copy(300, now_ms=NOW):
        pass
    return directories.swap(future, SMALL, now_ms=NOW)


# -- placement


def test_partition_is_placed_in_the_directory_with_the_fewest() -> None:
    files = CrashFiles()
    directories = open_directories(files)
    for index in range(5):
        append(open_log(directories, index=index), b"x")
    assert [place(directories, index=index) for index in range(5)] == [ONE, TWO, ONE, TWO, ONE]
    directories.delete_logs([("a", 0), ("a", 2)], TOPIC_ID)
    assert {place(directories, "b", index) for index in range(2)} == {ONE}
    directories.close(now_ms=NOW)
    reopened = open_directories(files)
    assert reopened.clean
    assert sorted(reopened.directories()) == [("a", 1), ("a", 3), ("a", 4)]
    assert [place(reopened, index=index) for index in (1, 3, 4)] == [TWO, TWO, ONE]


def test_placement_of_a_partition_is_kept() -> None:
    """The directory of a partition that has no log yet is fixed once it was chosen."""
    directories = open_directories(CrashFiles())
    first = [place(directories, "a", index) for index in range(4)]
    assert first == [ONE, TWO, ONE, TWO]
    assert [place(directories, "a", index) for index in range(4)] == first
    log = open_log(directories, "a", 3)
    assert log.directory == f"{TWO}/a-3"


@pytest.mark.parametrize("fails", ["rename", "remove", "create"])
def test_deletion_in_one_directory_continues_after_error_in_the_other(fails: str) -> None:
    files = CrashFiles()
    directories = open_directories(files)
    logs = [open_log(directories, index=index) for index in range(3)]
    for log in logs:
        append(log, b"x")
        commit(log)
    for manager in directories.managers:
        manager.checkpoint(NOW).run()
    move_to = directories.start_move(logs[1], ONE)
    move_to.copy(300, now_ms=NOW)

    def refuse(operation: Operation) -> None:
        if operation.kind == fails and operation.path.startswith(ONE):
            raise StorageError(f"cannot {fails} {operation.path}")

    files.hook = refuse
    with pytest.raises(StorageError, match=f"cannot {fails}"):
        directories.delete_logs([("a", index) for index in range(3)], TOPIC_ID)
    assert not directories.managers[1].directories()
    assert directories.next_future() is None


def test_failed_directory_needs_no_checkpoint() -> None:
    directories = open_directories(CrashFiles())
    later = NOW + CHECKPOINT_EVERY_MS
    log = open_log(directories)
    append(log, b"x")
    commit(log)
    assert directories.checkpoint_due(later)
    directories.managers[0].fail("the disk is lost")
    assert not directories.checkpoint_due(later)


def test_directories_of_different_clusters_are_rejected() -> None:
    files = CrashFiles()
    stranger = LogManager(files, TWO, replace(OTHER_META, cluster_id="DDDDDDDDDDDDDDDDDDDDDD"))
    one = LogManager(files, ONE, META)
    with pytest.raises(StorageError, match="belongs to cluster DDDD"):
        LogDirectories(files, [one, stranger])
    with pytest.raises(StorageError, match="is a copy of"):
        LogDirectories(files, [one, LogManager(files, "disks/three", META)])


def test_partition_in_two_directories_is_rejected() -> None:
    files = CrashFiles()
    directories = open_directories(files)
    append(open_log(directories), b"x")
    directories.close(now_ms=NOW)
    files.mkdir(f"{TWO}/a-0")
    with pytest.raises(StorageError, match=f"a-0: is both in {ONE} and in {TWO}"):
        open_directories(files)


# -- a disk that fails


def test_failed_sync_takes_only_its_directory_offline() -> None:
    files = CrashFiles()
    directories = open_directories(files)
    bad, good, idle = (open_log(directories, index=index) for index in range(3))
    assert idle.directory.startswith(ONE)
    append(idle, b"x")
    commit(idle)

    def refuse(operation: Operation) -> None:
        if operation.kind == "sync" and operation.path.startswith(ONE):
            raise StorageError("the disk is gone")

    files.hook = refuse
    append(bad, b"x")
    append(good, b"y")
    assert directories.sync([bad, good]) == [(good, 1)]
    assert good.offline is None
    assert "the disk is gone" in (idle.offline or "")
    with pytest.raises(StorageError, match="the disk is gone"):
        append(idle, b"x")
    append(good, b"z")
    # New partitions avoid the failed directory. Existing ones do not open elsewhere.
    assert {place(directories, "b", index) for index in range(3)} == {TWO}
    with pytest.raises(StorageError, match="the disk is gone"):
        directories.where("a", 0).usage()


def test_new_partition_fails_if_all_directories_are_offline() -> None:
    directories = open_directories(CrashFiles())
    for manager in directories.managers:
        manager.fail("gone")
    with pytest.raises(StorageError, match="gone"):
        open_log(directories)


# -- moves


def fill(log: Log, count: int = 40, *, epoch: int = 0) -> list[bytes]:
    written = [b"%03d" % number * 20 for number in range(count)]
    for value in written:
        append(log, value, leader_epoch=epoch)
    commit(log)
    return written


def test_moved_log_keeps_its_state() -> None:
    files = CrashFiles()
    directories = open_directories(files)
    log = open_log(directories)
    written = fill(log)
    append(log, b"idempotent", leader_epoch=3, producer_id=5, epoch=1, sequence=0)
    commit(log)
    log.delete_records_before(7)
    moved = move(directories, log, TWO)
    assert (moved.directory, log.offline) == (f"{TWO}/a-0", "the log is closed")
    assert values(moved) == [*written[7:], b"idempotent"]
    assert (moved.log_start_offset, moved.log_end_offset, moved.high_watermark) == (7, 41, 41)
    assert (moved.synced_offset, moved.topic_id) == (41, TOPIC_ID)
    assert moved.epochs.entries == [(0, 7), (3, 40)]
    producer = moved.producers.get(5)
    assert producer is not None
    assert producer.next_sequence == 1
    left = [name for name in files.listdir(ONE) if "checkpoint" not in name]
    assert left == [".reserve", f"a-0.{TOPIC_ID.hex}-delete", "meta.properties"]
    append(moved, b"after", leader_epoch=3)
    commit(moved)
    directories.empty_trash()
    directories.close(now_ms=NOW)
    reopened = open_log(open_directories(files))
    assert values(reopened)[-2:] == [b"idempotent", b"after"]


def test_log_is_appended_to_and_truncated_during_a_copy() -> None:
    directories = open_directories(CrashFiles())
    log = open_log(directories)
    written = fill(log, 20)
    future = directories.start_move(log, TWO)
    for number in range(20):
        future.copy(200, now_ms=NOW)
        written.append(b"later %d" % number)
        append(log, written[-1])
        commit(log)
        if number == 9:
            log.delete_records_before(log.high_watermark - 5)
    assert future.lag > 0
    while not future.copy(200, now_ms=NOW):
        pass
    start = log.log_start_offset
    moved = directories.swap(future, SMALL, now_ms=NOW)
    assert moved.log_start_offset == start == 25
    assert values(moved) == written[start:]


@pytest.mark.parametrize("cut", [0, 5])
def test_empty_log_is_moved(cut: int) -> None:
    directories = open_directories(CrashFiles())
    log = open_log(directories)
    fill(log, cut)
    log.delete_records_before(cut)
    moved = move(directories, log, TWO)
    assert (moved.log_start_offset, moved.log_end_offset) == (cut, cut)
    append(moved, b"x")
    commit(moved)
    assert values(moved) == [b"x"]


def test_log_with_gaps_is_moved() -> None:
    """Gaps from compaction are also in the copy, and the first dirty offset is kept."""
    files = CrashFiles()
    directories = open_directories(files)
    config = replace(SMALL, cleanup_policy=frozenset({"compact"}))
    log = directories.open_log("a", TOPIC_ID, 0, config, now_ms=NOW)
    for base in (0, 7, 30):
        data, header = batch(b"%d" % base, b"next")
        parts: list[bytes] = [bytes(part) for part in placed(data, header, base, 0)]
        log.append_replicated(memoryview(b"".join(parts)), now_ms=NOW)
    commit(log)
    log.first_dirty_offset = 9
    moved = move(directories, log, TWO)
    assert [record.offset for record in records(moved)] == [0, 1, 7, 8, 30, 31]
    assert moved.first_dirty_offset == 9
    directories.close(now_ms=NOW)
    reopened = open_log(open_directories(files))
    assert ([record.offset for record in records(reopened)][-1], reopened.first_dirty_offset) == (
        31,
        9,
    )


def test_log_is_moved_there_and_back() -> None:
    directories = open_directories(CrashFiles())
    log = open_log(directories)
    written = fill(log)
    assert values(move(directories, move(directories, log, TWO), ONE)) == written


def test_log_truncated_during_a_move_is_copied_again() -> None:
    """Copied records after the truncation offset differ from the new records there."""
    directories = open_directories(CrashFiles())
    log = open_log(directories)
    written = fill(log)
    future = directories.start_move(log, TWO)
    while not future.copy(300, now_ms=NOW):
        pass
    log.truncate_to(2, now_ms=NOW)
    future.restart_copy()
    append(log, b"other", leader_epoch=1)
    commit(log)
    while not future.copy(300, now_ms=NOW):
        pass
    moved = directories.swap(future, SMALL, now_ms=NOW)
    assert values(moved) == [*written[:2], b"other"]


def test_records_deleted_during_a_move_are_deleted_in_the_copy() -> None:
    """The copy starts a new segment and keeps the producer state of deleted records."""
    directories = open_directories(CrashFiles())
    log = open_log(directories)
    append(log, b"a", producer_id=5, epoch=3, sequence=0)
    append(log, b"b")
    commit(log)
    log.delete_records_before(1)
    future = directories.start_move(log, TWO)
    while not future.copy(1000, now_ms=NOW):
        pass
    log.delete_records_before(2)
    moved = directories.swap(future, SMALL, now_ms=NOW)
    assert append(moved, b"a", producer_id=5, epoch=3, sequence=0).duplicate


def test_cancelled_move_removes_the_copy() -> None:
    files = CrashFiles()
    directories = open_directories(files)
    log = open_log(directories)
    written = fill(log)
    directories.start_move(log, TWO).copy(300, now_ms=NOW)
    assert files.exists(FUTURE)
    directories.drop_future(("a", 0))
    assert not files.exists(FUTURE)
    assert values(log) == written
    directories.start_move(log, TWO).copy(300, now_ms=NOW)
    directories.delete_logs([("a", 0)], TOPIC_ID)
    assert not files.exists(FUTURE)
    assert directories.future("a", 0) is None


def test_copy_that_cannot_be_finished_leaves_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    directories = open_directories(CrashFiles())
    log = open_log(directories)
    written = fill(log)
    future = directories.start_move(log, TWO)
    while not future.copy(300, now_ms=NOW):
        pass

    def refuse(self: FutureLog) -> None:
        raise StorageError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(FutureLog, "finish", refuse)
        with pytest.raises(StorageError, match="full"):
            directories.swap(future, SMALL, now_ms=NOW)
    assert values(log) == written
    append(log, b"x")
    assert values(move(directories, log, TWO)) == [*written, b"x"]


def test_source_that_cannot_be_replaced_keeps_serving() -> None:
    files = CrashFiles()
    directories = open_directories(files)
    source = open_log(directories)
    append(source, b"x")
    commit(source)
    directories.managers[0].checkpoint(NOW).run()
    future = directories.start_move(source, TWO)
    assert future.copy(300, now_ms=NOW)

    def refuse(operation: Operation) -> None:
        if operation.kind == "create" and operation.path.startswith(f"{ONE}/recovery-point"):
            raise StorageError("disk full")

    files.hook = refuse
    with pytest.raises(StorageError, match="disk full"):
        directories.swap(future, SMALL, now_ms=NOW)
    files.hook = None
    directories.drop_future(("a", 0))
    assert not files.exists(FUTURE)
    append(source, b"y")
    commit(source)
    directories.checkpoint(NOW).run()
    reopened = open_directories(files.crashed("lost-name", 0))
    assert values(open_log(reopened)) == [b"x", b"y"]
    assert place(reopened) == ONE


def test_move_interrupted_by_a_clean_shutdown_restarts() -> None:
    files = CrashFiles()
    directories = open_directories(files)
    log = open_log(directories)
    written = fill(log)
    directories.start_move(log, TWO).copy(300, now_ms=NOW)
    directories.close(now_ms=NOW)
    reopened = open_directories(files)
    assert reopened.interrupted == [(("a", 0), TWO)]
    assert not files.exists(FUTURE)
    assert values(open_log(reopened)) == written
    assert open_directories(files).interrupted == []


def test_topic_name_too_long_for_a_future_replica_is_rejected() -> None:
    directories = open_directories(CrashFiles())
    log = directories.open_log("n" * 249, UUID(int=1), 0, SMALL, now_ms=NOW)
    with pytest.raises(StorageError, match="too long"):
        directories.start_move(log, TWO)
    assert directories.future("n" * 249, 0) is None


# -- crashes


@dataclass
class Promise:
    """Acknowledged values by offset, and deleted offsets."""

    acked: list[bytes] = field(default_factory=list)
    start_max: int = 0


class MoveScript:
    """Writes and acknowledges records while the log moves there and back."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.truth = Promise()

    def run(self) -> None:
        directories = open_directories(self.files)
        log = open_log(directories)
        for path in (TWO, ONE):
            self._write(log, 5)
            directories.checkpoint(NOW).run()
            future = directories.start_move(log, path)
            while not future.copy(400, now_ms=NOW):
                self._write(log, 1)
            self._write(log, 2)
            self.truth.start_max = log.high_watermark - 4
            log.delete_records_before(self.truth.start_max)
            future.log.synced(future.log.sync())
            while not future.copy(400, now_ms=NOW):
                pass
            log = directories.swap(future, SMALL, now_ms=NOW)
            self._write(log, 3)
            directories.empty_trash()
        directories.close(now_ms=NOW)

    def _write(self, log: Log, count: int) -> None:
        for _ in range(count):
            value = b"record %d " % log.log_end_offset * 9
            append(log, value)
            commit(log)
            self.truth.acked.append(value)


def find_faults(files: Files, truth: Promise) -> list[str]:
    """Check that exactly one log is left and contains the acknowledged records."""
    if not files.exists(f"{ONE}/a-0") and not files.exists(f"{TWO}/a-0"):
        known = [name for path in (ONE, TWO) for name in files.listdir(path) if "future" in name]
        if truth.acked and not known:
            return ["there is no log at all"]
    directories = open_directories(files)
    log = open_log(directories)
    faults = []
    if log.log_start_offset > truth.start_max:
        faults.append(f"log start {log.log_start_offset}, at most {truth.start_max} was deleted")
    if (
        values(log)[: len(truth.acked) - log.log_start_offset]
        != truth.acked[log.log_start_offset :]
    ):
        faults.append(f"{log.log_end_offset} of {len(truth.acked)} records, or others")
    if len(directories.directories()) > 1:
        faults.append(f"several logs: {directories.directories()}")
    for path in (ONE, TWO):
        if any(name.endswith("-future") for name in files.listdir(path)):
            faults.append(f"a copy is left in {path}")
    return faults


@pytest.mark.slow
def test_crash_in_any_step_of_a_move_leaves_one_log() -> None:
    enumeration = Enumeration(find_faults, deep=True)
    enumeration.run(MoveScript)
    assert not enumeration.faults, enumeration.summary()
    assert min(enumeration.cuts.values()) > 150
    assert enumeration.cuts_in_recovery > 300


@pytest.mark.slow
def test_enumeration_detects_a_rename_before_the_copy_is_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "kbroker.storage.directories.LogDirectories.swap",
        _swap_in_the_wrong_order,
    )
    enumeration = Enumeration(find_faults, deep=False)
    enumeration.run(MoveScript)
    assert enumeration.faults


def _swap_in_the_wrong_order(
    self: LogDirectories, future: FutureLog, config: object, *, now_ms: int
) -> Log:
    """Delete the source before the copy is durable."""
    source = future.source
    key = (source.topic, source.partition)
    here, target = self.where(*key), self.managers[future.data_dir == TWO]
    here.delete_logs([key], source.topic_id)
    offsets = future.finish()
    target.checkpoint_future(key, offsets)
    del self._futures[key]
    target.install_future(key, future.directory.rpartition("/")[2])
    return open_log(self)
