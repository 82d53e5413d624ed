"""What Spark gives to one task of a read."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from .offsets import OffsetRange


@dataclass
class RangePartition(InputPartition):
    """What one task reads; None when there is nothing to read."""

    range: OffsetRange | None
