"""Acquisition of records by members of a share group (KIP-932).

Whole batches of the log are acquired, because the fetch response contains whole batches. So a
member may get somewhat more records than it requested, unless it sets a strict limit (KIP-1206).
Records that failed several times are acquired in decreasing numbers, and alone for their last
delivery. So a record that no member can process does not make other records fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from .delivery import ShareDelivery
from .in_flight import ACQUIRED, AVAILABLE, InFlightBatch, Run

# If the delivery limit is at most this value, no record is acquired alone for its last delivery.
ONE_BY_ONE_FROM = 2


class LogBatch(NamedTuple):
    """First and last offset of a batch in the log."""

    first: int
    last: int


class Acquired(NamedTuple):
    """Acquired records and their delivery count, including this delivery."""

    first: int
    last: int
    deliveries: int


class Acquirer(NamedTuple):
    """A member that acquires records.

    Attributes:
        member_id: ID of the member.
        records_max: Maximum number of records, a soft limit unless `is_exact` is set.
        batch_size: Number of records per in-flight batch. Acknowledging a whole batch is cheapest.
        is_exact: Never acquire more than `records_max` records.
    """

    member_id: str
    records_max: int
    batch_size: int
    is_exact: bool = False


def acquire(
    delivery: ShareDelivery,
    acquirer: Acquirer,
    read_from: int,
    read: Sequence[LogBatch],
    now_ms: int,
) -> list[Acquired]:
    """Acquire records that were read from the log.

    Args:
        delivery: Delivery state of the share partition.
        acquirer: The member.
        read_from: Offset at which the read began.
        read: Batches that were read, with at least as many records as the member wants.
        now_ms: Current time in ms of the monotonic clock.
    """
    if acquirer.records_max <= 0 or not read or read[-1].last < delivery.start_offset:
        return []
    last, count = read[-1].last, acquirer.records_max
    free_locks = delivery.settings().locks_max - delivery.in_flight_count
    if free_locks > 0:
        count = min(count, free_locks)
    elif read_from <= delivery.end_offset:  # these records are already in flight
        count = min(count, delivery.end_offset - read_from + 1)
        last = min(last, delivery.end_offset)
    else:
        return []
    _archive_missing(delivery, read_from, read[0].first)
    return _Acquisition(delivery, acquirer, read, last, count, now_ms).run()


def _archive_missing(delivery: ShareDelivery, read_from: int, read_first: int) -> None:
    """Archive in-flight records that compaction has removed from the log."""
    if read_from >= read_first or not delivery.batches:
        return
    if delivery.gap_start is not None and read_from <= delivery.gap_start:
        delivery.fill_gap(read_first)
    floor = delivery.floor(read_from)
    begins_before = floor >= 0 and delivery.batches[floor].last >= read_from
    first = delivery.batches[floor].first if begins_before else read_from
    compacted = delivery.between(first, read_first - 1)
    if delivery.archive(read_from, read_first - 1, compacted, AVAILABLE):
        delivery.may_have_free = True
    if read_from <= delivery.start_offset < delivery.batches[0].first:
        delivery.start_offset = min(read_first, delivery.batches[0].first)


class _Acquisition:
    """Acquisition of about `left` records up to offset `last` by one member."""

    def __init__(
        self,
        delivery: ShareDelivery,
        acquirer: Acquirer,
        read: Sequence[LogBatch],
        last: int,
        left: int,
        now_ms: int,
    ) -> None:
        self.delivery = delivery
        self.acquirer = acquirer
        self.read = read
        self.last = last
        self.left = left
        self.now_ms = now_ms
        self.acquired: list[Acquired] = []
        self.deliveries_max = delivery.settings().deliveries_max
        # Delivery count from which on records are acquired in smaller numbers.
        self.careful_from = max(2, -(-self.deliveries_max // 2))

    def run(self) -> list[Acquired]:
        delivery = self.delivery
        first = self._first_offset()
        if first > self.last:
            return []
        known = delivery.between(min(self.read[0].first, first), self.last)
        if not known:
            self._acquire_new(first, self.last)
            return self.acquired
        self._acquire_in_flight(known, first)
        if self.left > 0 and known[-1].last < self.last:
            self._acquire_new(known[-1].last + 1, self.last)
        if self.acquired:
            delivery.fill_gap(self.acquired[-1].last + 1)
        return self.acquired

    def _first_offset(self) -> int:
        """Return the first offset to acquire: the start of the batch in flight, or of the read."""
        delivery, first = self.delivery, self.read[0].first
        floor = delivery.floor(first)
        if floor < 0:
            return max(first, delivery.start_offset)
        before = delivery.batches[floor]
        return before.first if before.last >= first else first

    def _add_acquired(self, given: Iterable[Acquired]) -> None:
        for each in given:
            self.acquired.append(each)
            self.left -= each.last - each.first + 1

    # -- records already in flight

    def _acquire_in_flight(self, known: Sequence[InFlightBatch], first: int) -> None:
        delivery, gap = self.delivery, first
        for batch in known:
            if self.left <= 0:
                return
            if delivery.gap_start is not None:
                if gap < batch.first:
                    self._acquire_new(gap, batch.first - 1)
                gap = batch.last + 1
                if self.left <= 0:
                    return
            is_careful = self._is_careful(batch)
            if is_careful and self.acquired:
                self.left = 0
                return
            if self._can_acquire_whole(batch, is_careful=is_careful):
                self._acquire_whole(batch)
                continue
            if batch.is_whole and not batch.runs[0].is_free:
                continue
            batch.is_whole = False
            taken = list(_merge(self._acquire_runs(batch)))
            self._add_acquired(taken)
            if is_careful and taken:
                self.left = 0
                return

    def _can_acquire_whole(self, batch: InFlightBatch, *, is_careful: bool) -> bool:
        return (
            batch.is_whole
            and self.read[0].first <= batch.first
            and batch.last <= self.last
            and not is_careful
            and not (self.acquirer.is_exact and len(batch) > self.left)
        )

    def _acquire_whole(self, batch: InFlightBatch) -> None:
        run = batch.runs[0]
        if run.is_free:
            run.acquire(self.acquirer.member_id, self.delivery.lock_until(self.now_ms))
            self._add_acquired([Acquired(run.first, run.last, run.deliveries)])

    def _is_careful(self, batch: InFlightBatch) -> bool:
        """Return True if a batch has records that failed so often that fewer must be acquired."""
        first, last = self.read[0].first, self.last
        return any(
            run.is_free
            and run.deliveries >= self.careful_from
            and (batch.is_whole or (run.last >= first and run.first <= last))
            for run in batch.runs
        )

    def _acquire_runs(self, batch: InFlightBatch) -> Iterator[Acquired]:
        """Acquire records of a batch one run at a time."""
        limit = self.left if self.acquirer.is_exact else len(batch)
        is_careful = False
        taken = 0
        for run in batch.between(self.read[0].first, self.last):
            if not run.is_free:
                continue
            is_last_time = (
                self.deliveries_max > ONE_BY_ONE_FROM and run.deliveries >= self.deliveries_max - 1
            )
            if is_last_time and taken:
                return
            if run.deliveries >= self.careful_from and not is_careful:
                is_careful = True
                few = max(1, len(batch) >> (run.deliveries - self.careful_from + 1))
                limit = min(limit, few) if taken < few else limit
            count = 1 if is_last_time else min(len(run), limit - taken)
            yield self._acquire_part(batch, run, count)
            taken += count
            if is_last_time or taken >= limit:
                return

    def _acquire_part(self, batch: InFlightBatch, run: Run, count: int) -> Acquired:
        if count < len(run):
            batch.runs.insert(batch.runs.index(run) + 1, run.split(run.first + count))
        run.acquire(self.acquirer.member_id, self.delivery.lock_until(self.now_ms))
        return Acquired(run.first, run.last, run.deliveries)

    # -- new records

    def _acquire_new(self, first: int, last: int) -> None:
        """Acquire records that were never in flight, in batches of about the requested size."""
        delivery, most = self.delivery, self.left
        if not delivery.batches:
            first = max(first, delivery.end_offset)
        if most < last - first + 1:
            end = self._end_of_batch(first + most - 1)
            last = min(end, last) if delivery.gap_start is not None else end
        if self.acquirer.is_exact:
            given = [self._acquire_exactly(first, last, most)]
        else:
            given = [self._add_batch(each) for each in self._split(first, last)]
        if delivery.batches[0].first == first:
            delivery.start_offset = first
        delivery.end_offset = max(delivery.end_offset, last)
        delivery.fill_gap(given[-1].last + 1)
        self._add_acquired(given)

    def _end_of_batch(self, offset: int) -> int:
        """Return the last offset of the batch that contains `offset`, or `offset` if none does."""
        for batch in self.read:
            if batch.first <= offset <= batch.last:
                return batch.last
        return offset

    def _split(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        size = self.acquirer.batch_size
        if last - first + 1 > size:
            for batch in self.read:
                if batch.first > last:
                    break
                if batch.first - first >= size:
                    yield first, batch.first - 1
                    first = batch.first
        yield first, last

    def _add_batch(self, offsets: tuple[int, int]) -> Acquired:
        first, last = offsets
        until = self.delivery.lock_until(self.now_ms)
        self.delivery.add(Run(first, last, ACQUIRED, 1, self.acquirer.member_id, until))
        return Acquired(first, last, 1)

    def _acquire_exactly(self, first: int, last: int, most: int) -> Acquired:
        """Acquire at most `most` records; the rest of the batch stays available."""
        if last - first + 1 <= most:
            return self._add_batch((first, last))
        self._add_batch((first, last))
        batch = self.delivery.batches[self.delivery.floor(first)]
        batch.is_whole = False
        rest = batch.runs[0].split(first + most)
        batch.runs.append(rest)
        rest.state, rest.deliveries = AVAILABLE, 0
        rest.member_id, rest.lock_until = "", None
        self.delivery.may_have_free = True
        return Acquired(first, first + most - 1, 1)


def _merge(parts: Iterable[Acquired]) -> Iterator[Acquired]:
    """Merge neighbouring ranges with the same delivery count."""
    before: Acquired | None = None
    for each in parts:
        if before is None:
            before = each
        elif each.first == before.last + 1 and each.deliveries == before.deliveries:
            before = before._replace(last=each.last)
        else:
            yield before
            before = each
    if before is not None:
        yield before


def without_aborted(
    delivery: ShareDelivery, acquired: Sequence[Acquired], aborted: Sequence[LogBatch]
) -> list[Acquired]:
    """Archive records of aborted transactions, and return the remaining acquired records.

    Args:
        delivery: Delivery state of the share partition.
        acquired: Records that were just acquired.
        aborted: Aborted batches among those that were read, in order.
    """
    for batch in aborted:
        floor = delivery.floor(batch.first)
        first = delivery.batches[max(floor, 0)].first if delivery.batches else batch.first
        delivery.archive(batch.first, batch.last, delivery.between(first, batch.last), ACQUIRED)
    left = list(acquired)
    for batch in aborted:
        left = [part for each in left for part in _parts_outside(each, batch)]
    return left


def _parts_outside(acquired: Acquired, batch: LogBatch) -> Iterator[Acquired]:
    if acquired.first < batch.first:
        yield acquired._replace(last=min(acquired.last, batch.first - 1))
    if acquired.last > batch.last:
        yield acquired._replace(first=max(acquired.first, batch.last + 1))
