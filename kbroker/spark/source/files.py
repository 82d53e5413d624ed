"""Segment files in the place of a cluster: the option `path`, and no broker is asked.

Places are offsets here too, so everything but the reading itself is as over the wire. A task reads
about `TASK_BYTES` of a partition, and knows which transactions were aborted where it reads.
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

TASK_BYTES = 64 * 1024 * 1024
"""About how much of a partition one task reads, as it is stored."""


def data_directories(options: SourceOptions) -> DataDirectories:
    """The directories of `path`, which are separated by commas as in log.dirs.

    Raises:
        OptionError: it names none, or an option needs a broker.
    """
    paths = [each.strip().removeprefix("file://") for each in (options.path or "").split(",")]
    if "" in paths:
        raise OptionError(f"path must name data directories, and not '{options.path}'")
    if options.commit_to_group and "bootstrap.servers" not in options.kafka:
        raise OptionError("commitToGroup with 'path' needs 'kafka.bootstrap.servers' too")
    return DataDirectories([os.path.abspath(each) for each in paths])


class FilePartitions(Partitions):
    """Answers from the files, which are looked at anew for each question."""

    def __init__(self, options: SourceOptions) -> None:
        """Raises OptionError."""
        super().__init__(options)
        self.place = str(options.path)
        self._directories = data_directories(options)
        self._committed = reads_committed(options.kafka)

    def _topics(self) -> dict[str, Collection[int]]:
        """Raises FilesError."""
        found: dict[str, list[int]] = defaultdict(list)
        for topic, number in self._directories.logs():
            found[topic].append(number)
        return dict(found)

    def _listed(self, asked: Mapping[Partition, int]) -> Offsets:
        """Raises FilesError."""
        logs = self._directories.logs()
        return {
            each: self._offset(logs[each], at) if each in logs else -1 for each, at in asked.items()
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
    """The offset that readers may come to: high watermark, or last stable offset."""
    return log.stable.end if committed else max(log.high_watermark, log.start)


@dataclass
class FileTask(RangePartition):
    """What one task reads, from which directory, and what it leaves out."""

    log: StoredLog
    aborted: list[AbortedTransaction]


def file_tasks(ranges: list[OffsetRange], options: SourceOptions) -> list[RangePartition]:
    """The tasks that read ranges: pieces of about `TASK_BYTES`, or smaller ones when the options ask
    for more of them.

    Raises:
        DataLoss: a partition has no files any more, and that shall fail.
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
        edges = [each.start, *log.cuts(each.start, each.end, wanted), each.end]
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
    """Runs where the task runs: the records of its range.

    Raises:
        DataLoss: some are gone, and `options` say that this fails.
        FilesError: something is damaged.
    """
    assert isinstance(task, FileTask)
    assert task.range is not None
    wanted = task.range
    log_start = task.log.start
    if wanted.start < log_start and not wanted.from_earliest:
        report(_lost(wanted, f"the log begins at {log_start}"), options.fail_on_data_loss)
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
    """Decoded records as Arrow arrays; nothing here is done once for each record."""
    rows = len(columns)
    # Key, gap, value, gap ... are one binary array over the data as it lies there.
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
