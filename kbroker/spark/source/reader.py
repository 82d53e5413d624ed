"""Batch reads, and the choice between wire and segment files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from .loss import changed, report
from .offsets import EARLIEST, LATEST, OffsetRange, split
from .options import Everywhere, SourceOptions
from .tasks import RangePartition

if TYPE_CHECKING:
    import pyarrow as pa

    from .partitions import Partitions


class BatchReader(DataSourceReader):
    """Reader of the records that exist when Spark plans the query."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def partitions(self) -> list[RangePartition]:
        """Return one task per partition, or more if the options ask for it.

        Raises:
            OptionError: The options select offsets or partitions that do not exist.
            SourceError: A topic does not exist, or the broker does not respond.
            DataLoss: A partition ends before its start offset, and failOnDataLoss is set.
        """
        cluster = partitions_of(self.options)
        starting = self.options.starting or Everywhere(EARLIEST)
        start = cluster.resolve(starting, side="starting")
        end = cluster.resolve(self.options.ending or Everywhere(LATEST), side="ending")
        report(changed(start, end), self.options.fail_on_data_loss)
        ranges = [
            OffsetRange(*each, start[each], end[each], starting == Everywhere(EARLIEST))
            for each in sorted(start)
            if each in end
        ]
        return plan_tasks(ranges, self.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task."""
        return read_partition(partition, self.options)


def partitions_of(options: SourceOptions) -> Partitions:
    """Return the partition source for the options: segment files or the wire."""
    if options.path is not None:
        from .files import FilePartitions

        return FilePartitions(options)
    from .partitions import WirePartitions

    return WirePartitions(options)


def plan_tasks(ranges: list[OffsetRange], options: SourceOptions) -> list[RangePartition]:
    """Return the tasks that read the ranges; at least one, because Spark requires it."""
    if options.path is not None:
        from .files import file_tasks

        return file_tasks(ranges, options) or [RangePartition(None)]
    parts = split(ranges, options.min_partitions, options.max_records_per_partition)
    return [RangePartition(each) for each in parts] or [RangePartition(None)]


def read_partition(partition: InputPartition, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Yield the records of one task. This runs in a Spark worker."""
    assert isinstance(partition, RangePartition)
    if partition.range is None:
        return
    if options.path is not None:
        from .files import read_task

        yield from read_task(partition, options)
    else:
        from .wire import read_range

        yield from read_range(partition.range, options)
