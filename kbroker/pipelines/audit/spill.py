"""Hashes of many records in bounded memory, to find duplicates."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import NamedTuple, Self

BUCKETS = 1024
# Records whose hashes are kept in memory before they are spilled to disk (64 MB).
IN_MEMORY = 4_000_000
PARTITIONS_MAX, OFFSETS_MAX = 1 << 15, 1 << 48
_OFFSET = OFFSETS_MAX - 1


class Place(NamedTuple):
    """Position of a record."""

    partition: int
    offset: int


class Difference(NamedTuple):
    """Records with the same hash that one side has more often.

    Attributes:
        left: Number of records on the first side.
        right: Number of records on the second side.
        places: Positions of the surplus.
    """

    left: int
    right: int
    places: list[Place]


class Spill:
    """Hashes and positions of records, in `BUCKETS` groups by hash.

    Memory: 16 bytes for each of `in_memory` records, plus 100 to 200 bytes for each record of one
    of the 1024 groups while groups are compared. Disk: 16 bytes per record, in a temporary
    directory that is deleted with the context. At most 32,768 partitions.
    """

    def __init__(self, in_memory: int = IN_MEMORY) -> None:
        self._buckets = [array("q") for _ in range(BUCKETS)]
        self._free = self._in_memory = in_memory
        self._directory: TemporaryDirectory[str] | None = None
        self.count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._directory is not None:
            self._directory.cleanup()

    def add(self, partition: int, offsets: list[int], hashes: list[int]) -> None:
        """Add records of one partition. Raises ValueError beyond the limits."""
        if partition >= PARTITIONS_MAX or (offsets and offsets[-1] >= OFFSETS_MAX):
            raise ValueError(
                f"partition {partition} with offset {offsets[-1]} exceeds the limits (partition "
                f"< {PARTITIONS_MAX}, offset < {OFFSETS_MAX})"
            )
        base = partition * OFFSETS_MAX
        buckets = self._buckets
        for one, offset in zip(hashes, offsets, strict=True):
            bucket = buckets[one % BUCKETS]
            bucket.append(one)
            bucket.append(base + offset)
        self.count += len(offsets)
        self._free -= len(offsets)
        if self._free <= 0:
            self._write_to_disk()

    def _write_to_disk(self) -> None:
        self._free = self._in_memory
        if self._directory is None:
            self._directory = TemporaryDirectory(prefix="kbroker-audit-")
        for number, bucket in enumerate(self._buckets):
            with (Path(self._directory.name) / str(number)).open("ab") as file:
                bucket.tofile(file)
        self._buckets = [array("q") for _ in range(BUCKETS)]

    def _groups(self) -> Iterator[array[int]]:
        for number, bucket in enumerate(self._buckets):
            if self._directory is None:
                yield bucket
            else:
                whole = array("q", (Path(self._directory.name) / str(number)).read_bytes())
                whole.extend(bucket)
                yield whole

    def repeated(self) -> Iterator[Difference]:
        """Yield hashes that occur more than once, with all positions but the first."""
        for group in self._groups():
            hashes = group[::2]
            if len(set(hashes)) < len(hashes):
                for places in _by_hash(group).values():
                    if len(places) > 1:
                        yield Difference(1, len(places), places[1:])

    def differences(self, other: Spill, *, distinct: bool) -> Iterator[Difference]:
        """Yield hashes that occur a different number of times on the other side.

        Args:
            other: The other side.
            distinct: Ignore how often a hash occurs.

        Yields:
            The differences.
        """
        for ours, theirs in zip_longest(self._groups(), other._groups()):
            same = set if distinct else sorted
            if same(ours[::2]) != same(theirs[::2]):
                yield from _unequal(_by_hash(ours), _by_hash(theirs), distinct)


def _unequal(
    ours: dict[int, list[Place]], theirs: dict[int, list[Place]], distinct: bool
) -> Iterator[Difference]:
    for one in ours.keys() | theirs.keys():
        left, right = ours.get(one, []), theirs.get(one, [])
        if distinct and left and right:
            continue
        if len(left) != len(right):
            surplus = left[len(right) :] if len(left) > len(right) else right[len(left) :]
            yield Difference(len(left), len(right), surplus)


def _by_hash(group: array[int]) -> dict[int, list[Place]]:
    """Return the sorted positions of each hash of a group."""
    found: dict[int, list[Place]] = {}
    for one, place in zip(group[::2], group[1::2], strict=True):
        found.setdefault(one, []).append(Place(place // OFFSETS_MAX, place & _OFFSET))
    return {one: sorted(places) for one, places in found.items()}
