"""Short logs are closed without indexes and snapshots, and lose no state."""

from __future__ import annotations

import pytest

from kbroker.protocol.errors import KafkaError
from kbroker.storage.crash_files import CrashFiles
from kbroker.storage.errors import CorruptLogError
from kbroker.storage.log import SHORT_LOG_BYTES, Log
from kbroker.storage.log_config import LogConfig
from kbroker.storage.lookups import aborted_transactions
from kbroker.storage.manager import LogManager

from .helpers import (
    NOW,
    append,
    batch,
    commit,
    end_transaction,
    open_log,
    open_manager,
    reopen_after_shutdown,
    transaction_faults,
    values,
)
from .time_lookups import offset_for_timestamp

BARE = {"00000000000000000000.log", "partition.metadata"}


def killed(manager: LogManager) -> LogManager:
    """Return a new manager of the directory after a kill -9."""
    assert isinstance(manager.files, CrashFiles)
    return open_manager(manager.files.killed())


def names(log: Log) -> set[str]:
    return set(log._files.listdir(log.directory))


def begin_transaction(log: Log) -> None:
    data = batch(b"b", producer_id=6, epoch=0, sequence=0, transactional=True)
    log.append(*data, leader_epoch=0, now_ms=NOW)


@pytest.fixture
def manager() -> LogManager:
    return open_manager(CrashFiles())


def test_short_log_without_producers_has_only_a_log_file(manager: LogManager) -> None:
    for number in range(3):
        log = open_log(manager)
        append(log, b"value %d" % number, timestamp=NOW + number)
        commit(log)
        manager = reopen_after_shutdown(manager)
        log = open_log(manager)
        assert names(log) == BARE
        assert values(log) == [b"value %d" % each for each in range(number + 1)]
        found = offset_for_timestamp(log, NOW + number, limit=log.log_end_offset)
        assert found is not None
        assert found.offset == number


def test_short_log_keeps_producers_and_transactions(manager: LogManager) -> None:
    log = open_log(manager)
    append(log, b"a", producer_id=5, epoch=3, sequence=0)
    begin_transaction(log)
    end_transaction(log, 6, commit=False)
    append(log, b"c", producer_id=5, epoch=3, sequence=1)
    commit(log)
    for _ in range(3):
        manager = reopen_after_shutdown(manager)
        log = open_log(manager)
        assert names(log) == BARE
        assert aborted_transactions(log, 0, 4) == [(6, 1)]
        assert transaction_faults(log) == []
        assert append(log, b"c", producer_id=5, epoch=3, sequence=1).duplicate


@pytest.mark.parametrize("opened_anew", [True, False])
def test_short_log_keeps_fenced_producers(manager: LogManager, opened_anew: bool) -> None:
    log = open_log(manager)
    for producer_id in (5, 7):
        append(log, b"a", producer_id=producer_id, epoch=3, sequence=0)
    commit(log)
    for producer_id in (5, 7):
        if opened_anew:
            manager = reopen_after_shutdown(manager)
            log = open_log(manager)
        log.fence(producer_id)
    log = open_log(reopen_after_shutdown(manager))
    for producer_id in (5, 7):
        with pytest.raises(KafkaError):
            append(log, b"b", producer_id=producer_id, epoch=3, sequence=1)


def test_longer_log_has_indexes_and_snapshots(manager: LogManager) -> None:
    log = open_log(manager, config=LogConfig())
    append(log, b"x" * SHORT_LOG_BYTES)
    commit(log)
    log = open_log(reopen_after_shutdown(manager))
    assert names(log) == BARE | {
        "00000000000000000000.index",
        "00000000000000000000.timeindex",
        "00000000000000000001.snapshot",
        "leader-epoch-checkpoint",
    }


@pytest.mark.parametrize("next_step", ["stops", "crashes"])
@pytest.mark.parametrize("leader_epoch", [0, 1])
def test_producer_state_of_deleted_records_is_kept(
    manager: LogManager, next_step: str, leader_epoch: int
) -> None:
    """Includes deletion after a shutdown that saved only records."""
    log = open_log(manager)
    append(log, b"a", producer_id=5, epoch=3, sequence=0)
    begin_transaction(log)
    append(log, b"c", leader_epoch=leader_epoch)
    append(log, b"d", leader_epoch=leader_epoch)
    commit(log)
    manager = reopen_after_shutdown(manager)
    log = open_log(manager)
    commit(log)
    log.delete_records_before(2)
    manager.checkpoint(NOW).run()
    manager = reopen_after_shutdown(manager) if next_step == "stops" else killed(manager)
    log = open_log(manager)
    assert append(log, b"a", producer_id=5, epoch=3, sequence=0).duplicate
    assert log.producers.has_open_transaction(6, 0)
    with pytest.raises(KafkaError):
        append(log, b"of a zombie", producer_id=5, epoch=2, sequence=0)


def test_aborted_transactions_of_expired_producers_are_kept(manager: LogManager) -> None:
    log = open_log(manager)
    begin_transaction(log)
    append(log, b"c")
    end_transaction(log, 6, commit=False)
    commit(log)
    log.producers.expire(NOW + 10**9, 1)
    manager = reopen_after_shutdown(manager)
    log = open_log(manager)
    commit(log)
    log.delete_records_before(1)
    log = open_log(reopen_after_shutdown(manager))
    assert aborted_transactions(log, 1, 3) == [(6, 0)]


def test_high_watermark_of_a_short_log_is_kept(manager: LogManager) -> None:
    """Includes a log that is only opened."""
    log = open_log(manager)
    append(log, b"a")
    append(log, b"b")
    log.synced(log.sync())
    manager.checkpoint(NOW).run()
    for mark in (1, 2):
        log.advance_high_watermark(mark)
        manager = reopen_after_shutdown(manager)
        log = open_log(manager)
        assert log.high_watermark == mark


@pytest.mark.parametrize("lost", ["the file", "its end"])
def test_recovered_records_count_as_durable(manager: LogManager, lost: str) -> None:
    log = open_log(manager)
    append(log, b"a")
    commit(log)
    manager = killed(manager)
    log = open_log(manager)
    manager.checkpoint(NOW).run()
    assert manager._checkpoints.get(("orders", 0)).recovery_point == 1
    manager = reopen_after_shutdown(manager)
    path = f"{log.directory}/00000000000000000000.log"
    if lost == "the file":
        manager.files.remove(path)
    else:
        manager.files.open(path).truncate(0)
    with pytest.raises(CorruptLogError):
        open_log(manager)


def test_shutdown_of_short_logs_syncs_only_records() -> None:
    """Many logs with one batch each need fewer operations than one per log."""
    files = CrashFiles()
    manager = open_manager(files)
    logs = [open_log(manager, f"orders-{number}") for number in range(50)]
    for log in logs:
        append(log, b"x")
        commit(log)
    before = files.operations
    manager.close(now_ms=NOW)
    assert files.operations - before < len(logs)
