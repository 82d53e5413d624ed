"""A fixed script crashes at every disk operation, in every crash mode.

Each resulting disk is recovered, with a second crash at every operation of the recovery. After each
recovery the acknowledged records must be present: none lost, duplicated or moved. Open and aborted
transactions must match the batches.
"""

from __future__ import annotations

import pickle
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Protocol, TypeVar

import pytest

from kbroker.protocol.records import Record, encode_batch, read_header, read_records
from kbroker.storage.aborted_index import AbortedIndex
from kbroker.storage.crash_files import MODES, CrashFiles, Mode, Operation
from kbroker.storage.files import Files
from kbroker.storage.log import Log
from kbroker.storage.log_config import LogConfig
from kbroker.storage.manager import LogManager, sync_logs
from kbroker.storage.marks import close_active_segment
from kbroker.storage.producer_state import Producer, ProducerStates
from kbroker.storage.sync import DirectorySync

from .helpers import (
    META,
    NOW,
    Transactions,
    content,
    end_transaction,
    open_log,
    transaction_faults,
)
from .time_lookups import offset_for_timestamp

pytestmark = pytest.mark.slow

RECORDS = 200

ORDERS = LogConfig(
    segment_bytes=4000, index_interval_bytes=300, retention_bytes=10_000, retention_ms=-1
)
COMMITS = LogConfig(segment_bytes=2000, index_interval_bytes=300, retention_ms=-1)
CONFIGS = {"orders": ORDERS, "commits": COMMITS}
PRODUCER = 77
# Transactional producers: many short transactions with a new epoch each, and a few long ones.
SHORT, LONG = 88, 99

RESTORE = ProducerStates._restore

# State that a script has acknowledged, in the form of its checker.
Promise = TypeVar("Promise")


@dataclass
class Truth:
    """Acknowledged records by topic and offset, and the log starts."""

    acked: dict[str, dict[int, bytes]] = field(default_factory=lambda: {t: {} for t in CONFIGS})
    sent: dict[str, dict[int, set[bytes]]] = field(
        default_factory=lambda: {t: defaultdict(set) for t in CONFIGS}
    )
    given_up: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CONFIGS, 0))
    deleted: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CONFIGS, 0))


