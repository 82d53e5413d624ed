"""Batch reading, and the two ways of reading at all: over the wire and from segment files."""

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
    """Reads what the options span at the time of planning."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def partitions(self) -> list[RangePartition]:
        """A task for each partition, or more when the options ask for it.

        Raises:
            OptionError, SourceError: what was asked for is not there.
            DataLoss: a partition ends before it begins, and that shall fail.
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
        return planned(ranges, self.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task."""
        return read_planned(partition, self.options)


def partitions_of(options: SourceOptions) -> Partitions:
    """What answers the questions about partitions and their offsets."""
    if options.path is not None:
        from .files import FilePartitions

        return FilePartitions(options)
    from .partitions import WirePartitions

    return WirePartitions(options)


def planned(ranges: list[OffsetRange], options: SourceOptions) -> list[RangePartition]:
    """The tasks that read ranges; Spark wants one at least."""
    if options.path is not None:
        from .files import file_tasks

        return file_tasks(ranges, options) or [RangePartition(None)]
    parts = split(ranges, options.min_partitions, options.max_records_per_partition)
    return [RangePartition(each) for each in parts] or [RangePartition(None)]


def read_planned(partition: InputPartition, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Runs where the task runs: the records of its range."""
    assert isinstance(partition, RangePartition)
    if partition.range is None:
        return
    if options.path is not None:
        from .files import read_task

        yield from read_task(partition, options)
    else:
        from .wire import read_range

        yield from read_range(partition.range, options)
