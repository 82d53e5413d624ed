"""Streaming.

From PySpark 4.2 on Spark says where a batch begins and how much it may hold, so rates, the trigger
availableNow and the lag in the progress work. Before that it only asks for the newest offset: a batch
is then all there is, and options that need more are refused.
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
from .reader import partitions_of, planned, read_planned
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
    HAS_LIMITS = False
else:
    HAS_LIMITS = True

if TYPE_CHECKING:
    import pyarrow as pa

    from .partitions import Partitions

logger = logging.getLogger(__name__)

Checkpointed = dict[str, dict[str, int]]
"""Offsets as Spark keeps them: `offsets.to_json`."""


def stream_reader(options: SourceOptions) -> DataSourceStreamReader:
    """The reader for the installed PySpark.

    Raises:
        OptionError: an option needs a newer PySpark.
    """
    if HAS_LIMITS:
        return LimitedStreamReader(options)
    if options.max_offsets_per_trigger or options.min_offsets_per_trigger:
        raise OptionError(
            "maxOffsetsPerTrigger and minOffsetsPerTrigger need PySpark 4.2 or newer: this one does "
            "not tell a Python data source where a batch begins. Leave them out, and a batch is "
            "all that is there; maxRecordsPerPartition keeps its tasks small."
        )
    return StreamReader(options)


class _StreamReader(DataSourceStreamReader):
    """What is the same for all versions of PySpark."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._cluster: Partitions | None = None
        self._first: Checkpointed | None = None
        self._commits: GroupCommits | None = None

    @property
    def cluster(self) -> Partitions:
        """Made on first use: the reader is pickled before that."""
        if self._cluster is None:
            self._cluster = partitions_of(self.options)
        return self._cluster

    def initialOffset(self) -> Checkpointed:
        """Where a new query begins; once said, it stays."""
        if self._first is None:
            starting = self.options.starting or Everywhere(LATEST)
            self._first = to_json(self.cluster.resolve(starting, side="starting"))
        return self._first

    def partitions(self, start: Checkpointed, end: Checkpointed) -> list[RangePartition]:
        """The tasks of a batch; partitions that are new begin with their earliest record.

        Raises:
            DataLoss: records are gone, and that shall fail.
        """
        begin, stop = from_json(start), from_json(end)
        if begin == stop:
            return []
        new = self.cluster.earliest(stop.keys() - begin.keys())
        for losses in (missing(begin, stop), trimmed(new), changed(begin, stop)):
            report(losses, self.options.fail_on_data_loss)
        begin |= new
        ranges = [OffsetRange(*each, begin[each], stop[each]) for each in sorted(stop)]
        return planned(ranges, self.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task."""
        return read_planned(partition, self.options)

    def commit(self, end: Checkpointed) -> None:
        """A batch is done: tell the group, when one was named."""
        if self.options.commit_to_group is None:
            return
        if self._commits is None:
            self._commits = GroupCommits(self.options.commit_to_group, self.options.kafka)
        self._commits.commit(from_json(end))

    def stop(self) -> None:
        """The query ends."""
        if self._commits is not None:
            self._commits.close()

    def __getstate__(self) -> dict[str, object]:
        # Tasks get the options; clients stay where they are.
        return self.__dict__ | {"_cluster": None, "_commits": None}


class StreamReader(_StreamReader):
    """For PySpark 4.0 and 4.1: each batch is all there is.

    With the trigger availableNow Spark runs one batch; it holds everything that was there. Only a run
    that finds an unfinished batch of an earlier one repeats that, and may end without a look at what
    is new. The reader cannot know its trigger, so it says so.
    """

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._repeated = False
        self._looked = False

    def partitions(self, start: Checkpointed, end: Checkpointed) -> list[RangePartition]:
        """As of all versions."""
        self._repeated = self._repeated or (start != end and not self._looked)
        return super().partitions(start, end)

    def stop(self) -> None:
        """The query ends."""
        super().stop()
        if self._repeated and not self._looked:
            logger.warning(
                "The query has repeated a batch that an earlier run left unfinished, and has ended "
                "without looking for newer records. Start it again, or set "
                "spark.sql.streaming.triggerAvailableNowWrapper.enabled to true."
            )

    def latestOffset(self) -> Checkpointed:
        """The end of all partitions."""
        self._looked = True
        return to_json(self.cluster.latest(self.cluster.current(), {}))


if HAS_LIMITS:

    class LimitedStreamReader(_StreamReader, SupportsTriggerAvailableNow):
        """For PySpark 4.2 and newer."""

        def __init__(self, options: SourceOptions) -> None:
            super().__init__(options)
            self._target: Offsets | None = None
            self._newest: Offsets = {}
            self._last_batch_at = -math.inf

        def getDefaultReadLimit(self) -> ReadLimit:
            """What maxOffsetsPerTrigger and minOffsetsPerTrigger say; the trigger may overrule it."""
            if most := self.options.max_offsets_per_trigger:
                return ReadMaxRows(most)
            least = self.options.min_offsets_per_trigger
            return ReadMinRows(least) if least else ReadAllAvailable()

        def prepareForTriggerAvailableNow(self) -> None:
            """From here on nothing is newer than what is there now."""
            self._target = self.cluster.latest(self.cluster.current(), {})

        def latestOffset(self, start: Checkpointed, limit: ReadLimit) -> Checkpointed:
            """The end of the next batch; `start` when there is to be none."""
            self.commit_finished(start)
            begin = from_json(start)
            self._newest = self._end(begin)
            if isinstance(limit, ReadAllAvailable):
                return to_json(self._newest)
            if self._waits(begin):
                return start
            if isinstance(limit, ReadMaxRows):
                known = begin | self.cluster.earliest(self._newest.keys() - begin.keys())
                return to_json(limited(known, self._newest, limit.max_rows))
            return to_json(self._newest)

        def reportLatestOffset(self) -> Checkpointed | None:
            """What Spark's progress shows as `latestOffset`, beside `endOffset`."""
            return to_json(self._newest) if self._newest else None

        def commit_finished(self, start: Checkpointed) -> None:
            """What lies before a batch has been processed; Spark itself says so one batch later."""
            if start != self._first:
                self.commit(start)

        def _end(self, begin: Offsets) -> Offsets:
            if self._target is not None:
                return self._target
            return self.cluster.latest(self.cluster.current(), begin)

        def _waits(self, begin: Offsets) -> bool:
            """Whether minOffsetsPerTrigger puts the batch off; not with availableNow."""
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
