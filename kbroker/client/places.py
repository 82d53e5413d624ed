"""Places in a partition, and the offsets that they stand for."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from .cluster import ClusterClient
from .list_offsets import EARLIEST, LATEST, offsets_at
from .topics import Partition


class Kind(Enum):
    """What a place counts from."""

    START = "start"
    END = "end"
    OFFSET = "offset"
    TIME = "time"


class Place(NamedTuple):
    """A place: `value` is an offset, a count from start or end, or ms since the epoch."""

    kind: Kind
    value: int = 0


START, END = Place(Kind.START), Place(Kind.END)


async def find(
    cluster: ClusterClient,
    partitions: Iterable[Partition],
    place: Place,
    *,
    committed: bool = False,
) -> dict[Partition, int]:
    """The offset of a place in each partition, between its start and its end.

    A time after the last record is the end, and one before 1970 the start, because brokers do not
    look for those: negative times stand for other things in their requests. Raises ClientError.
    """
    listed = list(partitions)
    starts = await offsets_at(cluster, listed, EARLIEST)
    ends = await offsets_at(cluster, listed, LATEST, committed=committed)
    if place.kind == Kind.OFFSET:
        return dict.fromkeys(listed, place.value)
    if place.kind == Kind.TIME and place.value < 0:
        return starts
    if place.kind == Kind.TIME:
        timed = await offsets_at(cluster, listed, place.value, committed=committed)
        return {one: ends[one] if timed[one] < 0 else timed[one] for one in listed}
    base = starts if place.kind == Kind.START else ends
    return {one: min(max(base[one] + place.value, starts[one]), ends[one]) for one in listed}
