"""Disks that are temporarily unwritable: logs are unchanged, and continue later."""

from __future__ import annotations

import pytest

from kbroker.protocol.records import placed
from kbroker.storage.crash_files import CrashFiles
from kbroker.storage.errors import StorageError, WriteRefusedError
from kbroker.storage.reserve import RESERVE_BYTES_MAX

from ..refusing_files import DATA, RefusingFiles
from .helpers import NOW, TOPIC_ID, append, batch, commit, open_log, open_manager, values


def test_rejected_batch_starts_no_leader_epoch() -> None:
    """A follower with an epoch without records would find no common epoch with its leader."""
    files = CrashFiles()
    log = open_log(open_manager(files))
    append(log, b"a", leader_epoch=1)
    files.capacity = files.used()
    with pytest.raises(WriteRefusedError):
        append(log, b"b", leader_epoch=2)
    assert log.epochs.entries == [(1, 0)]


def test_truncation_rejected_by_the_disk_can_be_retried() -> None:
    files = RefusingFiles()
    log = open_log(open_manager(files, DATA))
    for value in (b"a", b"b", b"c"):
        append(log, value)
    commit(log)
    files.refuse(DATA)
    for cut in (log.truncate_to, log.restart_at):
        with pytest.raises(WriteRefusedError):
            cut(1, now_ms=NOW)
        assert (log.offline, log.log_end_offset, log.high_watermark) == (None, 3, 3)
        assert values(log) == [b"a", b"b", b"c"]
    files.heal()
    log.truncate_to(1, now_ms=NOW)
    append(log, b"d")
    commit(log)
    assert values(log) == [b"a", b"d"]


def test_rejected_truncation_without_checkpoint_change_can_be_retried() -> None:
    files = RefusingFiles()
    log = open_log(open_manager(files, DATA))
    for value in (b"a", b"b"):
        append(log, value)
    log.truncate_to(1, now_ms=NOW)
    append(log, b"c")
    files.refuse(DATA)
    for cut in (log.truncate_to, log.restart_at):
        with pytest.raises(WriteRefusedError):
            cut(0, now_ms=NOW)
        assert (log.offline, log.log_end_offset) == (None, 2)
    files.heal()
    log.truncate_to(1, now_ms=NOW)
    assert (log.offline, log.log_end_offset) == (None, 1)


def test_read_only_log_is_not_truncated() -> None:
    """An interrupted truncation would take the log offline until a restart."""
    files = RefusingFiles()
    manager = open_manager(files, DATA)
    log = open_log(manager)
    for value in (b"a", b"b", b"c"):
        append(log, value)
    commit(log)
    files.refuse(log.directory)
    manager.make_read_only("read-only")
    for cut in (log.truncate_to, log.restart_at):
        with pytest.raises(WriteRefusedError):
            cut(1, now_ms=NOW)
        assert (log.offline, values(log)) == (None, [b"a", b"b", b"c"])
    files.heal()
    manager.make_writable()
    log.truncate_to(1, now_ms=NOW)
    assert values(log) == [b"a"]


def test_interrupted_truncation_takes_the_log_offline() -> None:
    """The log's state in memory does not match the files, so it must not be read."""
    files = RefusingFiles()
    manager = open_manager(files, DATA)
    log = open_log(manager)
    for value in (b"a", b"b", b"c"):
        append(log, value)
    commit(log)
    files.refuse(log.directory)
    with pytest.raises(WriteRefusedError):
        log.truncate_to(1, now_ms=NOW)
    assert "restart the server" in (log.offline or "")
    manager.close(clean=False)
    files.heal()
    log = open_log(open_manager(files, DATA))
    assert values(log, 0)[0] == b"a"


def test_directory_is_read_only_until_a_probe_succeeds() -> None:
    files = RefusingFiles()
    manager = open_manager(files, DATA)
    log = open_log(manager)
    append(log, b"a")
    assert files.exists(f"{DATA}/.reserve")
    manager.make_read_only("read-only")
    assert not files.exists(f"{DATA}/.reserve")
    other = open_log(manager, "other")
    for each in (log, other):
        with pytest.raises(WriteRefusedError, match="read-only"):
            append(each, b"x")
        with pytest.raises(WriteRefusedError, match="read-only"):
            each.append_replicated(memoryview(leader_batch(each.log_end_offset)), now_ms=NOW)
    files.refuse(DATA)
    with pytest.raises(StorageError):
        manager.probe()
    files.heal()
    manager.probe()
    assert files.listdir(DATA).count(".reserve") == 1
    assert ".probe" not in files.listdir(DATA)
    manager.make_writable()
    append(log, b"b")
    append(other, b"b")


def leader_batch(offset: int) -> bytes:
    """Return a batch with this base offset."""
    data, header = batch(b"x")
    return b"".join(placed(data, header, offset, 0))


def test_reserve_is_created_only_with_twice_its_free_space() -> None:
    files = CrashFiles()
    manager = open_manager(files)
    manager.make_read_only("full")
    files.capacity = files.used() + 2 * RESERVE_BYTES_MAX - 1
    with pytest.raises(StorageError, match="is full"):
        manager.probe()
    files.capacity += 100
    manager.probe()


def test_start_on_a_full_disk_is_read_only() -> None:
    files = CrashFiles()
    manager = open_manager(files)
    log = open_log(manager)
    append(log, b"a")
    commit(log)
    manager.close(now_ms=NOW)
    files.capacity = files.used()
    manager = open_manager(files)
    assert "is full: 0 bytes" in (manager.read_only_reason or "")
    log = open_log(manager)
    with pytest.raises(WriteRefusedError, match="is full"):
        append(log, b"b")
    assert values(log) == [b"a"]
    log.delete_records_before(1)
    manager.checkpoint(NOW).run()
    manager.delete_logs([("orders", 0)], TOPIC_ID)
