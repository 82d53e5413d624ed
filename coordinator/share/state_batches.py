"""Offset ranges with a delivery state: the persisted state of a share partition (KIP-932)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class PersisterStateBatch(NamedTuple):
    """Offsets from `first` to `last` (inclusive) that were delivered `deliveries` times."""

    first: int
    last: int
    state: int
    deliveries: int

    @property
    def progress(self) -> tuple[int, int]:
        """Sort key of the delivery progress. Of two states of an offset, the greater one wins."""
        return self.deliveries, self.state


class PersisterStateBatches:
    """Delivery states of a share partition: sorted, disjoint ranges.

    Neighbouring ranges with the same state are merged, so the size does not grow with the number of
    writes.
    """

    __slots__ = ("_ranges",)

    def __init__(self, ranges: Iterable[PersisterStateBatch] = ()) -> None:
        self._ranges: list[PersisterStateBatch] = []
        self.add(ranges)

    def __iter__(self) -> Iterator[PersisterStateBatch]:
        return iter(self._ranges)

    def __len__(self) -> int:
        return len(self._ranges)

    def copy(self) -> PersisterStateBatches:
        """Return a copy."""
        copied = PersisterStateBatches()
        copied._ranges = self._ranges.copy()
        return copied

    def add(self, ranges: Iterable[PersisterStateBatch]) -> None:
        """Merge newer ranges. Empty ranges are ignored.

        The order of `ranges` does not matter, but sorted ranges are added several times as fast.
        """
        for each in sorted(ranges):
            if each.first <= each.last:
                self._add(each)

    def _add(self, new: PersisterStateBatch) -> None:
        known = self._ranges
        if not known or known[-1].last + 1 < new.first:
            known.append(new)
            return
        begin = bisect_left(
            known, new.first - 1, key=_last_of
        )  # includes adjacent ranges on both sides
        end = bisect_right(known, new.last + 1, key=_first_of)
        known[begin:end] = _merge(_overlay(known[begin:end], new))

    def forget_before(self, offset: int) -> None:
        """Remove the state of offsets below `offset`."""
        known = self._ranges
        del known[: bisect_left(known, offset, key=_last_of)]
        if known and known[0].first < offset:
            known[0] = known[0]._replace(first=offset)


def _first_of(each: PersisterStateBatch) -> int:
    return each.first


def _last_of(each: PersisterStateBatch) -> int:
    return each.last


def _overlay(
    known: Iterable[PersisterStateBatch], new: PersisterStateBatch
) -> Iterator[PersisterStateBatch]:
    """Yield the union of `known` and `new` as sorted, disjoint ranges."""
    # First offset of the remaining part of `new`.
    first = new.first
    for each in known:
        if each.last < new.first:
            yield each
            continue
        if first <= new.last and first < each.first:
            yield new._replace(first=first, last=min(new.last, each.first - 1))
        first = max(first, each.first)
        last = min(new.last, each.last)
        if first > last or each.progress >= new.progress:
            yield each
        else:
            if each.first < first:
                yield each._replace(last=first - 1)
            yield new._replace(first=first, last=last)
            if last < each.last:
                yield each._replace(first=last + 1)
        first = max(first, each.last + 1)
    if first <= new.last:
        yield new._replace(first=first)


def _merge(ranges: Iterable[PersisterStateBatch]) -> list[PersisterStateBatch]:
    """Merge neighbouring ranges with the same state."""
    merged: list[PersisterStateBatch] = []
    for each in ranges:
        before = merged[-1] if merged else None
        if before and before.last + 1 == each.first and before.progress == each.progress:
            merged[-1] = before._replace(last=each.last)
        else:
            merged.append(each)
    return merged
