"""Streaming reads.

PySpark 4.2 and newer passes the start offset and the size limit of a batch, which enables rate
limits, the trigger availableNow, and lag in the progress. Older versions only ask for the latest
offset: each batch then contains all available records, and options that need limits are rejected.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from .commit import GroupCommits
from .loss import changed, missing, report, trimmed
from .offsets import LATEST, OffsetRange, Offsets, from_json, limited, to_json
from .options import Everywhere, OptionError, SourceOptions
from .reader import partitions_of, plan_tasks, read_partition
from .tasks import RangePartition

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:
    HAS_READ_LIMITS = False
else:
    HAS_READ_LIMITS = True

if TYPE_CHECKING:
    import pyarrow as pa

    from .partitions import Partitions

logger = logging.getLogger(__name__)

# Offsets in the checkpoint format: see `offsets.to_json`.
Checkpointed = dict[str, dict[str, int]]


def stream_reader(options: SourceOptions) -> DataSourceStreamReader:
    """Return the stream reader for the installed PySpark.

    Raises:
        OptionError: An option needs a newer PySpark.
    """
    if HAS_READ_LIMITS:
        return LimitedStreamReader(options)
    if options.max_offsets_per_trigger or options.min_offsets_per_trigger:
        raise OptionError(
            "maxOffsetsPerTrigger and minOffsetsPerTrigger need PySpark 4.2 or newer: this version "
            "does not pass the start of a batch to Python data sources. Without these options, a "
            "batch contains all available records; maxRecordsPerPartition limits its tasks."
        )
    return StreamReader(options)


class _StreamReader(DataSourceStreamReader):
    """Base class with the code common to all PySpark versions."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._cluster: Partitions | None = None
        self._first: Checkpointed | None = None
        self._commits: GroupCommits | None = None

    @property
    def cluster(self) -> Partitions:
        """Partition source, created on first use because the reader is pickled before."""
        if self._cluster is None:
            self._cluster = partitions_of(self.options)
        return self._cluster

    def initialOffset(self) -> Checkpointed:
        """Return the start offsets of a new query, resolved once."""
        if self._first is None:
            starting = self.options.starting or Everywhere(LATEST)
            self._first = to_json(self.cluster.resolve(starting, side="starting"))
        return self._first

    def partitions(self, start: Checkpointed, end: Checkpointed) -> list[RangePartition]:
        """Return the tasks of a batch; new partitions start at their earliest record.

        Raises:
            DataLoss: Records were deleted, and failOnDataLoss is set.
        """
        begin, stop = from_json(start), from_json(end)
        if begin == stop:
            return []
        new = self.cluster.earliest(stop.keys() - begin.keys())
        for losses in (missing(begin, stop), trimmed(new), changed(begin, stop)):
            report(losses, self.options.fail_on_data_loss)
        begin |= new
        ranges = [OffsetRange(*each, begin[each], stop[each]) for each in sorted(stop)]
        return plan_tasks(ranges, self.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task."""
        return read_partition(partition, self.options)

    def commit(self, end: Checkpointed) -> None:
        """Commit the end of a finished batch to the group, if one is configured."""
        if self.options.commit_to_group is None:
            return
        if self._commits is None:
            self._commits = GroupCommits(self.options.commit_to_group, self.options.kafka)
        self._commits.commit(from_json(end))

    def stop(self) -> None:
        """Close the group client."""
        if self._commits is not None:
            self._commits.close()

    def __getstate__(self) -> dict[str, object]:
        # Tasks need only the options; clients cannot be pickled.

        return self.__dict__ | {"_cluster": None, "_commits": None}


class StreamReader(_StreamReader):
    """Stream reader for PySpark 4.0 and 4.1: each batch contains all available records.

    With the trigger availableNow, Spark runs one batch. A run that repeats an unfinished batch of
    an earlier run may end without a check for newer records. The reader cannot detect its trigger,
    so it logs a warning in this case.
    """

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._repeated = False
        self._checked_end = False

    def partitions(self, start: Checkpointed, end: Checkpointed) -> list[RangePartition]:
        """Return the tasks of a batch, and note whether it repeats an unfinished one."""
        self._repeated = self._repeated or (start != end and not self._checked_end)
        return super().partitions(start, end)

    def stop(self) -> None:
        """Close the group client, and warn if newer records were not checked."""
        super().stop()
        if self._repeated and not self._checked_end:
            logger.warning(
                "The query repeated an unfinished batch of an earlier run and ended without "
                "checking for newer records. Start it again, or set "
                "spark.sql.streaming.triggerAvailableNowWrapper.enabled to true."
            )

    def latestOffset(self) -> Checkpointed:
        """Return the end offsets of all partitions."""
        self._checked_end = True
        return to_json(self.cluster.latest(self.cluster.current(), {}))


if HAS_READ_LIMITS:

    class LimitedStreamReader(_StreamReader, SupportsTriggerAvailableNow):
        """Stream reader for PySpark 4.2 and newer."""

        def __init__(self, options: SourceOptions) -> None:
            super().__init__(options)
            self._target: Offsets | None = None
            self._newest: Offsets = {}
            self._last_batch_at = -math.inf

        def getDefaultReadLimit(self) -> ReadLimit:
            """Return the limit set by maxOffsetsPerTrigger or minOffsetsPerTrigger.

            The trigger may override it.
            """
            if most := self.options.max_offsets_per_trigger:
                return ReadMaxRows(most)
            least = self.options.min_offsets_per_trigger
            return ReadMinRows(least) if least else ReadAllAvailable()

        def prepareForTriggerAvailableNow(self) -> None:
            """Fix the end of the query at the current end offsets."""
            self._target = self.cluster.latest(self.cluster.current(), {})

        def latestOffset(self, start: Checkpointed, limit: ReadLimit) -> Checkpointed:
            """Return the end of the next batch, or `start` if there is no next batch yet."""
            self.commit_finished(start)
            begin = from_json(start)
            self._newest = self._end(begin)
            if isinstance(limit, ReadAllAvailable):
                return to_json(self._newest)
            if self._must_wait(begin):
                return start
            if isinstance(limit, ReadMaxRows):
                known = begin | self.cluster.earliest(self._newest.keys() - begin.keys())
                return to_json(limited(known, self._newest, limit.max_rows))
            return to_json(self._newest)

        def reportLatestOffset(self) -> Checkpointed | None:
            """Return the `latestOffset` that Spark's progress shows."""
            return to_json(self._newest) if self._newest else None

        def commit_finished(self, start: Checkpointed) -> None:
            """Commit the end of the previous batch; Spark itself reports it one batch later."""
            if start != self._first:
                self.commit(start)

        def _end(self, begin: Offsets) -> Offsets:
            if self._target is not None:
                if any(end < begin.get(each, 0) for each, end in self._target.items()):
                    # The broker that returned the target was behind: ask again.
                    self._target = self.cluster.latest(self._target, begin)
                return self._target
            return self.cluster.latest(self.cluster.current(), begin)

        def _must_wait(self, begin: Offsets) -> bool:
            """Return True if minOffsetsPerTrigger delays the batch; never with availableNow."""
            least = self.options.min_offsets_per_trigger
            if least is None or self._target is not None:
                return False
            there = sum(end - begin.get(each, 0) for each, end in self._newest.items())
            now = time.monotonic()
            is_late = now - self._last_batch_at >= self.options.max_trigger_delay_seconds
            if there < least and not is_late:
                return True
            self._last_batch_at = now
            return False