class Script:
    """Operations of a broker in one thread. `ack` acknowledges all records written so far."""

    def __init__(self, files: Files, *, sync_before_ack: bool = True) -> None:
        self.files = files
        self.truth = Truth()
        self.waiting: list[tuple[str, int, bytes]] = []
        self.sync_before_ack = sync_before_ack
        self.epochs = Counter[tuple[str, int]]()

    def open(self) -> None:
        # One open file for two logs, so each access closes the other log's file.
        self.manager = LogManager(self.files, "data", META, open_files_max=1)
        self.logs = {
            topic: open_log(self.manager, topic, config) for topic, config in CONFIGS.items()
        }

    def append(
        self, topic: str, number: int, count: int, leader_epoch: int, producer_id: int = PRODUCER
    ) -> None:
        values = [b"%s %d.%d " % (topic.encode(), number, i) * 3 for i in range(count)]
        log = self.logs[topic]
        records = [Record(value=value, timestamp=NOW + number) for value in values]
        producer = log.producers.get(producer_id)
        data = encode_batch(
            records,
            producer_id=producer_id,
            producer_epoch=self.epochs[topic, producer_id],
            base_sequence=producer.next_sequence if producer else 0,
            transactional=producer_id != PRODUCER,
        )
        # Unacknowledged batches may survive as well.
        base = log.log_end_offset
        for i, value in enumerate(values):
            self.truth.sent[topic][base + i].add(value)
            self.waiting.append((topic, base + i, value))
        log.append(memoryview(data), read_header(data), leader_epoch=leader_epoch, now_ms=NOW)

    def end(self, topic: str, producer_id: int, leader_epoch: int, *, commit: bool) -> None:
        log = self.logs[topic]
        if producer_id == SHORT:
            self.epochs[topic, producer_id] += 1
        epoch = self.epochs[topic, producer_id]
        value = b"\0" * 6
        self.truth.sent[topic][log.log_end_offset].add(value)
        self.waiting.append((topic, log.log_end_offset, value))
        end_transaction(log, producer_id, commit=commit, epoch=epoch, leader_epoch=leader_epoch)

    def ack(self) -> None:
        if self.sync_before_ack:
            for log, end in sync_logs(self.files, self.logs.values()):
                log.synced(end)
        for log in self.logs.values():
            log.advance_high_watermark(log.log_end_offset)
        for topic, offset, value in self.waiting:
            self.truth.acked[topic][offset] = value
        self.waiting.clear()

    def checkpoint(self) -> None:
        self.manager.checkpoint(NOW).run()
        for topic, log in self.logs.items():
            self.truth.deleted[topic] = log.log_start_offset

    def retain(self) -> None:
        log = self.logs["orders"]
        log.apply_retention(NOW)
        self.truth.given_up["orders"] = log.log_start_offset

    def cut(self) -> None:
        """Truncate unacknowledged records, as a follower does."""
        for number in (1000, 1001, 1002):
            self.append("orders", number, 2, leader_epoch=1)
        self.waiting.clear()
        log = self.logs["orders"]
        log.truncate_to(log.high_watermark, now_ms=NOW)

    def close_active_segments(self) -> None:
        """Roll all logs, as before a copy that shares closed segments."""
        for log in self.logs.values():
            close_active_segment(log)

    def delete_records(self, offset: int) -> None:
        log = self.logs["orders"]
        self.truth.given_up["orders"] = offset
        log.delete_records_before(offset)

    def run(self) -> None:
        self.open()
        self._produce(0, 90, leader_epoch=0)
        self.retain()
        self.checkpoint()
        self._produce(90, 130, leader_epoch=1)
        self.delete_records(self.logs["orders"].high_watermark - 25)
        self.checkpoint()
        self._produce(130, 138, leader_epoch=1)
        self.close_active_segments()
        self._produce(138, 150, leader_epoch=1)
        self.cut()
        self._produce(150, 160, leader_epoch=2)
        self.manager.close(now_ms=NOW)
        self.open()
        self._produce(160, RECORDS, leader_epoch=3)
        self.manager.close(now_ms=NOW)

    def _produce(self, start: int, end: int, *, leader_epoch: int) -> None:
        for number in range(start, end):
            self.append("orders", number, 1 + number % 3, leader_epoch)
            if number % 10 == 9:
                self.append("commits", number, 1, leader_epoch)
            self._transact(number, leader_epoch)
            if number % 4 == 3:
                self.ack()
            if number % 32 == 30:
                self.checkpoint()
        self.ack()

    def _transact(self, number: int, leader_epoch: int) -> None:
        """Write overlapping transactions of two producers, committed and aborted alternately."""
        topic = "orders"
        if number % 16 in (1, 10):
            self.append(topic, number, 1, leader_epoch, SHORT)
        if number % 16 == 13:
            self.end(topic, SHORT, leader_epoch, commit=number % 32 == 13)
        if number % 40 in (3, 20):
            self.append(topic, number, 2, leader_epoch, LONG)
        if number % 40 == 34:
            self.end(topic, LONG, leader_epoch, commit=number % 80 == 34)


def find_faults(files: Files, truth: Truth, *, settle: bool = False) -> list[str]:
    """Recover, and compare with the acknowledged state. `settle` first makes all logs durable."""
    manager = LogManager(files, "data", META)
    if settle:
        manager.sync_recovered()
    faults: list[str] = []
    for topic, config in CONFIGS.items():
        log = open_log(manager, topic, config)
        faults += [f"{topic}: {fault}" for fault in _faults_of(log, topic, truth)]
    return faults


def _faults_of(log: Log, topic: str, truth: Truth) -> list[str]:
    faults = []
    if not truth.deleted[topic] <= log.log_start_offset <= max(truth.given_up[topic], 0):
        faults.append(f"log start {log.log_start_offset}, deleted up to {truth.deleted[topic]}")
    if log.synced_offset != log.log_end_offset:
        faults.append("recovered records are not durable")
    found: dict[int, bytes | None] = {}
    offset, sequences = log.log_start_offset, Counter[tuple[int, int, int]]()
    while offset < log.log_end_offset:
        part = log.read(offset, 500, limit=log.log_end_offset)
        header = read_header(content(part))
        if not header.is_control:
            sequences[header.producer_id, header.producer_epoch, header.base_sequence] += 1
        at = max(header.base_offset, log.log_start_offset)
        if log.epochs.epoch_at(at) != header.leader_epoch:
            faults.append(f"epoch at {header.base_offset}")
        for record in read_records(content(part)):
            found.setdefault(record.offset, record.value)
        offset = part.next_offset
    for at, value in truth.acked[topic].items():
        if at >= truth.given_up[topic] and found.get(at) != value:
            faults.append(f"acknowledged record {at} is {found.get(at)!r}")
    for at, kept in found.items():
        if kept not in truth.sent[topic][at]:
            faults.append(f"record {at} is {kept!r}, which was not sent there")
    if any(count > 1 for count in sequences.values()):
        faults.append("a batch is there twice")
    log.advance_high_watermark(log.log_end_offset)
    return faults + _producer_faults(log) + transaction_faults(log) + _lookup_faults(log)


