"""Batch reading over the wire."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from .loss import changed, report
from .offsets import EARLIEST, LATEST, OffsetRange, split
from .options import Everywhere, SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class RangePartition(InputPartition):
    """What one task reads; None when there is nothing to read."""

    range: OffsetRange | None


class WireReader(DataSourceReader):
    """Reads what the options span at the time of planning."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def partitions(self) -> list[RangePartition]:
        """A task for each partition, or more when the options ask for it.

        Raises:
            OptionError, SourceError: what was asked for is not there.
            DataLoss: a partition ends before it begins, and that shall fail.
        """
        from .partitions import Partitions

        cluster = Partitions(self.options)
        start = cluster.resolve(self.options.starting or Everywhere(EARLIEST), side="starting")
        end = cluster.resolve(self.options.ending or Everywhere(LATEST), side="ending")
        report(changed(start, end), self.options.fail_on_data_loss)
        ranges = [
            OffsetRange(*each, start[each], end[each]) for each in sorted(start) if each in end
        ]
        return planned(ranges, self.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task."""
        return read_planned(partition, self.options)


def planned(ranges: list[OffsetRange], options: SourceOptions) -> list[RangePartition]:
    """The tasks that read ranges; Spark wants one at least."""
    parts = split(ranges, options.min_partitions, options.max_records_per_partition)
    return [RangePartition(each) for each in parts] or [RangePartition(None)]


def read_planned(partition: InputPartition, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Runs where the task runs: the records of its range."""
    from .wire import read_range

    assert isinstance(partition, RangePartition)
    if partition.range is not None:
        yield from read_range(partition.range, options)
