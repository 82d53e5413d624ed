"""A failed sync takes the log directory offline, whatever the file, and is never retried."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kbroker.storage import files as files_module
from kbroker.storage.crash_files import CrashFiles, Operation
from kbroker.storage.errors import StorageError, SyncFailedError, WriteRefusedError
from kbroker.storage.files import OsFiles

from .helpers import NOW, append, commit, open_log, open_manager

KINDS = [
    ".index",
    ".timeindex",
    ".snapshot.tmp",
    "leader-epoch-checkpoint.tmp",
    "recovery-point-offset-checkpoint.tmp",
    "replication-offset-checkpoint.tmp",
    "log-start-offset-checkpoint.tmp",
    "data/orders-0",
    "data",
]


@pytest.mark.parametrize("ending", KINDS)
def test_failed_sync_in_a_checkpoint_takes_the_directory_offline(ending: str) -> None:
    files = CrashFiles()
    manager = open_manager(files)
    log, other = open_log(manager), open_log(manager, "other")
    append(other, b"x")
    for number in range(100):
        append(log, b"%d" % number, leader_epoch=number // 60)
    commit(log)
    commit(other)
    log.delete_records_before(30)
    failed: list[str] = []

    def refuse(operation: Operation) -> None:
        if operation.kind in ("sync", "syncdir") and operation.path.endswith(ending):
            failed.append(operation.path)
            raise SyncFailedError(f"cannot sync {operation.path}: I/O error", operation.path)

    files.hook = refuse
    with pytest.raises(SyncFailedError):
        manager.checkpoint(NOW).run()
    assert failed
    assert "I/O error" in (manager.failed or "")
    for each in (log, other):
        with pytest.raises(StorageError, match="I/O error"):
            append(each, b"y")
        with pytest.raises(StorageError, match="I/O error"):
            each.read(each.log_start_offset, 100, limit=each.log_end_offset)


def test_failed_sync_of_the_directory_of_a_new_segment_takes_the_log_offline() -> None:
    files = CrashFiles()
    log = open_log(open_manager(files))

    def refuse(operation: Operation) -> None:
        if operation.kind == "syncdir":
            raise SyncFailedError(f"cannot sync {operation.path}", operation.path)

    append(log, b"x")
    files.hook = refuse
    with pytest.raises(SyncFailedError):
        log.roll()
    files.hook = None
    with pytest.raises(StorageError, match="cannot sync"):
        append(log, b"x")


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_sync_errors_are_distinguished_from_write_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """A temporary file without space is discarded. Any other failed sync is final."""
    path = (tmp_path / "file").as_posix()
    files = OsFiles()
    file = files.open(path, create=True)
    file.append([b"x"])

    def fail(fd: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(files_module, "_fsync", fail)
    with pytest.raises(SyncFailedError) as failed:
        file.sync()
    assert failed.value.path == path
    expected = SyncFailedError if error == errno.EIO else WriteRefusedError
    with pytest.raises(expected):
        files.write_atomic(path, b"y")
    assert files.read_bytes(path) == b"x"
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(SyncFailedError):
        files.sync_dir(tmp_path.as_posix())