def _producer_faults(log: Log) -> list[str]:
    """Check each producer's next sequence and that its last five batches are known."""
    faults = []
    seen = Transactions(log)
    for producer_id, due in seen.next_sequences.items():
        producer = log.producers.get(producer_id)
        if producer is None:
            faults.append(f"producer {producer_id} is unknown")
        elif producer.next_sequence != due:
            faults.append(f"next sequence {producer.next_sequence} of {producer_id}, not {due}")
        elif (known := seen.batches[producer_id][-5:]) != known_of(producer, len(known)):
            faults.append(f"batches {known_of(producer, 5)} of {producer_id}, not {known}")
    return faults


def known_of(producer: Producer, count: int) -> list[int]:
    """Return the base offsets of the last batches that are known of a producer."""
    batches = list(producer.batches)
    return [batch.base_offset for batch in batches[len(batches) - count :]]


def _lookup_faults(log: Log) -> list[str]:
    """Check lookups by offset and time through existing and rebuilt indexes."""
    faults = []
    for offset in range(log.log_start_offset, log.log_end_offset, 5):
        record = next(
            each
            for each in read_records(content(log.read(offset, 1, limit=log.log_end_offset)))
            if each.offset >= offset
        )
        if record.offset != offset:
            faults.append(f"read at {offset} gives {record.offset}")
        found = offset_for_timestamp(log, record.timestamp, limit=log.log_end_offset)
        if found is None or found.timestamp < record.timestamp or found.offset > offset:
            faults.append(f"time of {offset} gives {found}")
    return faults


class Runs(Protocol[Promise]):
    """A script that can be interrupted and keeps its acknowledged state up to date."""

    truth: Promise

    def run(self) -> None: ...


class Enumeration(Generic[Promise]):
    """Crashes at each disk operation, with statistics of the results.

    `find` recovers a disk and compares it with the acknowledged state. Most crashes leave one of a
    few different disks. Each disk is recovered once per acknowledged state, and the recovery of
    each disk crashes once at each operation.
    """

    def __init__(
        self,
        find: Callable[[Files, Promise], list[str]],
        *,
        deep: bool,
        modes: tuple[Mode, ...] = MODES,
    ) -> None:
        self.find = find
        self.deep = deep
        self.modes = modes
        self.cuts = Counter[str]()
        self.kinds = Counter[str]()
        self.cuts_in_recovery = 0
        self.recovered = 0
        self.faults: list[str] = []
        self._disks_cut: set[int] = set()
        self._checked: set[int] = set()

    def run(self, make: Callable[[Files], Runs[Promise]]) -> None:
        files = CrashFiles()
        script = make(files)
        files.hook = lambda operation: self._cut(files, script, operation)
        script.run()
        self._cut(files, script, Operation("end", ""))

    def _cut(self, files: CrashFiles, script: Runs[Promise], operation: Operation) -> None:
        self.kinds[operation.kind] += 1
        for mode in self.modes:
            self.cuts[mode] += 1
            disk = files.crashed(mode, seed=files.operations)
            self._recover(disk, mode, script.truth, operation)

    def _recover(self, disk: CrashFiles, mode: Mode, truth: Promise, operation: Operation) -> None:
        label = f"{mode} before {operation.kind} {operation.path}"
        if self.deep and _is_new(self._disks_cut, disk.image()):
            disk.hook = lambda inner: self._cut_recovery(disk, mode, truth, label, inner)
        self._check(disk, truth, label)

    def _cut_recovery(
        self, disk: CrashFiles, mode: Mode, truth: Promise, label: str, operation: Operation
    ) -> None:
        self.cuts_in_recovery += 1
        second_crash = disk.crashed(mode, seed=disk.operations)
        self._check(second_crash, truth, f"{label}, then {operation.kind} {operation.path}")

    def _check(self, disk: CrashFiles, truth: Promise, label: str) -> None:
        if not _is_new(self._checked, disk.image(), truth) and disk.hook is None:
            return
        self.recovered += 1
        try:
            self.faults += [f"{label}: {fault}" for fault in self.find(disk, truth)]
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a fault
            self.faults.append(f"{label}: {error!r}")

    def summary(self) -> str:
        """Return each kind of fault once, with its number."""
        kinds = Counter(re.sub(r"\d+", "N", fault.partition(": ")[2]) for fault in self.faults)
        first = {
            re.sub(r"\d+", "N", fault.partition(": ")[2]): fault for fault in self.faults[::-1]
        }
        return "\n".join(f"{count} x {first[kind]}" for kind, count in kinds.most_common(20))

    def report(self) -> str:
        cuts = ", ".join(f"{count} {mode}" for mode, count in self.cuts.items())
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.kinds.most_common())
        return (
            f"crash points: {cuts}; during recovery: {self.cuts_in_recovery}; recovered "
            f"disks: {self.recovered}; operations: {kinds}; faults: {len(self.faults)}"
        )


