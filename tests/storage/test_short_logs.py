"""A log of a few batches is closed without files beside its records, and nothing is missed."""

from __future__ import annotations

import pytest

from kbroker.storage.crash_files import CrashFiles
from kbroker.storage.log import SHORT_LOG_BYTES, Log
from kbroker.storage.log_config import LogConfig
from kbroker.storage.lookups import aborted_transactions, offset_for_timestamp
from kbroker.storage.manager import LogManager

from .helpers import (
    NOW,
    append,
    batch,
    commit,
    end_transaction,
    open_log,
    open_manager,
    transaction_faults,
    values,
)

ALONE = {"00000000000000000000.log", "partition.metadata"}


def stopped(manager: LogManager) -> LogManager:
    """The next owner of the folder, after a clean stop."""
    manager.close(now_ms=NOW)
    manager = open_manager(manager.files, manager.data_dir)
    assert manager.clean
    return manager


def names(log: Log) -> set[str]:
    return set(log._files.listdir(log.folder))


@pytest.fixture
def manager() -> LogManager:
    return open_manager(CrashFiles())


def test_all_is_told_by_its_batches(manager: LogManager) -> None:
    log = open_log(manager)
    append(log, b"a", producer_id=5, epoch=3, sequence=0, timestamp=NOW - 10)
    log.append(
        *batch(b"b", producer_id=6, epoch=0, sequence=0, transactional=True),
        leader_epoch=0,
        now_ms=NOW,
    )
    end_transaction(log, 6, commit=False)
    append(log, b"c", producer_id=5, epoch=3, sequence=1, timestamp=NOW + 10)
    commit(log)
    for _ in range(3):
        manager = stopped(manager)
        log = open_log(manager)
        assert names(log) == ALONE
        assert aborted_transactions(log, 0, 4) == [(6, 1)]
        assert transaction_faults(log) == []
        found = offset_for_timestamp(log, NOW + 1, limit=4)
        assert found is not None
        assert found.offset == 3
        again = append(log, b"c", producer_id=5, epoch=3, sequence=1)
        assert again.duplicate
    append(log, b"d", producer_id=5, epoch=3, sequence=2)
    commit(log)
    assert len(values(open_log(stopped(manager)))) == 5


def test_a_longer_one_has_its_files(manager: LogManager) -> None:
    log = open_log(manager, config=LogConfig())
    append(log, b"x" * SHORT_LOG_BYTES)
    commit(log)
    log = open_log(stopped(manager))
    assert names(log) == ALONE | {
        "00000000000000000000.index",
        "00000000000000000000.timeindex",
        "00000000000000000001.snapshot",
        "leader-epoch-checkpoint",
    }


def test_what_deleted_records_tell_of_producers_is_kept(manager: LogManager) -> None:
    log = open_log(manager)
    append(log, b"a", producer_id=5, epoch=3, sequence=0)
    append(log, b"b")
    commit(log)
    log.delete_records_before(1)
    log = open_log(stopped(manager))
    assert append(log, b"a", producer_id=5, epoch=3, sequence=0).duplicate


def test_a_stop_makes_nothing_durable_but_the_records() -> None:
    """Of one batch in each of many logs: no sync for each log."""
    files = CrashFiles()
    manager = open_manager(files)
    logs = [open_log(manager, f"orders-{number}") for number in range(50)]
    for log in logs:
        append(log, b"x")
        commit(log)
    before = files.operations
    manager.close(now_ms=NOW)
    assert files.operations - before < len(logs)
