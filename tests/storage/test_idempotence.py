"""The last five batches of a producer are kept through all events of a log."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from crc32c import crc32c

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.records import BatchHeader
from kbroker.storage.crash_files import MODES, CrashFiles, Mode
from kbroker.storage.files import Files
from kbroker.storage.log import Log
from kbroker.storage.log_config import LogConfig
from kbroker.storage.manager import LogManager
from kbroker.storage.producer_state import ProducerStates

from .helpers import (
    NOW,
    TOPIC_ID,
    append,
    batch,
    commit,
    content,
    open_log,
    open_manager,
    reopen_after_shutdown,
)
from .test_compaction import KEYED, compact
from .test_directories import TWO, move, open_directories

PRODUCER = 77
# Batches by base offset.
Sent = dict[int, tuple[memoryview, BatchHeader]]


def send(log: Log, first: int = 0, count: int = 7) -> Sent:
    """Write batches of two records from sequence `first` on, between batches of others."""
    sent: Sent = {}
    for sequence in range(first, first + 2 * count, 2):
        each = batch(b"x" * 50, b"y", producer_id=PRODUCER, epoch=0, sequence=sequence)
        sent[log.append(*each, leader_epoch=0, now_ms=NOW).base_offset] = each
        append(log, b"of another producer")
    commit(log)
    return sent


def check(log: Log, sent: Sent) -> None:
    """Check that retries of the last five batches get their offsets, and no older ones."""
    end = log.log_end_offset
    too_old = list(sent.values())[-6]
    with pytest.raises(KafkaError) as error:
        log.append(*too_old, leader_epoch=0, now_ms=NOW)
    assert error.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    for offset, each in list(sent.items())[-5:]:
        found = log.append(*each, leader_epoch=0, now_ms=NOW)
        assert found == (offset, offset + 1, NOW, True)
    assert log.log_end_offset == end
    due = list(sent.values())[-1][1].last_sequence + 1
    following = batch(b"z", producer_id=PRODUCER, epoch=0, sequence=due)
    assert not log.append(*following, leader_epoch=0, now_ms=NOW).duplicate


@pytest.fixture
def manager(place: tuple[Files, str]) -> LogManager:
    return open_manager(*place)


@pytest.mark.parametrize("snapshots", [True, False])
def test_batches_are_known_after_clean_shutdowns(manager: LogManager, snapshots: bool) -> None:
    """Each snapshot keeps the state of the previous one. A short log has no snapshot."""
    log = open_log(manager)
    sent = send(log)
    if snapshots:
        log.save()
    for sequence in (14, 16):
        manager = reopen_after_shutdown(reopen_after_shutdown(manager))
        sent |= send(open_log(manager), sequence, 1)
    check(open_log(reopen_after_shutdown(manager)), sent)


@pytest.mark.parametrize("mode", [None, *MODES])
@pytest.mark.parametrize("snapshots", [True, False])
def test_batches_are_known_after_a_crash(mode: Mode | None, snapshots: bool) -> None:
    files = CrashFiles()
    manager = open_manager(files)
    log = open_log(manager)
    sent = send(log)
    if snapshots:
        log.save()
        manager.checkpoint(NOW).run()
    sent |= send(log, 14, 2)
    left = files.killed() if mode is None else files.crashed(mode, 0)
    check(open_log(open_manager(left)), sent)


def test_batches_are_known_after_a_truncation(manager: LogManager) -> None:
    log = open_log(manager)
    sent = send(log)
    manager.checkpoint(NOW).run()
    end = log.log_end_offset
    send(log, 14)
    log.save()
    manager.checkpoint(NOW).run()
    log.truncate_to(end, now_ms=NOW)
    check(log, sent)


def test_batches_are_known_after_a_truncation_and_a_shutdown(manager: LogManager) -> None:
    log = open_log(manager)
    sent = send(log)
    end = log.log_end_offset
    send(log, 14)
    log.truncate_to(end, now_ms=NOW)
    check(open_log(reopen_after_shutdown(manager)), sent)


def test_batches_are_known_after_retention(manager: LogManager) -> None:
    log = open_log(manager)
    sent = send(log)
    log.delete_records_before(log.log_end_offset)
    check(open_log(reopen_after_shutdown(manager)), sent)


def test_batches_are_known_after_compaction(manager: LogManager) -> None:
    log = open_log(manager, config=KEYED)
    sent = send(log)
    before = log.segments.size
    assert compact(manager.files, manager, log)
    assert log.segments.size < before
    check(open_log(reopen_after_shutdown(manager), config=KEYED), sent)


@pytest.mark.parametrize("next_step", ["goes on", "stops", "crashes"])
@pytest.mark.parametrize("records", ["are there", "are deleted", "are compacted"])
def test_batches_are_known_after_a_move(records: str, next_step: str) -> None:
    """A move to another directory keeps state that the records do not contain."""
    files = CrashFiles()
    directories = open_directories(files)
    log = directories.open_log("a", TOPIC_ID, 0, KEYED, now_ms=NOW)
    sent = send(log)
    if records == "are deleted":
        log.delete_records_before(log.log_end_offset)
    elif records == "are compacted":
        assert compact(files, directories.managers[0], log)
    log = move(directories, log, TWO)
    if next_step == "stops":
        directories.close(now_ms=NOW)
    if next_step != "goes on":
        directories = open_directories(files.crashed("drop", 0))
        log = directories.open_log("a", TOPIC_ID, 0, KEYED, now_ms=NOW)
    check(log, sent)


def test_batches_are_known_on_a_follower(manager: LogManager) -> None:
    """The follower becomes leader before and after a restart."""
    leader = open_log(manager)
    sent = send(leader)
    names = ("at-once", "after-a-stop")
    for name in names:
        follower = open_log(manager, name)
        for part in parts_of(leader):
            follower.append_replicated(memoryview(part), now_ms=NOW)
        commit(follower)
    check(open_log(manager, names[0]), sent)
    check(open_log(reopen_after_shutdown(manager), names[1]), sent)


def parts_of(log: Log) -> Iterator[bytes]:
    offset = 0
    while offset < log.log_end_offset:
        part = log.read(offset, 300, limit=log.log_end_offset)
        yield content(part)
        offset = part.next_offset


# -- snapshots with one batch per producer


def name_one_batch(files: Files, directory: str) -> None:
    """Rewrite the snapshots as Kafka or an early kbroker would have written them."""
    snapshots = [name for name in files.listdir(directory) if name.endswith(".snapshot")]
    assert snapshots
    for name in snapshots:
        data = files.read_bytes(f"{directory}/{name}")
        body = data[6 : 10 + 46 * int.from_bytes(data[6:10], "big")]
        crc = crc32c(body).to_bytes(4, "big")
        files.write_atomic(f"{directory}/{name}", data[:2] + crc + body)


@pytest.mark.parametrize("segment_bytes", [300, 100_000])
@pytest.mark.parametrize("more", [0, 2])
def test_batches_missing_in_a_snapshot_are_read_from_the_log(
    manager: LogManager, segment_bytes: int, more: int
) -> None:
    """The batches span one or several segments, with and without batches after the snapshot."""
    config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=200)
    log = open_log(manager, config=config)
    sent = send(log)
    log.save()
    manager.checkpoint(NOW).run()
    sent |= send(log, 14, more)
    files = manager.files
    if more:  # as after a crash
        manager.close(clean=False)
        manager = open_manager(files, manager.data_dir)
    else:
        manager = reopen_after_shutdown(manager)
    name_one_batch(files, log.directory)
    check(open_log(manager, config=config), sent)


def test_recalled_batches_are_saved(manager: LogManager, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is read once. The next snapshot contains the batches."""
    log = open_log(manager)
    sent = send(log)
    log.save()
    manager = reopen_after_shutdown(manager)
    name_one_batch(manager.files, log.directory)
    open_log(manager)
    manager = reopen_after_shutdown(manager)
    monkeypatch.setattr(ProducerStates, "add_earlier_batches", None)
    check(open_log(manager), sent)


def test_recall_reads_only_the_end_of_a_long_log(
    manager: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.storage.log.RECALL_BYTES", 500)
    log = open_log(manager)
    send(log)
    log.save()
    manager = reopen_after_shutdown(manager)
    name_one_batch(manager.files, log.directory)
    producer = open_log(manager).producers.get(PRODUCER)
    assert producer is not None
    assert 1 < len(producer.batches) < 5
    assert [each.last_sequence for each in producer.batches][-2:] == [11, 13]


def test_recall_ignores_batches_of_an_earlier_epoch(manager: LogManager) -> None:
    log = open_log(manager)
    old = send(log)
    new = batch(b"x", producer_id=PRODUCER, epoch=1, sequence=0)
    log.append(*new, leader_epoch=0, now_ms=NOW)
    log.save()
    manager = reopen_after_shutdown(manager)
    name_one_batch(manager.files, log.directory)
    log = open_log(manager)
    assert log.append(*new, leader_epoch=0, now_ms=NOW).duplicate
    with pytest.raises(KafkaError) as error:
        log.append(*list(old.values())[-1], leader_epoch=0, now_ms=NOW)
    assert error.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
