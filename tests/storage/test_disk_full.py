"""The disk fills up at some byte, later there is room again.

Whatever step of append, roll, checkpoint or stop meets the end of the disk: what was acknowledged
stays, reads go on, nothing half-written is left, and writing resumes with the room.
"""

from __future__ import annotations

import contextlib

import pytest

from kbroker.storage.crash_files import CrashFiles
from kbroker.storage.errors import StorageError
from kbroker.storage.log import Log

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


def expected(count: int) -> list[bytes]:
    return [b"value %d" % number for number in range(count)]


def run(capacity: int) -> int:
    """One life on a disk with room for `capacity` bytes; returns how many refusals there were."""
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
            assert values(log) == expected(done)
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
    assert values(log) == expected(RECORDS)
    assert log.epochs.entries == [(0, 0), (1, 25), (2, 50)]
    write(log, RECORDS)
    assert offset_for_timestamp(log, NOW + 40, limit=RECORDS) == (40, NOW + 40, 1)


@pytest.mark.slow
def test_at_any_byte() -> None:
    refusals = [run(capacity) for capacity in range(0, 9000, 41)]
    assert sum(refusals) > 500
    assert run(1 << 20) == 0
