from __future__ import annotations

import dataclasses
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest

from kbroker.storage.checkpoints import PartitionMetadata, encode_id, offsets_from_bytes
from kbroker.storage.crash_files import CrashFiles, Operation
from kbroker.storage.errors import ForeignLogError, StorageError, WriteRefusedError
from kbroker.storage.files import Files, MemFiles, OsFiles
from kbroker.storage.log import Log
from kbroker.storage.log_config import LogConfig
from kbroker.storage.manager import CHECKPOINT_EVERY_MS, LogManager, sync_logs
from kbroker.storage.naming import LEADER_EPOCHS

from .helpers import META, NOW, SMALL, TOPIC_ID, append, commit, open_log, open_manager, values

Place = tuple[Files, str]


def fill(log: Log, count: int, **fields: int) -> None:
    for number in range(log.log_end_offset, log.log_end_offset + count):
        append(log, b"value %d" % number, timestamp=NOW + number, **fields)
    commit(log)


def saved(files: Files, data_dir: str, name: str) -> dict[tuple[str, int], int] | None:
    file = f"{name}-offset-checkpoint"
    return offsets_from_bytes(files.read_bytes(f"{data_dir}/{file}"), file)


class TestDirectory:
    def test_new_directory_gets_the_given_identity(self, place: Place) -> None:
        files, data_dir = place
        manager = open_manager(files, data_dir)
        assert manager.meta == META
        assert not manager.clean
        other = dataclasses.replace(META, cluster_id="C" * 22, directory_id="D" * 22)
        manager.close()
        assert LogManager(files, data_dir, other).meta == META

    def test_directory_of_another_node_is_rejected(self, place: Place) -> None:
        open_manager(*place).close()
        for _ in range(2):
            with pytest.raises(StorageError, match="belongs to node 1, but this is node 2"):
                LogManager(*place, dataclasses.replace(META, node_id=2))

    def test_directory_in_use_is_rejected(self, place: Place) -> None:
        manager = open_manager(*place)
        with pytest.raises(StorageError, match="another broker"):
            open_manager(*place)
        manager.close()
        open_manager(*place).close()

    def test_opening_removes_the_clean_shutdown_marker_durably(self) -> None:
        files = CrashFiles()
        open_manager(files).close()
        assert open_manager(files.crashed("lost-name", 0)).clean
        open_manager(files)
        assert not open_manager(files.crashed("lost-name", 0)).clean


