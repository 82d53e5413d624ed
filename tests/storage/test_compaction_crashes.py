"""Crashes at every disk operation of a compaction and of each recovery.

Afterwards the last acknowledged value of every key must be present, without an older one after it.
No unsent records and no files of the interrupted compaction may remain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from kbroker.protocol.records import Record, encode_batch, read_header, read_records
from kbroker.storage import recovery
from kbroker.storage.cleaning import plan
from kbroker.storage.compaction import Compaction
from kbroker.storage.files import Files
from kbroker.storage.log import Log
from kbroker.storage.log_config import LogConfig
from kbroker.storage.manager import LogManager, sync_logs
from kbroker.storage.segment import Segment

from .helpers import META, NOW, content, open_log
from .test_compaction import carry_out, put_in_place
from .test_crash_enumeration import Enumeration
from .time_lookups import offset_for_timestamp

KEYED = LogConfig(
    segment_bytes=700,
    index_interval_bytes=150,
    retention_ms=-1,
    cleanup_policy=frozenset({"compact"}),
    delete_retention_ms=0,
)
KEYS = 5
PRODUCER = 77


@dataclass
class Truth:
    """Records sent to each offset, and the last acknowledged record of each key."""

    sent: dict[int, set[Record]] = field(default_factory=lambda: defaultdict(set))
    acked: dict[bytes | None, Record] = field(default_factory=dict)


class Script:
    """Operations of a broker with one compacted topic, in one thread."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.truth = Truth()
        self.waiting: list[Record] = []
        self.replaced = 0

    def open(self) -> None:
        self.manager = LogManager(self.files, "data", META)
        self.log = open_log(self.manager, "keyed", KEYED)

    def put(self, number: int) -> None:
        """Write or delete the value of one key."""
        log = self.log
        value = None if number % 4 == 3 else b"value %d" % number * 4
        record = Record(
            b"key %d" % (number * 7 % KEYS), value, NOW + number, (), log.log_end_offset
        )
        producer = log.producers.get(PRODUCER)
        data = encode_batch(
            [record],
            producer_id=PRODUCER,
            producer_epoch=0,
            base_sequence=producer.next_sequence if producer else 0,
        )
        self.truth.sent[record.offset].add(record)
        self.waiting.append(record)
        log.append(memoryview(data), read_header(data), leader_epoch=number // 25, now_ms=NOW)

    def ack(self) -> None:
        for log, end in sync_logs(self.files, [self.log]):
            log.synced(end)
            log.advance_high_watermark(end)
        self.truth.acked |= {record.key: record for record in self.waiting}
        self.waiting.clear()

    def compact(self) -> None:
        """Compact like a node: blocking steps are separate from changes of the log."""
        task = plan(self.log, NOW + 1, key_map_bytes=1 << 16, decompressed_max=1 << 16)
        if task is None:
            return
        run = Compaction(self.files, task)
        carry_out(run)
        self.manager.note_compaction(self.log, task.end_offset)
        assert put_in_place(self.files, self.log, task, run.result)
        self.replaced += sum(len(segment.sources) for segment in run.result.segments)

    def run(self) -> None:
        self.open()
        self._produce(0, 30)
        self.manager.checkpoint(NOW).run()
        self._produce(30, 42)
        self.manager.close(now_ms=NOW)
        self.open()
        self._produce(42, 50)
        self.manager.close(now_ms=NOW)

    def _produce(self, start: int, end: int) -> None:
        for number in range(start, end):
            self.put(number)
            if number % 3 == 2:
                self.ack()
            if number % 10 == 9:
                self.manager.checkpoint(NOW).run()
                self.compact()
        self.ack()


def find_faults(files: Files, truth: Truth) -> list[str]:
    """Recover, and compare with the acknowledged records."""
    log = open_log(LogManager(files, "data", META), "keyed", KEYED)
    faults = []
    found = _contents(log)
    for record in found:
        if record not in truth.sent[record.offset]:
            faults.append(f"{record!r} was not sent")
        if next(iter(_contents(log, record.offset))).offset != record.offset:
            faults.append(f"read at {record.offset} gives another record")
        time = offset_for_timestamp(log, record.timestamp, limit=log.log_end_offset)
        if time is None or time.timestamp < record.timestamp or time.offset > record.offset:
            faults.append(f"time of {record.offset} gives {time}")
    faults += lost_values(truth.acked, found)
    if any(name.endswith((".cleaned", ".replaces")) for name in files.listdir(log.directory)):
        faults.append("something is left of a compaction")
    return faults + _producer_faults(log)


def lost_values(acked: dict[bytes | None, Record], found: Iterable[Record]) -> list[str]:
    """Return the last acknowledged values that are missing in `found`."""
    faults = []
    last = {record.key: record for record in found}
    for key, promised in acked.items():
        kept = last.get(key)
        if kept is None and promised.value is not None:
            faults.append(f"the acknowledged value of {key!r} is gone")
        elif kept is not None and kept.offset < promised.offset:
            faults.append(f"the last value of {key!r} is an older one")
    return faults


def _contents(log: Log, offset: int = 0) -> list[Record]:
    found = []
    while offset < log.log_end_offset:
        part = log.read(offset, 1 << 20, limit=log.log_end_offset)
        found += [
            record._replace(headers=())
            for record in read_records(content(part))
            if record.offset >= offset
        ]
        offset = part.next_offset
    return found


def _producer_faults(log: Log) -> list[str]:
    """Check that the producer's next sequence is the number of records up to its last batch."""
    end = 0
    for segment in log.segments:
        for _, header in segment.headers():
            end = header.next_offset
    producer = log.producers.get(PRODUCER)
    known = producer.next_sequence if producer else 0
    return [] if known == end else [f"next sequence {known} after offset {end}"]


S = TypeVar("S", bound="Script")


def cut_everywhere(
    script: Callable[[Files], S],
    find: Callable[[Files, Truth], list[str]],
    capsys: pytest.CaptureFixture[str],
) -> S:
    """Crash a script and each recovery at every operation. There must be no faults."""
    enumeration = Enumeration(find, deep=True)
    scripts: list[S] = []

    def make(files: Files) -> S:
        scripts.append(script(files))
        return scripts[-1]

    enumeration.run(make)
    with capsys.disabled():
        print(f"\n{enumeration.report()}; segments replaced: {scripts[0].replaced}")
    assert not enumeration.faults, enumeration.summary()
    assert min(enumeration.cuts.values()) > 200
    assert enumeration.cuts_in_recovery > 500
    assert scripts[0].replaced > 8
    return scripts[0]


@pytest.mark.slow
def test_no_crash_loses_the_last_value_of_a_key(capsys: pytest.CaptureFixture[str]) -> None:
    cut_everywhere(Script, find_faults, capsys)


@pytest.mark.slow
def test_enumeration_detects_restored_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the list of replaced segments, old segments reappear next to the new one."""
    monkeypatch.setattr(recovery, "replaced_from_bytes", lambda data: None)
    enumeration = Enumeration(find_faults, deep=False, modes=("drop",))
    enumeration.run(Script)
    assert any("CorruptLogError" in fault for fault in enumeration.faults)


@pytest.mark.slow
def test_enumeration_detects_removals_before_the_swap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = Log.replace

    def remove_first(log: Log, old: Sequence[Segment], new: Segment) -> None:
        for segment in old:
            segment.remove()
        log.segments.sync_directory()
        original(log, old, new)

    monkeypatch.setattr(Log, "replace", remove_first)
    enumeration = Enumeration(find_faults, deep=False, modes=("drop",))
    enumeration.run(Script)
    assert any("is gone" in fault or "Error" in fault for fault in enumeration.faults)
