"""The log, compared with a small model: a list of records and four numbers.

Hypothesis generates sequences of appends, syncs, rolls, truncations, retention, clean shutdowns,
kills and power failures. After each step, the log must equal the model.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kbroker.protocol.errors import KafkaError
from kbroker.storage.crash_files import MODES, CrashFiles, Mode

from .helpers import (
    NOW,
    SMALL,
    append,
    end_transaction,
    open_log,
    open_manager,
    records,
    transaction_faults,
)
from .time_lookups import latest_record, offset_for_timestamp

PRODUCER = 3
TRANSACTIONAL = (4, 5)
CONFIG = dataclasses.replace(SMALL, segment_bytes=2000, retention_ms=-1)


class Entry(NamedTuple):
    value: bytes
    timestamp: int
    epoch: int
    is_idempotent: bool = False
    is_marker: bool = False


class LogMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.files = CrashFiles()
        self.entries: list[Entry] = []  # index = offset
        self.borders = [0]  # truncation points: base offsets of batches, and the end
        self.start_offset = 0
        self.durable_start = 0
        self.synced = 0
        self.epoch = 0
        self.written = 0  # never decreases, so that values are unique
        self.open()

    def open(self) -> None:
        self.manager = open_manager(self.files)
        self.log = open_log(self.manager, config=CONFIG)

    # --- operations of a broker -----------------------------------------------------------------

    @rule(
        count=st.integers(1, 4),
        size=st.sampled_from([1, 40, 400]),
        later=st.integers(-50, 100),
        new_epoch=st.booleans(),
    )
    def append(self, count: int, size: int, later: int, new_epoch: bool) -> None:
        self.epoch += new_epoch
        self.written += 1
        timestamp = NOW + self.written * 10 + later
        values = [b"%d.%d " % (self.written, number) + b"x" * size for number in range(count)]
        producer = self.log.producers.get(PRODUCER)
        appended = append(
            self.log,
            *values,
            leader_epoch=self.epoch,
            timestamp=timestamp,
            producer_id=PRODUCER,
            epoch=0,
            sequence=producer.next_sequence if producer else 0,
        )
        assert appended.base_offset == len(self.entries)
        self.entries += [
            Entry(value, timestamp, self.epoch, is_idempotent=True) for value in values
        ]
        self.borders.append(len(self.entries))

    @rule(
        producer_id=st.sampled_from(TRANSACTIONAL),
        write=st.booleans(),
        commit=st.booleans(),
        bumped=st.booleans(),
    )
    def transact(self, producer_id: int, write: bool, commit: bool, bumped: bool) -> None:
        """Write a record of a transaction or end one, in a new epoch for transaction version 2."""
        producer = self.log.producers.get(producer_id)
        epoch = producer.epoch if producer else 0
        self.written += 1
        if write:
            value = b"%d" % self.written
            append(
                self.log,
                value,
                leader_epoch=self.epoch,
                producer_id=producer_id,
                epoch=epoch,
                sequence=producer.next_sequence if producer else 0,
                transactional=True,
            )
        else:
            value = b"\0" * 6
            end_transaction(
                self.log,
                producer_id,
                commit=commit,
                epoch=epoch + bumped,
                leader_epoch=self.epoch,
            )
        self.entries.append(Entry(value, NOW, self.epoch, is_marker=not write))
        self.borders.append(len(self.entries))

    @rule()
    def sync(self) -> None:
        self.log.synced(self.log.sync())
        self.log.advance_high_watermark(self.log.synced_offset)
        self.synced = len(self.entries)

    @rule()
    def checkpoint(self) -> None:
        self.manager.checkpoint(NOW).run()
        self.durable_start = self.start_offset

    @rule()
    def save(self) -> None:
        self.log.save()

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.log.high_watermark))
        self.start_offset = max(offset, self.start_offset)
        assert self.log.delete_records_before(offset) == self.start_offset

    @rule(limit=st.integers(0, 6000))
    def retention(self, limit: int) -> None:
        self.log.configure(dataclasses.replace(CONFIG, retention_bytes=limit))
        self.log.apply_retention(NOW)
        assert self.log.log_start_offset >= self.start_offset
        self.start_offset = self.log.log_start_offset

    @precondition(lambda self: len(self.entries) > self.start_offset)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        candidates = [at for at in self.borders if at >= self.start_offset]
        offset = data.draw(st.sampled_from(candidates))
        self.log.truncate_to(offset, now_ms=NOW)
        if offset == len(self.entries):
            return
        del self.entries[offset:]
        self.borders = [at for at in self.borders if at <= offset]
        self.durable_start = self.start_offset
        self.synced = offset  # a truncation makes the rest durable
        self.epoch += 1  # the next records are from another leader

    # --- shutdowns and starts ------------------------------------------------------------------

    @rule()
    def stop_and_start(self) -> None:
        self.manager.close(now_ms=NOW)
        self.open()
        assert self.manager.clean
        self.synced = len(self.entries)
        self.durable_start = self.start_offset
        self.check_after_start(len(self.entries))

    @rule()
    def die_and_start(self) -> None:
        """Kill the process: written data remains in the page cache."""
        self.open()
        self.check_after_start(len(self.entries))

    @rule(mode=st.sampled_from(MODES), seed=st.integers(0, 1 << 16))
    def power_cut(self, mode: Mode, seed: int) -> None:
        self.files = self.files.crashed(mode, seed)
        self.open()
        self.check_after_start(None)

    def check_after_start(self, end: int | None) -> None:
        log = self.log
        if end is None:
            assert self.synced <= log.log_end_offset <= len(self.entries)
            assert log.log_end_offset in self.borders
        else:
            assert log.log_end_offset == end
        assert log.synced_offset == log.log_end_offset
        assert self.durable_start <= log.log_start_offset <= self.start_offset
        del self.entries[log.log_end_offset :]
        self.borders = [at for at in self.borders if at <= log.log_end_offset]
        self.start_offset = self.durable_start = log.log_start_offset
        self.synced = log.log_end_offset
        log.advance_high_watermark(log.log_end_offset)

    # --- invariants -----------------------------------------------------------------------------

    @invariant()
    def offsets(self) -> None:
        log = self.log
        assert log.log_end_offset == len(self.entries)
        assert log.log_start_offset == self.start_offset
        assert log.synced_offset <= log.log_end_offset
        assert log.log_start_offset <= log.high_watermark <= log.log_end_offset

    @invariant()
    def content(self) -> None:
        found = {record.offset: record for record in records(self.log)}
        assert sorted(found) == list(range(self.start_offset, len(self.entries)))
        for offset, record in found.items():
            entry = self.entries[offset]
            assert (record.value, record.timestamp) == entry[:2]
            assert self.log.epochs.epoch_at(offset) == entry.epoch

    @invariant()
    def times(self) -> None:
        live = list(enumerate(self.entries))[self.start_offset :]
        for _, entry in live[:: max(len(live) // 3, 1)]:
            for wanted in (entry.timestamp, entry.timestamp + 1):
                found = offset_for_timestamp(self.log, wanted, limit=len(self.entries))
                expected = next((at for at, record in live if record.timestamp >= wanted), None)
                assert (found.offset if found else None) == expected
        latest = latest_record(self.log)
        if live and latest and latest.offset >= self.start_offset:
            assert latest.timestamp == max(entry.timestamp for _, entry in live)

    @invariant()
    def transactions(self) -> None:
        """Open and aborted transactions must match the batches."""
        assert transaction_faults(self.log) == []

    @invariant()
    def producer(self) -> None:
        """The last batch of the producer must be known."""
        producer = self.log.producers.get(PRODUCER)
        if len(self.entries) > self.start_offset and self.entries[-1].is_idempotent:
            assert producer is not None
            assert producer.batches[-1].last_offset == len(self.entries) - 1
        if producer is not None and producer.batches:
            last = producer.batches[-1]
            assert last.last_offset < len(self.entries)
            try:
                append(self.log, b"gap", producer_id=PRODUCER, epoch=0, sequence=1 << 30)
            except KafkaError:
                pass
            else:
                raise AssertionError("a gap was accepted")


LogMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestLog = LogMachine.TestCase
