"""Ranges of offsets in the state that a share group gave them (KIP-932)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class PersisterStateBatch(NamedTuple):
    """Offsets from `first` to `last`, both included, which were delivered `deliveries` times."""

    first: int
    last: int
    state: int
    deliveries: int

    @property
    def progress(self) -> tuple[int, int]:
        """How far its records are: of two that say something of one offset the greater holds."""
        return self.deliveries, self.state


class PersisterStateBatches:
    """What is known of the offsets of a share partition: ranges in order, none over another.

    Neighbours in one state are one range, so that what is kept does not grow with what was written.
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
        """Another one that says the same."""
        copied = PersisterStateBatches()
        copied._ranges = self._ranges.copy()
        return copied

    def add(self, ranges: Iterable[PersisterStateBatch]) -> None:
        """Let newer ranges count; empty ones say nothing.

        Their order does not matter; sorted ones are added several times as fast.
        """
        for each in sorted(ranges):
            if each.first <= each.last:
                self._add(each)

    def _add(self, new: PersisterStateBatch) -> None:
        known = self._ranges
        if not known or known[-1].last + 1 < new.first:
            known.append(new)
            return
        begin = bisect_left(known, new.first - 1, key=_last_of)  # with neighbours on both sides
        end = bisect_right(known, new.last + 1, key=_first_of)
        known[begin:end] = _joined(_laid_over(known[begin:end], new))

    def forget_before(self, offset: int) -> None:
        """Nothing is to be known any more of offsets below the start offset."""
        known = self._ranges
        del known[: bisect_left(known, offset, key=_last_of)]
        if known and known[0].first < offset:
            known[0] = known[0]._replace(first=offset)


def _first_of(each: PersisterStateBatch) -> int:
    return each.first


def _last_of(each: PersisterStateBatch) -> int:
    return each.last


def _laid_over(
    known: Iterable[PersisterStateBatch], new: PersisterStateBatch
) -> Iterator[PersisterStateBatch]:
    """`known` and `new` as ranges in order, none over another."""
    first = new.first
    """Of what is left of the new one."""
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


def _joined(ranges: Iterable[PersisterStateBatch]) -> list[PersisterStateBatch]:
    """Neighbours that say the same as one."""
    joined: list[PersisterStateBatch] = []
    for each in ranges:
        before = joined[-1] if joined else None
        if before and before.last + 1 == each.first and before.progress == each.progress:
            joined[-1] = before._replace(last=each.last)
        else:
            joined.append(each)
    return joined