class TestOpen:
    def test_open_log_returns_the_open_log(self, place: Place) -> None:
        manager = open_manager(*place)
        log = open_log(manager)
        assert open_log(manager) is log
        assert manager.get("orders", 0) is log
        assert manager.get("orders", 1) is None
        assert list(manager) == [log]

    def test_logs_are_opened_on_demand_after_a_restart(self, place: Place) -> None:
        manager = open_manager(*place)
        fill(open_log(manager), 5)
        fill(open_log(manager, "other"), 7)
        manager.close()
        manager = open_manager(*place)
        assert list(manager) == []
        assert manager.partitions() == [("orders", 0, TOPIC_ID), ("other", 0, TOPIC_ID)]
        assert manager.directories() == [("orders", 0), ("other", 0)]
        assert open_log(manager, "other").log_end_offset == 7
        fill(open_log(manager, "first"), 1)
        assert manager.directories() == [("orders", 0), ("other", 0), ("first", 0)], (
            "none is sorted"
        )

    def test_directory_of_another_topic_id_is_not_opened_and_stays(self, place: Place) -> None:
        files, data_dir = place
        manager = open_manager(files, data_dir)
        fill(open_log(manager), 5)
        manager.close()
        manager = open_manager(files, data_dir)
        for _ in range(2):
            with pytest.raises(ForeignLogError, match=encode_id(TOPIC_ID)) as refused:
                manager.open_log("orders", UUID(int=8), 0, SMALL, now_ms=NOW)
        assert encode_id(UUID(int=8)) in str(refused.value)
        assert (refused.value.topic_id, refused.value.partition) == (TOPIC_ID, 0)
        assert values(open_log(manager)) == [b"value %d" % number for number in range(5)]

    def test_directory_moved_aside_keeps_its_records(self, place: Place) -> None:
        files, data_dir = place
        manager = open_manager(files, data_dir)
        fill(open_log(manager), 5)
        kept = manager.move_aside([("orders", 0)])
        assert kept == [f"{data_dir}/orders-0.{TOPIC_ID.hex}-stray"]
        log = manager.open_log("orders", UUID(int=8), 0, SMALL, now_ms=NOW)
        fill(log, 2)
        manager.checkpoint(NOW).run()
        manager.empty_trash()
        assert manager.partitions() == [("orders", 0, UUID(int=8))]
        manager.delete_logs([("orders", 0)], UUID(int=8))
        files.rename(kept[0], f"{data_dir}/orders-0")
        manager.close()
        log = open_log(open_manager(files, data_dir))
        assert values(log) == [b"value %d" % number for number in range(5)]

    def test_directory_of_another_partition_is_not_opened(self, place: Place) -> None:
        files, data_dir = place
        manager = open_manager(files, data_dir)
        for partition in range(2):
            fill(manager.open_log("orders", TOPIC_ID, partition, SMALL, now_ms=NOW), 5)
        manager.close()
        for old, new in (("orders-0", "x"), ("orders-1", "orders-0"), ("x", "orders-1")):
            files.rename(f"{data_dir}/{old}", f"{data_dir}/{new}")
        manager = open_manager(files, data_dir)
        for partition in range(2):
            with pytest.raises(
                ForeignLogError, match=f"partition {1 - partition}, but the metadata has topic ID"
            ):
                manager.open_log("orders", TOPIC_ID, partition, SMALL, now_ms=NOW)

    def test_directory_written_by_kafka_gets_its_partition_number(self, place: Place) -> None:
        files, data_dir = place
        manager = open_manager(files, data_dir)
        fill(open_log(manager), 5)
        manager.close()
        path = f"{data_dir}/orders-0/partition.metadata"
        files.write_atomic(path, b"version: 0\ntopic_id: " + encode_id(TOPIC_ID).encode())
        assert open_log(open_manager(files, data_dir)).log_end_offset == 5
        assert PartitionMetadata.from_bytes(files.read_bytes(path)) == (TOPIC_ID, 0)

    def test_directory_without_its_partition_number_is_served_from_a_full_disk(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        files, data_dir = place
        manager = open_manager(files, data_dir)
        fill(open_log(manager), 5)
        manager.close()
        path = f"{data_dir}/orders-0/partition.metadata"
        kafkas = b"version: 0\ntopic_id: " + encode_id(TOPIC_ID).encode()
        files.write_atomic(path, kafkas)
        manager = open_manager(files, data_dir)

        def refuse(path: str, data: bytes) -> None:
            raise WriteRefusedError(f"cannot write {path}: No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(files, "write_atomic", refuse)
            assert open_log(manager).log_end_offset == 5
        assert files.read_bytes(path) == kafkas

    def test_lost_partition_metadata_is_written_again(self, place: Place) -> None:
        files, data_dir = place
        manager = open_manager(files, data_dir)
        fill(open_log(manager), 5)
        manager.close()
        files.remove(f"{data_dir}/orders-0/partition.metadata")
        manager = open_manager(files, data_dir)
        assert manager.partitions() == [("orders", 0, None)]
        assert open_log(manager).log_end_offset == 5
        manager.close()
        assert open_manager(files, data_dir).partitions() == [("orders", 0, TOPIC_ID)]

    def test_torn_partition_metadata_is_written_again(self, place: Place) -> None:
        files, data_dir = place
        manager = open_manager(files, data_dir)
        files.mkdir(f"{data_dir}/orders-0")
        files.write_atomic(f"{data_dir}/orders-0/partition.metadata", b"version: 0\ntopic_id: ")
        fill(open_log(manager), 5)
        manager.close()
        assert open_manager(files, data_dir).partitions() == [("orders", 0, TOPIC_ID)]


LOGS = ["partition.metadata", "00000000000000000000.log"]


class TestDelete:
    def test_deletion_moves_a_directory_of_another_topic_id_aside(self, place: Place) -> None:
        files, data_dir = place
        manager = open_manager(files, data_dir)
        fill(open_log(manager), 5)
        manager.close()
        manager = open_manager(files, data_dir)
        kept = manager.delete_logs([("orders", 0), ("orders", 1)], UUID(int=8))
        assert kept == [f"{data_dir}/orders-0.{TOPIC_ID.hex}-stray"]
        manager.empty_trash()
        assert files.exists(f"{kept[0]}/00000000000000000000.log")
        assert manager.directories() == []

    def test_start_removes_directories_with_the_full_name_of_a_deletion_only(
        self, place: Place
    ) -> None:
        files, data_dir = place
        ours, foreign = f"orders-0.{TOPIC_ID.hex}-delete", ("to-delete", "orders-0-delete")
        for name in (ours, *foreign):
            files.mkdir(f"{data_dir}/{name}")
        open_manager(files, data_dir).empty_trash()
        names = files.listdir(data_dir)
        assert ours not in names
        assert set(foreign) <= set(names)

    @pytest.mark.parametrize("appended", [True, False])
    def test_deleted_topic_name_can_be_used_again(self, place: Place, appended: bool) -> None:
        files, data_dir = place
        manager = open_manager(files, data_dir)
        log = open_log(manager)
        if appended:
            fill(log, 30)
            manager.checkpoint(NOW).run()
        manager.delete_logs([("orders", 0), ("unknown", 3)], TOPIC_ID)
        assert manager.partitions() == []
        with pytest.raises(StorageError):
            append(log, b"x")
        reopened = manager.open_log("orders", UUID(int=8), 0, SMALL, now_ms=NOW)
        fill(reopened, 2)
        manager._lock.release()
        manager = open_manager(files, data_dir)
        reopened = manager.open_log("orders", UUID(int=8), 0, SMALL, now_ms=NOW)
        assert values(reopened) == [b"value 0", b"value 1"]
        assert any(name.endswith("-delete") for name in files.listdir(data_dir)) == appended
        manager.empty_trash()
        assert not any(name.endswith("-delete") for name in files.listdir(data_dir))

    def test_directory_that_cannot_be_renamed_keeps_its_records(self) -> None:
        files = CrashFiles()
        manager = open_manager(files)
        logs = [
            manager.open_log("orders", TOPIC_ID, index, SMALL, now_ms=NOW) for index in range(3)
        ]
        for log in logs:
            fill(log, 30)
        before = {name: files.read_bytes(f"data/orders-1/{name}") for name in LOGS}

        def refuse(operation: Operation) -> None:
            if operation.kind == "rename" and "orders-1" in operation.path:
                raise WriteRefusedError(f"cannot rename {operation.path}: I/O error")

        files.hook = refuse
        partitions = [("orders", index) for index in range(3)]
        with pytest.raises(WriteRefusedError):
            manager.delete_logs(partitions, TOPIC_ID)
        assert manager.directories() == [("orders", 1)]
        assert all(log.offline for log in logs)
        with pytest.raises(ForeignLogError):
            manager.open_log("orders", UUID(int=8), 1, SMALL, now_ms=NOW)
        with pytest.raises(WriteRefusedError):
            manager.move_aside(partitions)
        assert {name: files.read_bytes(f"data/orders-1/{name}") for name in LOGS} == before
        files.hook = None
        assert manager.move_aside(partitions) == [f"data/orders-1.{TOPIC_ID.hex}-stray"]

    def test_log_whose_deletion_fails_is_still_checkpointed(self) -> None:
        files = CrashFiles()
        manager = open_manager(files)
        log = open_log(manager)
        fill(log, 30)
        manager.checkpoint(NOW).run()

        def refuse(operation: Operation) -> None:
            if operation.path.endswith("-checkpoint.tmp"):
                raise WriteRefusedError(f"cannot write {operation.path}: no space")

        files.hook = refuse
        with pytest.raises(WriteRefusedError):
            manager.delete_logs([("orders", 0)], TOPIC_ID)
        files.hook = None
        fill(log, 5)
        log.delete_records_before(20)
        manager.checkpoint(NOW).run()
        reopened = open_log(open_manager(files.crashed("lost-name", 0)))
        assert (reopened.log_start_offset, reopened.log_end_offset) == (20, 35)

    def test_crash_during_deletion_leaves_all_or_nothing(self) -> None:
        """A recreated topic is never checked against the offsets of the deleted one."""
        files = CrashFiles()
        manager = open_manager(files)
        fill(open_log(manager), 50)
        manager.checkpoint(NOW).run()
        disks: list[CrashFiles] = []

        def cut(_: Operation) -> None:
            disks.extend(
                files.crashed(mode, files.operations) for mode in ("drop", "lost-name", "mixed")
            )

        files.hook = cut
        manager.delete_logs([("orders", 0)], TOPIC_ID)
        fill(manager.open_log("orders", UUID(int=8), 0, SMALL, now_ms=NOW), 3)
        done = len(disks)
        manager.empty_trash()
        assert 10 < done < len(disks)
        for number, disk in enumerate(disks):
            reopened = open_manager(disk)
            found = {topic_id for _, _, topic_id in reopened.partitions()}
            assert found <= {TOPIC_ID, UUID(int=8), None}
            if TOPIC_ID in found:
                reopened.move_aside([("orders", 0)])
            log = reopened.open_log("orders", UUID(int=8), 0, SMALL, now_ms=NOW)
            assert log.log_end_offset <= 3
            if number >= done:
                assert values(log) == [b"value 0", b"value 1", b"value 2"]
            if found == {TOPIC_ID}:
                kept = [name for name in disk.listdir("data") if name.endswith("-stray")]
                disk.rename(f"data/{kept[0]}", "data/orders-0")
                reopened = open_manager(disk)
                assert open_log(reopened).log_end_offset == 50


class TestCheckpoint:
    def test_checkpoint_writes_the_offset_files(self, place: Place) -> None:
        files, data_dir = place
        manager = open_manager(files, data_dir)
        log = open_log(manager)
        fill(log, 40)
        append(log, b"not synced", leader_epoch=1)
        log.delete_records_before(30)
        manager.checkpoint(NOW).run()
        assert saved(files, data_dir, "recovery-point") == {("orders", 0): 40}
        assert saved(files, data_dir, "replication") == {("orders", 0): 40}
        assert saved(files, data_dir, "log-start") == {("orders", 0): 30}
        assert files.read_bytes(f"{log.directory}/{LEADER_EPOCHS}") == b"0\n2\n0 30\n1 40\n"

    @pytest.mark.parametrize("clean", [True, False])
    def test_small_log_of_one_epoch_has_no_epoch_file(self, place: Place, clean: bool) -> None:
        files, data_dir = place
        manager = open_manager(files, data_dir)
        log = open_log(manager, config=LogConfig())
        fill(log, 3, leader_epoch=7)
        path = f"{log.directory}/{LEADER_EPOCHS}"
        manager.checkpoint(NOW).run()
        assert not files.exists(path)
        manager.close(clean=clean, now_ms=NOW)
        manager = open_manager(files, data_dir)
        log = open_log(manager, config=LogConfig())
        assert log.epochs.entries == [(7, 0)]
        fill(log, 100, leader_epoch=7)
        manager.checkpoint(NOW).run()
        assert files.read_bytes(path) == b"0\n1\n7 0\n", (
            "the epochs of a log that is no longer small were not saved"
        )

    def test_existing_epoch_file_is_kept_current(self, place: Place) -> None:
        """An existing epoch file is updated, however small the log is."""
        files, data_dir = place
        manager = open_manager(files, data_dir)
        log = open_log(manager, config=LogConfig())
        fill(log, 3, leader_epoch=7)
        append(log, b"of another leader", leader_epoch=8)
        manager.checkpoint(NOW).run()
        log.truncate_to(2, now_ms=NOW)
        manager.checkpoint(NOW).run()
        assert files.read_bytes(f"{log.directory}/{LEADER_EPOCHS}") == b"0\n1\n7 0\n"

    def test_checkpoint_is_due_after_the_interval(self) -> None:
        manager = open_manager(CrashFiles())
        assert not manager.checkpoint_due(NOW)
        log = open_log(manager)
        assert not manager.checkpoint_due(NOW)
        append(log, b"x")
        assert manager.checkpoint_due(NOW)
        manager.checkpoint(NOW).run()
        append(log, b"x")
        assert not manager.checkpoint_due(NOW + 4_999)
        assert manager.checkpoint_due(NOW + 5_000)
        assert manager.checkpoint_due(NOW - 1), "a clock that jumped back blocks checkpoints"
        for _ in range(40):
            append(log, b"x" * 50)
        assert not manager.checkpoint_due(NOW + 999)
        assert manager.checkpoint_due(NOW + 1_000), "a segment was rolled"

    def test_checkpoint_is_due_after_many_bytes(self, tmp_path: Path) -> None:
        place = OsFiles(), (tmp_path / "data").as_posix()
        manager = open_manager(*place)
        log = open_log(manager, config=LogConfig())
        append(log, b"x")
        manager.checkpoint(NOW).run()
        for _ in range(16):
            append(log, b"x" * (1 << 20))
            assert not manager.checkpoint_due(NOW) or log.appended_bytes > 16 << 20
        assert manager.checkpoint_due(NOW)
        commit(log)
        manager.checkpoint(NOW).run()
        assert not manager.checkpoint_due(NOW)
        names = place[0].listdir(log.directory)
        assert "00000000000000000000.index" in names, "indexes are saved within a segment"
        assert f"{log.log_end_offset:020d}.snapshot" in names

    def test_only_the_newest_snapshot_within_a_segment_is_kept(self, place: Place) -> None:
        manager = open_manager(*place)
        log = open_log(manager, config=LogConfig())
        for _ in range(3):
            append(log, b"x", producer_id=1, epoch=0, sequence=log.log_end_offset)
            log.save()
            manager.checkpoint(NOW).run()
        snapshots = [name for name in place[0].listdir(log.directory) if name.endswith(".snapshot")]
        assert snapshots == ["00000000000000000003.snapshot"]

    def test_unchanged_log_is_not_checkpointed_again(self) -> None:
        files = CrashFiles()
        manager = open_manager(files)
        fill(open_log(manager), 60)
        manager.close(now_ms=NOW)
        manager = open_manager(files)
        log = open_log(manager)
        assert values(log)
        operations: list[Operation] = []
        files.hook = operations.append
        manager.close(now_ms=NOW)
        assert {operation.path for operation in operations} == {
            "data",
            "data/.kafka_cleanshutdown.tmp",
        }

    def test_idle_logs_need_no_checkpoint(self, place: Place) -> None:
        files, data_dir = place
        manager = open_manager(files, data_dir)
        for partition in range(100):
            manager.open_log("idle", TOPIC_ID, partition, SMALL, now_ms=NOW)
        assert not manager.checkpoint_due(NOW)
        assert not [name for name in files.listdir(data_dir) if name.startswith("idle")]
        manager.close()
        assert "recovery-point-offset-checkpoint" not in files.listdir(data_dir)

    def test_next_checkpoint_finishes_a_failed_one(self) -> None:
        files = CrashFiles()
        manager = open_manager(files)
        log = open_log(manager)
        fill(log, 60)
        for step in range(100):
            refuse_after = files.operations + step

            def hook(operation: Operation, limit: int = refuse_after) -> None:
                if files.operations > limit:
                    raise StorageError(f"no {operation.kind}")

            fill(log, 1)
            files.hook = hook
            job = manager.checkpoint(NOW)
            try:
                job.run()
            except StorageError:
                files.hook = None
                continue
            break
        files.hook = None
        assert 5 < step < 99
        assert saved(files, "data", "recovery-point") == {("orders", 0): log.synced_offset}
        manager._lock.release()
        disk = files.crashed("lost-name", 0)
        log = open_log(open_manager(disk))
        assert log.epochs.entries == [(0, 0)]
        assert values(log) == [b"value %d" % number for number in range(log.log_end_offset)]

    @pytest.mark.parametrize("kind", ["write", "create", "rename"])
    def test_log_start_of_failed_checkpoint_is_stored_by_next_one(self, kind: str) -> None:
        files = CrashFiles()
        manager = open_manager(files)
        log = open_log(manager)
        fill(log, 10)
        log.save()
        manager.checkpoint(NOW).run()

        def refuse(operation: Operation) -> None:
            if operation.kind == kind:
                raise WriteRefusedError(f"no {operation.kind}")

        log.delete_records_before(5)
        assert not log.pending.needs_checkpoint, "only the offset changed"
        files.hook = refuse
        job = manager.checkpoint(NOW)
        with pytest.raises(WriteRefusedError):
            job.run()
        assert job.unrecorded == [log]
        job.requeue()
        files.hook = None
        assert manager.checkpoint_due(NOW + CHECKPOINT_EVERY_MS)
        job = manager.checkpoint(NOW)
        job.run()
        assert not job.unrecorded
        assert not manager.checkpoint_due(NOW + CHECKPOINT_EVERY_MS)
        reopened = open_log(open_manager(files.crashed("lost-name", 0)))
        assert reopened.log_start_offset == 5

    def test_full_disk_does_not_keep_expired_segments(self) -> None:
        files = CrashFiles()
        manager = open_manager(files)
        log = open_log(manager)
        fill(log, 100)
        manager.checkpoint(NOW).run()
        files.capacity = files.used()
        with pytest.raises(StorageError, match="no space"):
            append(log, b"x")
        log.delete_records_before(80)
        job = manager.checkpoint(NOW)
        with pytest.raises(StorageError, match="no space"):
            job.run()
        assert not job.unrecorded, "a mark records the log start"
        assert min(int(name[:20]) for name in files.listdir(log.directory) if ".log" in name) > 40
        append(log, b"fits again")
        commit(log)
        manager.checkpoint(NOW).run()
        for mode in ("lost-name", "mixed"):
            reopened = open_log(open_manager(files.crashed(mode, 1)))
            assert (reopened.log_start_offset, reopened.log_end_offset) == (80, 101)

    def test_checkpoint_ignores_a_log_deleted_in_the_meantime(self) -> None:
        files = CrashFiles()
        manager = open_manager(files)
        log = open_log(manager)
        fill(log, 60)
        log.delete_records_before(50)
        job = manager.checkpoint(NOW)
        manager.delete_logs([("orders", 0)], TOPIC_ID)
        reopened = manager.open_log("orders", UUID(int=8), 0, SMALL, now_ms=NOW)
        fill(reopened, 3)
        before = {path: data for path, data in files.image().items() if "orders-0/" in path}
        job.run()
        after = {path: data for path, data in files.image().items() if "orders-0/" in path}
        assert after == before
        log = manager.open_log("orders", UUID(int=8), 0, SMALL, now_ms=NOW)
        manager._lock.release()
        reopened = open_manager(files).open_log("orders", UUID(int=8), 0, SMALL, now_ms=NOW)
        assert values(reopened) == [b"value 0", b"value 1", b"value 2"]

    def test_guard_is_held_during_every_write(self) -> None:
        held = 0

        @contextmanager
        def guard() -> Iterator[None]:
            nonlocal held
            held += 1
            yield
            held -= 1

        class Guard:
            def __enter__(self) -> None:
                self.context = guard()
                self.context.__enter__()

            def __exit__(self, *details: object) -> None:
                self.context.__exit__(None, None, None)

        files = CrashFiles()
        manager = LogManager(files, "data", META, guard=Guard())
        log = open_log(manager)
        fill(log, 60)
        log.delete_records_before(50)
        job = manager.checkpoint(NOW)
        unguarded: list[Operation] = []
        files.hook = lambda operation: None if held else unguarded.append(operation)
        job.run()
        assert not unguarded

    def test_logs_in_memory_need_no_sync(self) -> None:
        log = open_log(open_manager(MemFiles(), "data"))
        for number in range(60):
            append(log, b"value %d" % number)
        assert not log.pending.dirty
        assert log.pending.take_dirty() == []

    def test_truncation_lowers_the_recovery_point_first(self) -> None:
        files = CrashFiles()
        manager = open_manager(files)
        log = open_log(manager)
        fill(log, 60)
        manager.checkpoint(NOW).run()
        disks: list[CrashFiles] = []
        files.hook = lambda operation: disks.extend(
            files.crashed(mode, files.operations) for mode in ("drop", "torn", "lost-name", "mixed")
        )
        log.truncate_to(20, now_ms=NOW)
        assert len(disks) > 20
        for disk in disks:
            reopened = open_log(open_manager(disk))
            end = reopened.log_end_offset
            assert end >= 20
            assert values(reopened) == [b"value %d" % number for number in range(end)]


class TestMany:
    """Costs of many logs together."""

    COUNT = 60

    def open_all(self, manager: LogManager) -> list[Log]:
        return [
            manager.open_log("orders", TOPIC_ID, number, SMALL, now_ms=NOW)
            for number in range(self.COUNT)
        ]

    def test_open_files_stay_within_their_limit(self, tmp_path: Path) -> None:
        directory = (tmp_path / "data").as_posix()
        manager = LogManager(OsFiles(), directory, META, open_files_max=5)
        logs = self.open_all(manager)
        before = open_descriptors()
        for number in range(3):
            for log in logs:
                append(log, b"turn %d" % number)
                assert open_descriptors() - before <= 5 + 1
            sync_logs(OsFiles(), logs)
        manager.close()
        manager = LogManager(OsFiles(), directory, META, open_files_max=5)
        opened = self.open_all(manager)
        assert open_descriptors() == before, "a log that was only opened holds no file"
        for log in opened:
            assert values(log) == [b"turn 0", b"turn 1", b"turn 2"]

    def test_checkpoint_of_many_logs_syncs_each_file_once(self) -> None:
        files = CrashFiles()
        manager = open_manager(files)
        logs = self.open_all(manager)
        for log in logs:
            append(log, b"x")
        sync_logs(files, logs)
        for log in logs:
            log.synced(1)
            log.save()
        manager.checkpoint(NOW).run()
        reopened = open_manager(files.crashed("lost-name", 0))
        for log in self.open_all(reopened):
            assert log.epochs.entries == [(0, 0)]
            assert files.exists(f"{log.directory}/{1:020}.snapshot")

    def test_all_logs_are_synced_after_a_crash_before_one_is_opened(self) -> None:
        files = CrashFiles()
        manager = open_manager(files)
        for log in self.open_all(manager):
            for number in range(20):  # several segments
                append(log, b"%d" % number * 20)
        manager = open_manager(files)
        manager.sync_recovered()
        kinds: Counter[str] = Counter()
        files.hook = lambda operation: kinds.update([operation.kind])
        logs = self.open_all(manager)
        assert [log.log_end_offset for log in logs] == [20] * self.COUNT
        assert not any(log.pending.dirty for log in logs)
        assert not kinds
        for seed in range(5):
            after = open_manager(files.crashed("mixed", seed))
            assert list(map(values, self.open_all(after))) == list(map(values, logs))

    def test_records_that_cannot_be_synced_after_a_crash_are_not_served(self) -> None:
        """A retried sync might succeed although the system has dropped the unwritten data."""
        files = CrashFiles()
        append(open_log(open_manager(files)), b"x")
        manager = open_manager(files)

        def hook(operation: Operation) -> None:
            if operation.kind == "sync":
                raise StorageError("broken disk")

        files.hook = hook
        with pytest.raises(StorageError, match="broken disk"):
            manager.sync_recovered()
        files.hook = None
        with pytest.raises(StorageError, match="broken disk"):
            open_log(manager)

    def test_records_appended_after_recovery_are_not_considered_durable(self) -> None:
        """Covers a log that is opened a second time, as after a repair."""
        files = CrashFiles()
        append(open_log(open_manager(files)), b"before")
        manager = open_manager(files)
        manager.sync_recovered()
        log = open_log(manager)
        append(log, b"since")
        reopened = manager.repair_log("orders", TOPIC_ID, 0, SMALL, now_ms=NOW).log
        assert reopened.synced_offset == reopened.log_end_offset == 2
        assert values(open_log(open_manager(files.crashed("drop", 0)))) == [b"before", b"since"]


class TestSyncLogs:
    @pytest.mark.parametrize("count", [1, 3, 40])
    def test_one_pass_syncs_many_logs(self, count: int) -> None:
        files = CrashFiles()
        manager = open_manager(files)
        logs = [
            manager.open_log("orders", TOPIC_ID, number, SMALL, now_ms=NOW)
            for number in range(count)
        ]
        for log in logs:
            append(log, b"a", b"b")
        kinds: list[str] = []
        files.hook = lambda operation: kinds.append(operation.kind)
        assert sync_logs(files, logs) == [(log, 2) for log in logs]
        assert Counter(kinds)["sync"] == 2 * count, "the records and the topic's id"
        files.hook = None
        assert not any(log.pending.dirty for log in logs)
        manager = open_manager(files.crashed("lost-name", 0))
        for number in range(count):
            log = manager.open_log("orders", TOPIC_ID, number, SMALL, now_ms=NOW)
            assert log.log_end_offset == 2

    def test_failed_sync_takes_all_logs_offline(self) -> None:
        files = CrashFiles()
        manager = open_manager(files)
        logs = [open_log(manager), open_log(manager, "other")]
        for log in logs:
            append(log, b"a")

        def hook(operation: Operation) -> None:
            if operation.kind == "sync":
                raise StorageError("broken disk")

        files.hook = hook
        assert sync_logs(files, logs) == []
        files.hook = None
        for log in logs:
            with pytest.raises(StorageError, match="broken disk"):
                append(log, b"b")
            assert log.synced_offset == 0
        manager.close()
        assert not open_manager(files).clean

    def test_appends_continue_while_a_thread_syncs(self, place: Place) -> None:
        """Everything below the returned offset was written before the sync began."""
        files, data_dir = place
        manager = open_manager(files, data_dir)
        log = open_log(manager, config=LogConfig(segment_bytes=20_000))
        stop = threading.Event()
        ends: list[int] = []

        def sync() -> None:
            while not stop.is_set():
                ends.append(log.sync())

        thread = threading.Thread(target=sync)
        thread.start()
        try:
            for number in range(3000):
                append(log, b"value %d" % number)
        finally:
            stop.set()
            thread.join()
        assert log.sync() == 3000
        assert not log.pending.dirty
        assert ends == sorted(ends)


def open_descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def test_close_unlocks_the_directory_even_if_the_disk_fails() -> None:
    files = CrashFiles()
    manager = open_manager(files)
    fill(open_log(manager), 3)

    def hook(operation: Operation) -> None:
        raise StorageError("broken disk")

    files.hook = hook
    with pytest.raises(StorageError, match="broken disk"):
        manager.close()
    files.hook = None
    assert not open_manager(files).clean
