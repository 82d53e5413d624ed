"""Offset specs and their resolution to offsets."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from .cluster import ClusterClient
from .list_offsets import EARLIEST, LATEST, offsets_at
from .topics import Partition


class Kind(Enum):
    """The base of an offset spec."""

    START = "start"
    END = "end"
    OFFSET = "offset"
    TIME = "time"


class OffsetSpec(NamedTuple):
    """A position in a partition: `value` is an offset, a count from start or end, or ms since the epoch."""

    kind: Kind
    value: int = 0

    def is_after(self, now_ms: int) -> bool:
        """Return True if the spec is a time after `now_ms` (ms since the epoch)."""
        return self.kind == Kind.TIME and self.value > now_ms


START, END = OffsetSpec(Kind.START), OffsetSpec(Kind.END)


async def find(
    cluster: ClusterClient,
    partitions: Iterable[Partition],
    spec: OffsetSpec,
    *,
    committed: bool = False,
) -> dict[Partition, int]:
    """Resolve a spec to an offset in each partition.

    Times after the last record resolve to the end. Times before 1970 resolve to the start, because
    negative timestamps have special meanings in ListOffsets. Relative specs are clamped.

    Args:
        cluster: The cluster to query.
        partitions: Partitions to resolve.
        spec: The offset spec.
        committed: Use the last stable offset as the end.

    Raises:
        ClientError: A partition cannot be read.
    """
    listed = list(partitions)
    starts = await offsets_at(cluster, listed, EARLIEST)
    ends = await offsets_at(cluster, listed, LATEST, committed=committed)
    if spec.kind == Kind.OFFSET:
        return dict.fromkeys(listed, spec.value)
    if spec.kind == Kind.TIME and spec.value < 0:
        return starts
    if spec.kind == Kind.TIME:
        timed = await offsets_at(cluster, listed, spec.value, committed=committed)
        return {one: ends[one] if timed[one] < 0 else timed[one] for one in listed}
    base = starts if spec.kind == Kind.START else ends
    return {one: min(max(base[one] + spec.value, starts[one]), ends[one]) for one in listed}
