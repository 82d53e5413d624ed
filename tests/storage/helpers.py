"""Helpers of the storage tests: batches, a log directory with fixed IDs, reading all records."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from kbroker.protocol.records import (
    BatchHeader,
    Marker,
    Record,
    encode_batch,
    end_transaction_marker,
    iter_headers,
    read_header,
    read_marker,
    read_records,
)
from kbroker.storage.checkpoints import MetaProperties
from kbroker.storage.files import Files
from kbroker.storage.log import Log, LogAppendInfo
from kbroker.storage.log_config import LogConfig
from kbroker.storage.lookups import aborted_transactions
from kbroker.storage.manager import LogManager
from kbroker.storage.segment import Slice

META = MetaProperties("AAAAAAAAAAAAAAAAAAAAAA", 1, "BBBBBBBBBBBBBBBBBBBBBB")
TOPIC_ID = UUID(int=7)
NOW = 1_700_000_000_000
SMALL = LogConfig(segment_bytes=2000, index_interval_bytes=200)


def batch(
    *values: bytes,
    timestamp: int = NOW,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    codec: int = 0,
    transactional: bool = False,
    timestamps: list[int] | None = None,
) -> tuple[memoryview, BatchHeader]:
    """Return one batch with a record for each value, in the form that `Log.append` takes."""
    times = timestamps or [timestamp] * len(values)
    records = [
        Record(key=b"k", value=value, timestamp=time)
        for value, time in zip(values, times, strict=True)
    ]
    data = encode_batch(
        records,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        codec=codec,
        transactional=transactional,
    )
    return memoryview(data), read_header(data)


def append(log: Log, *values: bytes, leader_epoch: int = 0, **fields: int) -> LogAppendInfo:
    """Append one batch with a record for each value."""
    data, header = batch(*values, **fields)  # type: ignore[arg-type]
    return log.append(data, header, leader_epoch=leader_epoch, now_ms=NOW)


def commit(log: Log) -> int:
    """Sync the log and advance the high watermark to its end."""
    end = log.sync()
    log.synced(end)
    log.advance_high_watermark(end)
    return end


def content(part: Slice) -> bytes:
    return part.records if isinstance(part.records, bytes) else part.records.read()


def records(log: Log, start: int | None = None, *, max_bytes: int = 700) -> Iterator[Record]:
    """Yield all records from `start` (default: log start) on, in slices of `max_bytes`."""
    offset = log.log_start_offset if start is None else start
    while offset < log.log_end_offset:
        part = log.read(offset, max_bytes, limit=log.log_end_offset)
        for record in read_records(content(part)):
            if record.offset >= offset:
                yield record
        assert part.next_offset > offset
        offset = part.next_offset


def values(log: Log, start: int | None = None) -> list[bytes | None]:
    return [record.value for record in records(log, start)]


def end_transaction(
    log: Log, producer_id: int, *, commit: bool, epoch: int = 0, leader_epoch: int = 0
) -> LogAppendInfo:
    """Append the marker that ends a producer's transaction."""
    data = end_transaction_marker(
        Marker(commit, coordinator_epoch=0),
        producer_id=producer_id,
        producer_epoch=epoch,
        timestamp=NOW,
    )
    return log.append(memoryview(data), read_header(data), leader_epoch=leader_epoch, now_ms=NOW)


