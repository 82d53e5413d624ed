"""What the storage tests share: batches, a data folder with fixed ids, reading everything back."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from kbroker.protocol.records import BatchHeader, Record, encode_batch, read_header, read_records
from kbroker.storage.checkpoints import MetaProperties
from kbroker.storage.files import Files
from kbroker.storage.log import Appended, Log, LogConfig, Slice
from kbroker.storage.manager import LogManager

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
    """One batch with a record for each value, as `Log.append` takes it."""
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


def append(log: Log, *values: bytes, leader_epoch: int = 0, **fields: int) -> Appended:
    """Append one batch with a record for each value."""
    data, header = batch(*values, **fields)  # type: ignore[arg-type]
    return log.append(data, header, leader_epoch=leader_epoch, now_ms=NOW)


def commit(log: Log) -> int:
    """Sync, and let readers see everything."""
    end = log.sync()
    log.synced(end)
    log.advance_high_watermark(end)
    return end


def content(part: Slice) -> bytes:
    return part.records if isinstance(part.records, bytes) else part.records.read()


def records(log: Log, start: int | None = None, *, max_bytes: int = 700) -> Iterator[Record]:
    """All records from `start` (the log start) to the log end, in slices of `max_bytes`."""
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


def open_manager(files: Files, data_dir: str = "data") -> LogManager:
    return LogManager(files, data_dir, META)


def open_log(
    manager: LogManager, topic: str = "orders", config: LogConfig = SMALL, *, now_ms: int = NOW
) -> Log:
    return manager.open_log(topic, TOPIC_ID, 0, config, now_ms=now_ms)
