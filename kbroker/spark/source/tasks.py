"""Input partition of one Spark task."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from .offsets import OffsetRange


@dataclass
class RangePartition(InputPartition):
    """Input of one task: an offset range, or None if the task has nothing to read."""

    range: OffsetRange | None
