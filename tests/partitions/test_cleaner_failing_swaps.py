"""Disk operations that fail once or for a while during segment swaps of the cleaner.

After any failure and any number of restarts, the latest value of every key is served.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from kbroker.broker import Broker
from kbroker.protocol.records import Record, encode_batch, read_header, read_records
from kbroker.storage.crash_files import MODES, CrashFiles, Mode, Operation
from kbroker.storage.directories import DirectoryJobs
from kbroker.storage.errors import StorageError, WriteRefusedError
from kbroker.storage.log import Log
from kbroker.storage.naming import CLEANER_OFFSETS, RECOVERY_POINTS
from kbroker.storage.pending import Pending

from ..brokers import started_on

DATA = "/data"
TOPIC = "keyed"
CONFIGS = {"cleanup.policy": "compact", "internal.segment.bytes": "1000"}
KEYS = 25
RECORDS = 120
CASES_PER_ROUND = 12

Values = dict[bytes | None, bytes | None]


class Case(NamedTuple):
    """Which operations fail, and how the broker ends.

    Attributes:
        operation: An operation that always fails, or None.
        first: Number of the first failing operation if `operation` is None.
        length: Number of failing operations if `operation` is None.
        is_full: True if the disk fails because it is full.
        bad_runs: Number of cleaner runs on the failing disk.
        good_runs: Number of cleaner runs afterwards.
        cut: Kind of the power failure at the end, None for a kill.
    """

    first: int
    length: int
    operation: Operation | None
    is_full: bool
    bad_runs: int
    good_runs: int
    cut: Mode | None


@dataclass
class FailingDisk:
    """A disk that fails operations while it is armed, and counts them."""

    case: Case
    files: CrashFiles
    seen: list[Operation] = field(default_factory=list)
    failed: int = 0

    def arm(self) -> None:
        self.files.hook = self._look

    def heal(self) -> None:
        self.files.hook = None

    def _look(self, operation: Operation) -> None:
        number = len(self.seen)
        self.seen.append(operation)
        if self.case.operation is not None:
            fails = operation == self.case.operation
        else:
            fails = self.case.first <= number < self.case.first + self.case.length
        if not fails:
            return
        kind, path = operation
        if self.case.is_full and kind in ("remove", "sync", "syncdir"):
            return
        self.failed += 1
        error = WriteRefusedError if self.case.is_full else StorageError
        raise error(f"cannot {kind} {path}")


def started(files: CrashFiles) -> AbstractAsyncContextManager[Broker]:
    return started_on(files, DATA, log_cleaner_enable="false")  # the test calls the cleaner


def log_of(broker: Broker) -> Log:
    return broker.node.partitions.named_replica(TOPIC, 0).log


async def put(broker: Broker, start: int, end: int, truth: Values) -> None:
    replica = broker.node.partitions.named_replica(TOPIC, 0)
    for number in range(start, end):
        value = None if number % 9 == 8 else b"value %d" % number * 3
        record = Record(b"key %d" % (number * 7 % KEYS), value, 1_000_000 + number)
        data = encode_batch([record])
        replica.append(memoryview(data), read_header(data), 0)
        truth[record.key] = value
    replica.log.roll()
    await broker.node.partitions.flusher.sync_now()


def served(log: Log) -> Values:
    """Return the latest value of each key, as a consumer reads it from the log start."""
    found: Values = {}
    offset = log.log_start_offset
    while offset < log.high_watermark:
        part = log.read(offset, 1 << 20, limit=log.high_watermark)
        data = part.records if isinstance(part.records, bytes) else part.records.read()
        found |= {record.key: record.value for record in read_records(data)}
        offset = part.next_offset
    return {key: value for key, value in found.items() if value is not None}


async def base_disk(truth: Values) -> CrashFiles:
    """Return the disk of a stopped broker with a partly dirty compacted topic."""
    files = CrashFiles()
    async with started(files) as broker:
        await broker.create_topic(TOPIC, 1, configs=CONFIGS)
        await put(broker, 0, RECORDS // 2, truth)
        assert await broker.node.maintenance.cleaner.clean_all() > 0
        await put(broker, RECORDS // 2, RECORDS, truth)
    return files


async def faults_of(case: Case, base: CrashFiles, truth: Values) -> tuple[list[str], FailingDisk]:
    """Run a case; return the missing records and the disk."""
    files = base.killed()
    disk = FailingDisk(case, files)
    faults: list[str] = []
    truth = dict(truth)
    async with started(files) as broker:
        assert served(log_of(broker)) == without_tombstones(truth)
        for run in range(case.bad_runs + case.good_runs):
            if log_of(broker).offline is not None:
                break
            if run:
                await put(broker, RECORDS + run * 30, RECORDS + (run + 1) * 30, truth)
            if run < case.bad_runs:
                disk.arm()
            await broker.node.maintenance.cleaner.clean_all()
            disk.heal()
            if log_of(broker).offline is None:
                faults += differences("while it ran", broker, truth)
        left = files.crashed(case.cut, case.first) if case.cut else files.killed()
    for start in range(3):
        async with started(left) as broker:
            faults += differences(f"at start {start}", broker, truth)
            if not faults and start:
                await broker.node.maintenance.cleaner.clean_all()
                faults += differences(f"cleaned after start {start}", broker, truth)
        left = left.killed()
    return faults, disk


def differences(when: str, broker: Broker, truth: Values) -> list[str]:
    try:
        found, expected = served(log_of(broker)), without_tombstones(truth)
    except StorageError as error:
        return [f"{when}: {error.message}"]
    changed = {key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key)}
    return [f"{when}: {sorted(map(str, changed))} differ"] if changed else []


def without_tombstones(truth: Values) -> Values:
    return {key: value for key, value in truth.items() if value is not None}


async def run_cases(seed: int, count: int) -> tuple[list[str], Counter[str]]:
    """Run random cases; return the faults and the amount of work."""
    random_ = random.Random(seed)
    truth: Values = {}
    base = await base_disk(truth)
    nothing = Case(0, 0, None, False, 1, 0, None)
    faults, disk = await faults_of(nothing, base, truth)
    counts = Counter(operations=len(disk.seen))
    for _ in range(count):
        case = Case(
            random_.randrange(len(disk.seen)),
            random_.choice([1, 1, 5, 1000]),
            random_.choice([None, *random_.sample(disk.seen, 3)]),
            random_.random() < 0.3,
            random_.randint(1, 3),
            random_.randrange(3),
            random_.choice([None, None, *MODES]),
        )
        found, failing = await faults_of(case, base, truth)
        faults += [f"{case}: {fault}" for fault in found]
        counts["failed operations"] += failing.failed
        counts["cases"] += failing.failed > 0
    return faults, counts


@pytest.mark.sized
@pytest.mark.slow
async def test_failures_during_swaps_lose_no_record(
    pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    count = CASES_PER_ROUND * pytestconfig.getoption("--rounds")
    faults, counts = await run_cases(pytestconfig.getoption("--seed"), count)
    with capsys.disabled():
        print(f"\nfigures: {count} failing disks, {dict(counts)}, {len(faults)} faults")
    assert not faults, "\n".join(faults[:5])
    assert counts["operations"] > 60
    assert counts["cases"] > count / 3


@pytest.mark.parametrize(
    "failing",
    [
        Operation("syncdir", DATA),
        Operation("rename", f"{DATA}/{RECOVERY_POINTS}.tmp"),
        Operation("sync", f"{DATA}/{CLEANER_OFFSETS}.tmp"),
    ],
)
@pytest.mark.parametrize("mode", MODES)
async def test_failed_checkpoints_leave_no_recovery_point_in_a_gap(
    failing: Operation, mode: Mode
) -> None:
    """Without failures, compaction removes all records that the checkpoint on disk knows of."""
    truth: Values = {}
    base = await base_disk(truth)
    faults, disk = await faults_of(Case(73, 0, failing, False, 3, 0, mode), base, truth)
    assert disk.failed
    assert faults == []


async def faults_of_failing_removal() -> list[str]:
    """Run the cleaner twice on a disk that fails to remove replaced segments."""
    truth: Values = {}
    base = await base_disk(truth)
    _, disk = await faults_of(Case(0, 0, None, False, 1, 0, None), base, truth)
    removal = next(
        operation
        for operation in disk.seen
        if operation.kind == "remove" and operation.path.endswith(".log")
    )
    faults, failing = await faults_of(Case(0, 0, removal, False, 2, 0, None), base, truth)
    assert failing.failed > 1
    return faults


async def test_failed_checkpoints_of_two_runs_lose_no_record() -> None:
    assert await faults_of_failing_removal() == []


async def test_model_reports_runs_that_begin_before_the_last_swap_is_cleaned_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second run overwrites the `.replaces` file of the first one."""
    monkeypatch.setattr(DirectoryJobs, "requeue", lambda self: None)
    monkeypatch.setattr(Pending, "needs_checkpoint", property(_wants_checkpoint))
    assert any("but the log continues at" in fault for fault in await faults_of_failing_removal())


def _wants_checkpoint(pending: Pending) -> bool:
    return bool(pending._for_checkpoint or pending._to_remove)
