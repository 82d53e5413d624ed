"""Offset specs and their resolution to offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from kbroker.text.times import utc_text

from .cluster import ClusterClient
from .errors import ClientError
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


# Numbers with 13 digits: times in ms from 2001 to 2286, and unlikely offsets.
TIMES_MS: Final = range(10**12, 10**13)


class LooksLikeTime(ClientError):
    """An offset is after the end of every log that it is meant for, and looks like a time in ms."""

    def __init__(self, offset: int, end: int) -> None:
        super().__init__(
            f"offset {offset} is after the end of the log ({end}), and looks like the time "
            f"{utc_text(offset)}",
            hint=f"write @{offset} for the first record at or after that time",
        )


def check_offsets(offsets: Mapping[Partition, int], ends: Mapping[Partition, int]) -> None:
    """Reject offsets that are probably times.

    Args:
        offsets: Offsets that a user gives, by partition.
        ends: End offsets of these partitions.

    Raises:
        LooksLikeTime: A number of 13 digits is after the end of all partitions that have it.
    """
    for value in {offset for offset in offsets.values() if offset in TIMES_MS}:
        end = max(ends[one] for one, offset in offsets.items() if offset == value)
        if value > end:
            raise LooksLikeTime(value, end)


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
        LooksLikeTime: The spec is an offset after the end of all partitions, and probably a time.
        ClientError: A partition cannot be read.
    """
    listed = list(partitions)
    starts = await offsets_at(cluster, listed, EARLIEST)
    ends = await offsets_at(cluster, listed, LATEST, committed=committed)
    if spec.kind == Kind.OFFSET:
        offsets = dict.fromkeys(listed, spec.value)
        check_offsets(offsets, ends)
        return offsets
    if spec.kind == Kind.TIME and spec.value < 0:
        return starts
    if spec.kind == Kind.TIME:
        timed = await offsets_at(cluster, listed, spec.value, committed=committed)
        return {one: ends[one] if timed[one] < 0 else timed[one] for one in listed}
    base = starts if spec.kind == Kind.START else ends
    return {one: min(max(base[one] + spec.value, starts[one]), ends[one]) for one in listed}
