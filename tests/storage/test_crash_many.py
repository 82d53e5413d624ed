"""Crashes at every disk operation of requests to many partitions: each file must be synced.

The disk loses everything that was not synced by file. It does not offer a sync of the whole file
system, which gives no guarantee on some of them (FUSE without FUSE_SYNCFS).
"""

from __future__ import annotations

from collections import defaultdict

import pytest

from kbroker.storage.crash_files import CrashFile, CrashFiles
from kbroker.storage.files import Calls, Files, one_by_one
from kbroker.storage.log import Log
from kbroker.storage.manager import LogManager, sync_logs

from .helpers import META, NOW, SMALL, TOPIC_ID, append, values
from .test_crash_enumeration import Enumeration

PARTITIONS = 10

# Acknowledged values of each partition.
Truth = dict[int, list[bytes]]


class Script:
    """A broker that gets one request for all partitions at a time."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.truth: Truth = defaultdict(list)

    def run(self) -> None:
        manager = LogManager(self.files, "data", META)
        logs = open_all(manager)
        for number in range(2):
            self._produce(logs, b"value %d" % number)
            for log in logs:
                log.save()
            manager.checkpoint(NOW).run()
        manager.close(now_ms=NOW)
        manager = LogManager(self.files, "data", META)
        self._produce(open_all(manager), b"again")

    def _produce(self, logs: list[Log], value: bytes) -> None:
        for log in logs:
            append(log, value)
        for log, end in sync_logs(self.files, logs):
            log.synced(end)
            log.advance_high_watermark(end)
            self.truth[log.partition].append(value)


def open_all(manager: LogManager) -> list[Log]:
    return [
        manager.open_log("orders", TOPIC_ID, number, SMALL, now_ms=NOW)
        for number in range(PARTITIONS)
    ]


def find_faults(files: Files, truth: Truth) -> list[str]:
    faults = []
    for log in open_all(LogManager(files, "data", META)):
        found, acked = values(log), truth[log.partition]
        if found[: len(acked)] != acked:
            faults.append(f"acknowledged records {acked} are {found}")
    return faults


@pytest.mark.slow
def test_no_crash_loses_a_record_of_many_partitions(capsys: pytest.CaptureFixture[str]) -> None:
    enumeration = Enumeration(find_faults, deep=False)
    enumeration.run(Script)
    with capsys.disabled():
        print(f"\n{enumeration.report()}")
    assert not enumeration.faults, enumeration.summary()
    assert min(enumeration.cuts.values()) > 200
    assert enumeration.kinds["sync"] > 8 * PARTITIONS


def test_enumeration_detects_a_sync_without_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    def promise(files: CrashFiles, calls: Calls) -> None:
        with monkeypatch.context() as promised:
            promised.setattr(CrashFile, "sync", lambda file: None)
            one_by_one(calls)

    monkeypatch.setattr(CrashFiles, "at_once", promise)
    enumeration = Enumeration(find_faults, deep=False, modes=("drop",))
    enumeration.run(Script)
    assert any("acknowledged records" in fault for fault in enumeration.faults)
