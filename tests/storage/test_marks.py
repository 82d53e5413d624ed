"""Copies of a log directory in use have its state when opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.storage.files import MemFiles, OsFiles
from kbroker.storage.log import Log
from kbroker.storage.lookups import aborted_transactions
from kbroker.storage.manager import LogManager
from kbroker.storage.marks import close_active_segment, complete_copy

from .helpers import NOW, SMALL, append, batch, commit, end_transaction, open_log, open_manager

PRODUCER = {"producer_id": 5, "epoch": 0}


def copied(files: MemFiles, manager: LogManager) -> LogManager:
    """Return a manager of a copy taken now."""
    copy = files.fork()
    complete_copy(copy, "data", manager)
    return open_manager(copy)


def state_of(log: Log) -> tuple[object, ...]:
    """Return the state that a copy must have."""
    return (
        log.log_start_offset,
        log.log_end_offset,
        log.high_watermark,
        log.epochs.entries,
        log.producers.to_bytes(),
    )


def test_copy_has_the_state_of_the_owner() -> None:
    """The files lack this state until the next checkpoint."""
    files = MemFiles()
    manager = open_manager(files)
    log = open_log(manager, "t")
    for number in range(60):
        append(log, b"x" * 100, leader_epoch=number // 20, sequence=number, **PRODUCER)
    commit(log)
    log.delete_records_before(30)
    other = copied(files, manager)
    assert other.clean
    assert state_of(open_log(other, "t")) == state_of(log)


def test_copy_has_the_producer_state() -> None:
    files = MemFiles()
    manager = open_manager(files)
    log = open_log(manager, "t")
    append(log, b"x", sequence=0, **PRODUCER)
    copy = open_log(copied(files, manager), "t")
    data, header = batch(b"x", producer_id=5, epoch=0, sequence=0)
    assert copy.append(data, header, leader_epoch=0, now_ms=NOW).duplicate


@pytest.mark.parametrize("restarted", [True, False])
def test_copy_has_the_aborted_transactions(restarted: bool) -> None:
    files = MemFiles()
    manager = open_manager(files)
    log = open_log(manager)
    data = batch(b"x", producer_id=6, epoch=0, sequence=0, transactional=True)
    log.append(*data, leader_epoch=0, now_ms=NOW)
    end_transaction(log, 6, commit=False)
    commit(log)
    if restarted:
        manager.close(now_ms=NOW)
        manager = open_manager(files)
        commit(open_log(manager))
    copy = open_log(copied(files, manager))
    assert aborted_transactions(copy, 0, 2) == [(6, 0)]


def test_copy_with_an_unopened_partition_is_not_clean() -> None:
    files = MemFiles()
    manager = open_manager(files)
    append(open_log(manager, "t"), b"x")
    append(open_log(manager, "u"), b"y")
    crashed = open_manager(files.fork())
    open_log(crashed, "t")
    assert not copied(crashed.files, crashed).clean  # type: ignore[arg-type]
    open_log(crashed, "u").fail("gone")
    assert not copied(crashed.files, crashed).clean  # type: ignore[arg-type]


def test_sealed_log_does_not_change_existing_files(tmp_path: Path) -> None:
    """Copies share the existing files."""
    files, data = OsFiles(), (tmp_path / "data").as_posix()
    manager = open_manager(files, data)
    log = open_log(manager, "t")
    for number in range(30):
        append(log, b"x" * 100, sequence=number, **PRODUCER)
    commit(log)
    close_active_segment(log)
    close_active_segment(log)  # changes nothing: the last segment is empty
    shared = sorted((tmp_path / "data" / "t-0").glob("*.log"))[:-1]
    assert len(shared) > 1
    before = [each.read_bytes() for each in shared]
    for _ in range(30):
        append(log, b"y" * 100)
    manager.checkpoint(NOW).run()
    manager.close(now_ms=NOW)
    assert [each.read_bytes() for each in shared] == before
    assert not any(each.read_bytes() == b"" for each in shared)


def test_sealed_log_has_complete_indexes(tmp_path: Path) -> None:
    files, data = OsFiles(), (tmp_path / "data").as_posix()
    manager = open_manager(files, data)
    log = open_log(manager, "t")
    for _ in range(10):
        append(log, b"x" * 100)
    close_active_segment(log)
    (first, *_) = log.segments
    index = tmp_path / "data" / "t-0" / "00000000000000000000.index"
    assert index.read_bytes() == first.indexes.offsets.to_bytes() != b""
    assert log.pending.needs_checkpoint, "the next checkpoint does not make them durable"
    manager.close(clean=False)


@pytest.mark.parametrize("clean", [True, False])
def test_empty_segment_found_at_the_start_rolls_by_time(clean: bool) -> None:
    """The first batch determines the time, also for an empty segment found on disk."""
    files = MemFiles()
    manager = open_manager(files)
    log = open_log(manager, "t")
    append(log, b"x")
    commit(log)
    log.roll()
    manager.checkpoint(NOW).run()
    manager.close(clean=clean, now_ms=NOW)
    reopened = open_log(open_manager(files), "t")
    append(reopened, b"y")
    append(reopened, b"z", timestamp=NOW + SMALL.segment_ms + 1)
    assert [segment.base_offset for segment in reopened.segments] == [0, 1, 2]