def _is_new(seen: set[int], *state: object) -> bool:
    """Add a state to `seen` and return True if it was missing."""
    key = hash(pickle.dumps(state))
    if key in seen:
        return False
    seen.add(key)
    return True


@pytest.mark.long
def test_no_crash_loses_an_acknowledged_record(capsys: pytest.CaptureFixture[str]) -> None:
    enumeration = Enumeration(find_faults, deep=True)
    enumeration.run(Script)
    with capsys.disabled():
        print(f"\n{enumeration.report()}")
    assert not enumeration.faults, enumeration.summary()
    assert min(enumeration.cuts.values()) > 300
    assert enumeration.cuts_in_recovery > 2000
    for kind in ("write", "sync", "rename", "remove", "create", "syncdir", "mkdir", "truncate"):
        assert enumeration.kinds[kind], kind


@pytest.mark.long
def test_no_crash_loses_a_record_if_all_logs_are_synced_first() -> None:
    enumeration = Enumeration(
        partial(find_faults, settle=True), deep=False, modes=("torn", "lost-name")
    )
    enumeration.run(Script)
    assert not enumeration.faults, enumeration.summary()


def test_no_crash_loses_a_record_if_indexes_are_saved_within_a_segment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kbroker.storage.log.SAVE_EVERY_BYTES", 500)
    enumeration = Enumeration(find_faults, deep=False, modes=("torn", "mixed"))
    enumeration.run(Script)
    assert not enumeration.faults, enumeration.summary()


@pytest.mark.long
def test_enumeration_detects_unlisted_aborted_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Indexes trusted after a crash may be torn or list lost transactions."""
    monkeypatch.setattr("kbroker.storage.log.SAVE_EVERY_BYTES", 500)
    monkeypatch.setattr(AbortedIndex, "drop_from", lambda self, offset: None)
    enumeration = Enumeration(find_faults, deep=False, modes=("mixed",))
    enumeration.run(Script)
    assert any("has no marker" in fault for fault in enumeration.faults)


@pytest.mark.long
def test_enumeration_detects_transactions_closed_by_a_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ProducerStates, "_restore", _restore_without_transactions)
    enumeration = Enumeration(find_faults, deep=False, modes=("drop",))
    enumeration.run(Script)
    assert any("is open from" in fault for fault in enumeration.faults)


def _restore_without_transactions(
    states: ProducerStates, fields: tuple[int, ...], now_ms: int
) -> None:
    RESTORE(states, (*fields[:-1], -1), now_ms)


@pytest.mark.long
def test_enumeration_detects_acks_without_a_sync() -> None:
    enumeration = Enumeration(find_faults, deep=False, modes=("drop", "torn"))
    enumeration.run(lambda files: Script(files, sync_before_ack=False))
    assert any("acknowledged record" in fault for fault in enumeration.faults)


def test_enumeration_detects_an_unsynced_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(DirectorySync, "sync", lambda self: None)
    enumeration = Enumeration(find_faults, deep=False, modes=("lost-name",))
    enumeration.run(Script)
    assert any("acknowledged record" in fault for fault in enumeration.faults)


@pytest.mark.long
def test_enumeration_detects_recovery_without_crc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.storage.recovery.check_crc", lambda *_: True)
    enumeration = Enumeration(find_faults, deep=False, modes=("torn",))
    enumeration.run(Script)
    assert enumeration.faults