class Transactions:
    """Open and ended transactions of a log, computed only from its batches.

    If a transaction began before the log start, `open` and `ended` contain its first remaining
    record, or -1 if none remains.
    """

    def __init__(self, log: Log) -> None:
        self.open: dict[int, int] = {}  # producer id -> first record
        self.ended: dict[int, tuple[int, int]] = {}  # abort marker -> producer id, first record
        self.stable: dict[int, int] = {}  # abort marker -> last stable offset after it
        self.next_sequences: dict[int, int] = {}  # producer id -> next expected sequence
        self.batches: dict[int, list[int]] = {}  # producer id -> base offsets of its epoch
        self._epochs: dict[int, int] = {}
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            part = log.read(offset, 2000, limit=log.log_end_offset)
            data = content(part)
            for position, header in iter_headers(data):
                if header.producer_id >= 0:
                    self._take(log, header, data[position : position + header.size])
            offset = part.next_offset

    def _take(self, log: Log, header: BatchHeader, data: bytes) -> None:
        producer_id = header.producer_id
        if self._epochs.get(producer_id) != header.producer_epoch:
            self._epochs[producer_id] = header.producer_epoch
            self.next_sequences[producer_id] = 0
            self.batches[producer_id] = []
        if not header.is_control:
            if header.is_transactional:
                self.open.setdefault(producer_id, max(header.base_offset, log.log_start_offset))
            self.next_sequences[producer_id] = header.last_sequence + 1
            self.batches[producer_id].append(header.base_offset)
            return
        first, at = self.open.pop(producer_id, -1), header.base_offset
        marker = read_marker(next(read_records(data)))
        if marker is not None and not marker.commit:
            self.ended[at] = producer_id, first
            self.stable[at] = min(self.open.values(), default=at + 1)


def transaction_faults(log: Log) -> list[str]:
    """Compare the log's transaction state with its batches and return the differences."""
    seen, start = Transactions(log), log.log_start_offset
    faults = []
    state = {
        producer_id: producer.transaction_start
        for producer_id, producer in log.producers
        if producer.transaction_start >= start or producer_id in seen.open
    }
    for producer_id in state.keys() | seen.open.keys():
        known, first = state.get(producer_id), seen.open.get(producer_id)
        if known != first and not (first is not None and known is not None and 0 <= known < start):
            faults.append(f"producer {producer_id} is open from {known}, its batches from {first}")
    open_from = [each.transaction_start for _, each in log.producers if each.transaction_start >= 0]
    stable = max(start, min([*open_from, log.high_watermark]))
    if log.high_watermark == log.log_end_offset and log.last_stable_offset != stable:
        faults.append(f"last stable offset {log.last_stable_offset}, not {stable}")
    return faults + _index_faults(log, seen)


def _index_faults(log: Log, seen: Transactions) -> list[str]:
    """Compare the indexes of aborted transactions with the abort markers."""
    start, faults = log.log_start_offset, []
    entries = {
        entry.last_offset: entry
        for segment in log.segments
        for entry in segment.aborted.entries
        if entry.last_offset >= start
    }
    listed = aborted_transactions(log, start, log.log_end_offset)
    if listed != [(entry.producer_id, entry.first_offset) for entry in entries.values()]:
        faults.append(f"{listed} are listed, {list(entries.values())} are in the index")
    for at, (producer_id, first) in seen.ended.items():
        entry = entries.pop(at, None)
        if entry is None:
            if first >= 0:
                faults.append(f"the aborted transaction of {producer_id} to {at} is not listed")
        elif entry.producer_id != producer_id or (
            entry.first_offset != first and entry.first_offset >= start
        ):
            faults.append(f"{entry} is listed for {producer_id} from {first}")
        elif entry.last_stable_offset > seen.stable[at]:
            faults.append(f"{entry}, but {seen.stable[at]} was stable")
    return faults + [f"{entry} has no marker" for entry in entries.values()]


def open_manager(files: Files, data_dir: str = "data") -> LogManager:
    return LogManager(files, data_dir, META)


def reopen_after_shutdown(manager: LogManager) -> LogManager:
    """Return a new manager of the directory after a clean shutdown."""
    manager.close(now_ms=NOW)
    manager = open_manager(manager.files, manager.data_dir)
    assert manager.clean
    return manager


def open_log(
    manager: LogManager, topic: str = "orders", config: LogConfig = SMALL, *, now_ms: int = NOW
) -> Log:
    return manager.open_log(topic, TOPIC_ID, 0, config, now_ms=now_ms)
