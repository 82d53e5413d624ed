"""Disks that become full at some byte, and have free space again later.

If any step of append, roll, checkpoint or stop hits the limit, acknowledged records are kept and
readable. No partial writes remain, and writes succeed again once there is space.
"""

from __future__ import annotations

import contextlib
from random import Random

import pytest

from kbroker.storage.crash_files import MODES, NO_LIMIT, CrashFiles, Mode
from kbroker.storage.errors import CorruptLogError, StorageError
from kbroker.storage.log import Log
from kbroker.storage.manager import LogManager
from kbroker.storage.naming import LOG_START

from .helpers import NOW, append, commit, open_log, open_manager, values
from .time_lookups import offset_for_timestamp

RECORDS = 70


def write(log: Log, number: int) -> None:
    append(
        log,
        b"value %d" % number,
        timestamp=NOW + number,
        producer_id=4,
        epoch=0,
        sequence=number,
        leader_epoch=number // 25,
    )


def expected_values(count: int) -> list[bytes]:
    return [b"value %d" % number for number in range(count)]


def run(capacity: int) -> int:
    """Fill a disk with `capacity` free bytes and return the number of rejected writes."""
    files, refusals = CrashFiles(), 0
    manager = open_manager(files)
    log = open_log(manager)
    files.capacity = files.used() + capacity
    done = 0
    while done < RECORDS:
        try:
            write(log, done)
        except StorageError:
            refusals += 1
            assert log.offline is None
            assert values(log) == expected_values(done)
            with contextlib.suppress(StorageError):
                manager.checkpoint(NOW).run()
            files.capacity += 700
            continue
        done += 1
        if done % 10 == 0:
            commit(log)
            try:
                manager.checkpoint(NOW).run()
            except StorageError:
                refusals += 1
    commit(log)
    disk = files.crashed("lost-name", capacity)
    check(disk)
    try:
        manager.close(now_ms=NOW)
    except StorageError:
        refusals += 1
    check(files)
    return refusals


def check(files: CrashFiles) -> None:
    files.capacity = 1 << 40
    log = open_log(open_manager(files))
    assert values(log) == expected_values(RECORDS)
    assert log.epochs.entries == [(0, 0), (1, 25), (2, 50)]
    write(log, RECORDS)
    assert offset_for_timestamp(log, NOW + 40, limit=RECORDS) == (40, NOW + 40, 1)


@pytest.mark.slow
def test_disk_full_at_any_byte_loses_no_acknowledged_record() -> None:
    refusals = [run(capacity) for capacity in range(0, 9000, 41)]
    assert sum(refusals) > 500
    assert run(1 << 20) == 0


DIRECTORY = "data/orders-0"


def full_disk() -> tuple[CrashFiles, LogManager, Log]:
    """Return a log of several segments on a full disk."""
    files = CrashFiles()
    manager = open_manager(files)
    log = open_log(manager)
    for number in range(RECORDS):
        write(log, number)
    commit(log)
    manager.checkpoint(NOW).run()
    files.capacity = 0
    manager.make_read_only("full")  # releases the reserve
    return files, manager, log


def suffixes(files: CrashFiles, suffix: str) -> list[str]:
    return [name for name in files.listdir(DIRECTORY) if name.endswith(suffix)]


def checked(files: CrashFiles, start: int) -> tuple[LogManager, Log]:
    """Open a log after a crash with the disk still full, and check the records from `start` on."""
    manager = open_manager(files)
    log = open_log(manager)
    assert log.log_start_offset <= start
    assert values(log) == expected_values(RECORDS)[log.log_start_offset :]
    return manager, log


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_crash_after_retention_on_a_full_disk_leaves_a_readable_log(
    mode: Mode, pytestconfig: pytest.Config
) -> None:
    random = Random(pytestconfig.getoption("--seed"))
    for _ in range(3):
        files, manager, log = full_disk()
        cuts = 0
        for _ in range(random.randint(1, 4)):
            low = log.log_start_offset if cuts else log.segments[1].base_offset
            start = log.delete_records_before(random.randint(low, RECORDS))
            cut_at = [files.crashed(mode, random.randint(0, 99))]
            files.hook = lambda _, disk=files, images=cut_at: images.append(
                disk.crashed(mode, random.randint(0, 99))
            )
            with contextlib.suppress(StorageError):
                manager.checkpoint(NOW).run()
            files.hook = None
            cut_at.append(files.crashed(mode, random.randint(0, 99)))
            cuts += len(cut_at)
            for disk in cut_at:
                checked(disk.killed(), start)
            if random.random() < 0.5:
                files = random.choice(cut_at)
                manager, log = checked(files, start)
        assert cuts > 4
        files.capacity = NO_LIMIT
        start = log.log_start_offset
        if random.random() < 0.5:
            files = files.crashed(mode, 0)
            manager, log = checked(files, start)
        manager.checkpoint(NOW).run()
        assert suffixes(files, LOG_START) == []
        _, log = checked(files.crashed("lost-name", 0), start)


def test_retention_on_a_full_disk_frees_space_and_ends_with_a_checkpoint() -> None:
    files, manager, log = full_disk()
    before = files.used()
    log.delete_records_before(RECORDS - 1)
    with pytest.raises(StorageError, match="no space"):
        manager.checkpoint(NOW).run()
    assert files.used() < before / 2
    assert suffixes(files, LOG_START) == [f"{log.log_start_offset:020d}{LOG_START}"]
    files.capacity = before
    manager.checkpoint(NOW).run()
    assert suffixes(files, LOG_START) == []
    assert checked(files.crashed("lost-name", 0), RECORDS - 1)[1].log_start_offset == RECORDS - 1


def test_segment_lost_after_retention_on_a_full_disk_is_detected() -> None:
    files, manager, log = full_disk()
    log.delete_records_before(log.segments[2].base_offset)
    with pytest.raises(StorageError):
        manager.checkpoint(NOW).run()
    disk = files.killed()
    disk.remove(f"{DIRECTORY}/{suffixes(disk, '.log')[0]}")
    with pytest.raises(CorruptLogError, match="missing"):
        open_log(open_manager(disk))
