"""The limit on open files; closing a file loses no data."""

from __future__ import annotations

import pytest

from kbroker.storage.crash_files import CrashFile, CrashFiles, Operation
from kbroker.storage.errors import StorageError
from kbroker.storage.log import Log
from kbroker.storage.manager import LogManager, sync_logs
from kbroker.storage.sync import sync_in_order

from .helpers import META, NOW, SMALL, TOPIC_ID, append, values


def logs_of(files: CrashFiles, count: int, *, open_files_max: int = 1) -> list[Log]:
    manager = LogManager(files, "data", META, open_files_max=open_files_max)
    return [
        manager.open_log("orders", TOPIC_ID, number, SMALL, now_ms=NOW) for number in range(count)
    ]


def is_open(log: Log) -> bool:
    assert log.active is not None
    return log.active.file.opened is not None


def test_least_recently_used_file_is_closed() -> None:
    files = CrashFiles()
    logs = logs_of(files, 4, open_files_max=3)
    for log in logs[:3]:
        append(log, b"x")
        sync_logs(files, logs)
    assert [is_open(log) for log in logs[:3]] == [True] * 3
    append(logs[3], b"x")
    assert [is_open(log) for log in logs].count(True) == 3
    sync_logs(files, logs)
    closed = next(log for log in logs if not is_open(log))
    append(closed, b"y")
    assert is_open(closed)
    assert values(closed) == [b"x", b"y"]
    assert [is_open(log) for log in logs].count(True) == 3


def test_bytes_are_synced_before_their_file_is_closed() -> None:
    """A sync pass that finds the file closed reports its records as durable."""
    files = CrashFiles()
    logs = logs_of(files, 2)
    for log in logs:
        append(log, b"x")
    assert [is_open(log) for log in logs] == [False, True]
    assert sync_logs(files, logs) == [(log, 1) for log in logs]
    assert [values(log) for log in logs_of(files.crashed("drop", 0), 2)] == [[b"x"]] * 2


def test_failed_sync_before_closing_is_reported_to_the_next_pass() -> None:
    files = CrashFiles()
    logs = logs_of(files, 2)
    append(logs[0], b"x")

    def hook(operation: Operation) -> None:
        if operation.kind == "sync" and operation.path.endswith(".log"):
            raise StorageError("broken disk")

    files.hook = hook
    append(logs[1], b"x")
    files.hook = None
    assert not is_open(logs[0])
    with pytest.raises(StorageError, match="broken disk"):
        logs[0].sync()
    assert "broken disk" in (logs[0].offline or "")
    assert logs[1].sync() == 1


def test_file_stays_open_during_a_sync() -> None:
    """A pass in another thread uses the file while the owner continues."""
    files = CrashFiles()
    first, second = logs_of(files, 2)
    append(first, b"x")
    opened: list[bool] = []

    def go_on(operation: Operation) -> None:
        if operation.path.endswith(".log"):
            files.hook = None
            append(second, b"x")
            opened.append(is_open(first))

    files.hook = go_on
    sync_logs(files, [first])
    assert opened == [True]
    recovered = logs_of(files.crashed("drop", 0), 1)[0]
    assert values(recovered) == [b"x"]


def test_segment_sealed_during_a_pass_is_synced() -> None:
    files = CrashFiles()
    (log,) = logs_of(files, 1)
    append(log, b"x")
    items = log.pending.take_dirty()
    log.roll()
    sync_in_order(items)
    (recovered,) = logs_of(files.crashed("drop", 0), 1)
    assert values(recovered) == [b"x"]


def test_removed_segments_are_unregistered() -> None:
    files = CrashFiles()
    manager = LogManager(files, "data", META, open_files_max=10)
    log = manager.open_log("orders", TOPIC_ID, 0, SMALL, now_ms=NOW)
    for number in range(100):
        append(log, b"value %d" % number)
        sync_logs(files, [log])
    assert log.active is not None
    assert log.active.base_offset > 20, "the log has not rolled"
    assert manager._open_segments is not None
    assert len(manager._open_segments) == 1


def test_file_stays_open_without_a_descriptor_for_the_sync(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = CrashFiles()
    logs = logs_of(files, 2)
    for log in logs:
        append(log, b"x")
    sync_logs(files, logs)
    append(logs[0], b"y")
    open_file = files.open

    def short_of_descriptors(path: str, *, create: bool = False) -> CrashFile:
        if path == f"{logs[0].directory}/{0:020}.log":
            raise StorageError("too many open files")
        return open_file(path, create=create)

    monkeypatch.setattr(files, "open", short_of_descriptors)
    append(logs[1], b"y")
    assert (is_open(logs[0]), is_open(logs[1])) == (True, True)
    monkeypatch.undo()
    assert sync_logs(files, logs) == [(log, 2) for log in logs]
