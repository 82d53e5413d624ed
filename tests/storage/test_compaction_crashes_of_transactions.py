"""Crashes at every disk operation of a compaction of a topic with transactions.

Afterwards read_committed consumers must get the last acknowledged value of every key, and never a
record of an aborted transaction, in any state of the compaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from kbroker.protocol.records import (
    Record,
    encode_batch,
    iter_headers,
    read_header,
    read_marker,
    read_records,
)
from kbroker.storage.compaction import _Transactions
from kbroker.storage.files import Files
from kbroker.storage.log import Log
from kbroker.storage.lookups import aborted_transactions
from kbroker.storage.manager import LogManager

from .helpers import META, NOW, content, end_transaction, open_log
from .test_compaction_crashes import KEYED, Script, Truth, cut_everywhere, lost_values
from .test_crash_enumeration import Enumeration

# Producers with overlapping transactions, which end alternately with commit and abort.
PRODUCERS = (88, 99)
# Number of records per transaction of each producer.
LENGTHS = (4, 7)
ABORTED = b"aborted "


class Transactional(Script):
    """The script of the base class with all records in transactions."""

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        self.written = Counter[int]()
        self.unended: dict[int, list[Record]] = {producer_id: [] for producer_id in PRODUCERS}

    def put(self, number: int) -> None:
        producer_id = PRODUCERS[number % 2]
        length = LENGTHS[number % 2]
        nth, at = divmod(self.written[producer_id], length)
        self.written[producer_id] += 1
        aborts = nth % 2 == 1
        deletes = number % 8 == 5 and not aborts
        value = None if deletes else (ABORTED if aborts else b"value ") * 4 + b"%d" % number
        self._append(producer_id, Record(b"key %d" % (number * 7 % 5), value, NOW + number))
        if at == length - 1:
            self._end(producer_id, commit=not aborts)

    def _append(self, producer_id: int, record: Record) -> None:
        log = self.log
        record = record._replace(offset=log.log_end_offset)
        producer = log.producers.get(producer_id)
        data = encode_batch(
            [record],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=producer.next_sequence if producer else 0,
            transactional=True,
        )
        self.truth.sent[record.offset].add(record)
        self.unended[producer_id].append(record)
        log.append(memoryview(data), read_header(data), leader_epoch=0, now_ms=NOW)

    def _end(self, producer_id: int, *, commit: bool) -> None:
        end_transaction(self.log, producer_id, commit=commit)
        if commit:
            self.waiting += self.unended[producer_id]
        self.unended[producer_id] = []

    def ack(self) -> None:
        # Transactions overlap, so a later commit may contain an older value of a key.
        known = self.truth.acked
        newer = (
            record for record in self.waiting if record.offset > _offset(known.get(record.key))
        )
        self.waiting = sorted(newer, key=_offset)
        super().ack()


def _offset(record: Record | None) -> int:
    return -1 if record is None else record.offset


def find_faults(files: Files, truth: Truth) -> list[str]:
    """Recover, and check the records that read_committed consumers get."""
    log = open_log(LogManager(files, "data", META), "keyed", KEYED)
    log.advance_high_watermark(log.log_end_offset)
    found = list(committed(log))
    faults = []
    for record in found:
        if record not in truth.sent[record.offset]:
            faults.append(f"{record!r} was not sent")
        if (record.value or b"").startswith(ABORTED):
            faults.append(f"the aborted record {record.offset} is read as committed")
    # Records after the start of an open transaction are not visible yet.
    seen = {key: each for key, each in truth.acked.items() if each.offset < log.last_stable_offset}
    return faults + lost_values(seen, found)


def committed(log: Log) -> Iterator[Record]:
    """Return the records of a read_committed consumer, without listed aborted transactions."""
    limit = log.last_stable_offset
    aborted = sorted(aborted_transactions(log, 0, limit), key=lambda entry: entry[1])
    dropped: set[int] = set()
    offset = log.log_start_offset
    while offset < limit:
        part = log.read(offset, 1 << 20, limit=limit)
        data = content(part)
        for position, header in iter_headers(data):
            while aborted and aborted[0][1] <= header.last_offset:
                dropped.add(aborted.pop(0)[0])
            records = read_records(data[position : position + header.size])
            if header.is_control:
                marker = next(map(read_marker, records), None)  # compaction may have emptied it
                if marker is not None and not marker.commit:
                    dropped.discard(header.producer_id)
            elif header.producer_id not in dropped:
                yield from (record._replace(headers=()) for record in records)
        offset = part.next_offset


@pytest.mark.slow
def test_no_crash_loses_records_of_read_committed_consumers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = cut_everywhere(Transactional, find_faults, capsys)
    assert len(script.truth.acked) == 5


@pytest.mark.slow
def test_enumeration_detects_compaction_by_aborted_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With this bug, an aborted value replaces the committed value before it."""
    monkeypatch.setattr(_Transactions, "is_aborted", lambda self, header: False)
    enumeration = Enumeration(find_faults, deep=False, modes=("drop",))
    enumeration.run(Transactional)
    assert any("an older one" in fault or "is gone" in fault for fault in enumeration.faults)
