"""Reads from segment files (option `path`), without a broker.

Positions are offsets, as over the wire, so all other code is shared. Each task reads about
`TASK_BYTES` of a partition and knows the aborted transactions in its range.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from kbroker.storage.errors import CorruptLogError
from kbroker.storage.index import AbortedTransaction

from .arrow import HEADERS_TYPE, Records
from .client import reads_committed
from .loss import report
from .offsets import EARLIEST, LATEST, OffsetRange, Offsets, split
from .offsets import TopicPartition as Partition
from .options import OptionError, SourceOptions
from .partitions import Partitions
from .record_columns import RecordColumns, RecordHeaders
from .stored import DataDirectories, StoredLog, damaged
from .stored_range import StoredRange
from .tasks import RangePartition

# Approximate stored bytes of a partition per task.
TASK_BYTES = 64 * 1024 * 1024


def data_directories(options: SourceOptions) -> DataDirectories:
    """Return the directories in `path`, separated by commas as in log.dirs.

    Raises:
        OptionError: `path` is empty, or an option needs a broker.
    """
    paths = [each.strip().removeprefix("file://") for each in (options.path or "").split(",")]
    if "" in paths:
        raise OptionError(f"path must name data directories, not '{options.path}'")
    if options.commit_to_group and "bootstrap.servers" not in options.kafka:
        raise OptionError("commitToGroup with 'path' also needs 'kafka.bootstrap.servers'")
    return DataDirectories([os.path.abspath(each) for each in paths])


class FilePartitions(Partitions):
    """Partition metadata from the files, which are read again for each query."""

    def __init__(self, options: SourceOptions) -> None:
        """Create the source. Raises OptionError."""
        super().__init__(options)
        self.place = str(options.path)
        self._directories = data_directories(options)
        self._committed = reads_committed(options.kafka)

    def _topics(self) -> dict[str, Collection[int]]:
        """Return the partitions of all topics. Raises FilesError."""
        found: dict[str, list[int]] = defaultdict(list)
        for topic, number in self._directories.logs():
            found[topic].append(number)
        return dict(found)

    def _list_offsets(self, specs: Mapping[Partition, int]) -> Offsets:
        """Return the requested offset of each partition. Raises FilesError."""
        logs = self._directories.logs()
        return {
            each: self._offset(logs[each], at) if each in logs else -1 for each, at in specs.items()
        }

    def _offset(self, log: StoredLog, at: int) -> int:
        if at == EARLIEST:
            return log.start
        try:
            end = safe_end(log, self._committed)
            found = None if at == LATEST else log.first_at_or_after(at, end)
        except CorruptLogError as error:
            raise damaged(error.path, error.position, error.reason) from None
        if at == LATEST:
            return end
        return -1 if found is None else found.offset


def safe_end(log: StoredLog, committed: bool) -> int:
    """Return the end offset for readers: the last stable offset or the high watermark."""
    return log.stable.end if committed else max(log.high_watermark, log.start)


@dataclass
class FileTask(RangePartition):
    """Input of one task: its range, the log, and the aborted transactions to skip."""

    log: StoredLog
    aborted: list[AbortedTransaction]


def file_tasks(ranges: list[OffsetRange], options: SourceOptions) -> list[RangePartition]:
    """Return the tasks that read the ranges.

    A task reads about `TASK_BYTES`, or less if `minPartitions` asks for more tasks.

    Raises:
        DataLoss: A partition no longer has files, and failOnDataLoss is set.
    """
    logs = data_directories(options).logs()
    gone = [each for each in ranges if each.size > 0 and (each.topic, each.partition) not in logs]
    losses = (f"{each.topic}-{each.partition} has no files in {options.path}" for each in gone)
    report(losses, options.fail_on_data_loss)
    there = [each for each in ranges if each.size > 0 and each not in gone]
    wanted = TASK_BYTES
    if options.min_partitions:
        total = sum(logs[it.topic, it.partition].size(it.start, it.end) for it in there)
        wanted = max(1, min(wanted, total // options.min_partitions))
    committed = reads_committed(options.kafka)
    tasks: list[RangePartition] = []
    for each in there:
        log = logs[each.topic, each.partition]
        edges = [each.start, *log.split_offsets(each.start, each.end, wanted), each.end]
        pieces = [replace(each, start=start, end=end) for start, end in pairwise(edges)]
        for piece in split(pieces, longest=options.max_records_per_partition):
            tasks.append(FileTask(piece, replace(log), _aborted(log, piece, committed)))
    return tasks


def _aborted(log: StoredLog, where: OffsetRange, committed: bool) -> list[AbortedTransaction]:
    if not committed:
        return []
    return [
        each
        for each in log.stable.aborted
        if each.last_offset >= where.start and each.first_offset < where.end
    ]


def read_task(task: RangePartition, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Yield the records of one task. This runs in a Spark worker.

    Raises:
        DataLoss: Records were deleted, and failOnDataLoss is set.
        FilesError: A file is corrupt.
    """
    assert isinstance(task, FileTask)
    assert task.range is not None
    wanted = task.range
    log_start = task.log.start
    if wanted.start < log_start and not wanted.from_earliest:
        report(_lost(wanted, f"the log starts at {log_start}"), options.fail_on_data_loss)
    start = max(wanted.start, log_start)
    reading = StoredRange(
        task.log, start, wanted.end, task.aborted, with_headers=options.include_headers
    )
    for columns in filter(len, reading.columns()):
        yield from records(wanted, columns, options.include_headers).batches()
    if reading.position < wanted.end:
        why = f"the files end at {reading.position}"
        report(_lost(wanted, why), options.fail_on_data_loss)


def _lost(wanted: OffsetRange, why: str) -> Iterator[str]:
    yield (
        f"Could not read records in offset [{wanted.start}, {wanted.end}) for topic partition "
        f"{wanted.topic}-{wanted.partition}: {why}"
    )


def records(where: OffsetRange, columns: RecordColumns, include_headers: bool) -> Records:
    """Convert decoded records to Arrow arrays without any operation per record."""
    rows = len(columns)
    # One binary array of key, gap, value, gap, ... over the data, without a copy.
    bounds = np.append(columns.bounds.reshape(-1), columns.bounds[-1, -1])
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(columns.data)]
    fields = pa.Array.from_buffers(pa.binary(), 4 * rows, buffers)
    numbers = np.arange(0, 4 * rows, 4)
    return Records(
        topic=where.topic,
        partition=where.partition,
        keys=fields.take(pa.array(numbers, mask=columns.null_keys)),
        values=fields.take(pa.array(numbers + 2, mask=columns.null_values)),
        offsets=pa.array(columns.offsets),
        timestamps=pa.array(columns.timestamps),
        timestamp_types=pa.array(columns.log_append_time.astype(np.int32)),
        headers=_headers(columns.headers, rows) if include_headers else None,
    )


def _headers(found: dict[int, RecordHeaders], rows: int) -> pa.Array | list[RecordHeaders | None]:
    if not found:
        return pa.nulls(rows, HEADERS_TYPE)
    return [found.get(number) for number in range(rows)]
