"""What a share group has of one partition: which records are out, with whom, and how often they were
delivered (KIP-932).

The leader of the partition has one of these for each share group. What must survive is written to the
share coordinator: `acknowledge` and `release` give a `Change`, and the one who stored it says so by
`stored` or `not_stored`. Which member holds which records is not stored: another leader gives them out
again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from kbroker.protocol.errors import ErrorCode, KafkaError

from .in_flight import (
    ACQUIRED,
    ARCHIVED,
    AVAILABLE,
    NOBODY,
    Change,
    InFlightBatch,
    RecordState,
    Run,
)
from .state_batches import PersisterStateBatch

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
"""Types of acknowledgements: a gap is an offset without a record for the member."""
STATE_AFTER = {
    GAP: ARCHIVED,
    ACCEPT: RecordState.ACKNOWLEDGED,
    RELEASE: AVAILABLE,
    REJECT: ARCHIVED,
}
STORED_STATES = frozenset(STATE_AFTER.values())
COUNT_MAX = 2**31 - 1
"""As a count is stored."""
NOT_ACQUIRED = "The batch cannot be acknowledged. The batch is not in the acquired state."


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """Of one share group, as they are now.

    Attributes:
      lock_ms: How long a member may keep a record (`share.record.lock.duration.ms`).
      deliveries_max: How often a record is delivered (`share.delivery.count.limit`).
      locks_max: Records from the start offset on that may be under way
        (`share.partition.max.record.locks`).
      renews: Whether members may ask for more time (`share.renew.acknowledge.enable`, KIP-1222).
    """

    lock_ms: int = 30_000
    deliveries_max: int = 5
    locks_max: int = 2000
    renews: bool = True


class Acknowledgement(NamedTuple):
    """What became of the records from `first` to `last`: one type for all, or one for each."""

    first: int
    last: int
    types: Sequence[int]


@dataclass(slots=True)
class Gap:
    """Records between those whose state was stored, which nobody was given yet.

    There are none any more once the end offset is not `end`, at which the stored states ended.
    """

    end: int
    start: int


class ShareDelivery:
    """The records of one partition for one share group, from its start offset on.

    Parameters:
      states: What is stored, in order, none over another.
      settings: Gives what holds for the group now.

    Raises KafkaError UNKNOWN_SERVER_ERROR where the states make no sense.

    `batches` are those in flight, in order. `wake_at` is not later than the first lock that runs out.
    """

    def __init__(
        self,
        start_offset: int,
        states: Iterable[PersisterStateBatch],
        settings: Callable[[], DeliverySettings],
    ) -> None:
        self.start_offset = start_offset
        self.end_offset = start_offset
        self.batches: list[InFlightBatch] = []
        self.wake_at: int | None = None
        self.settings = settings
        self.gap: Gap | None = None
        self.may_have_free = False
        """Some of what is in flight may be available again."""
        self._take_stored(states)

    def _take_stored(self, states: Iterable[PersisterStateBatch]) -> None:
        before, gap_start = self.start_offset - 1, None
        for each in states:
            if not before < each.first <= each.last or each.state not in STORED_STATES:
                raise KafkaError(
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                    f"stored states that cannot be: {each} behind {before}",
                )
            if gap_start is None and each.first > before + 1:
                gap_start = before + 1
            before = each.last
            run = Run(each.first, each.last, RecordState(each.state), each.deliveries)
            self.batches.append(InFlightBatch(run))
        if self.batches:
            self.end_offset = before
            self.may_have_free = True
            self.gap = None if gap_start is None else Gap(before, gap_start)
            self.move_start()

    # -- where it is

    @property
    def complete_count(self) -> int:
        """How many records from the start offset on the group is done with (KIP-1226)."""
        start = self.start_offset
        count = sum(
            run.last - max(run.first, start) + 1
            for batch in self.batches
            if batch.last >= start
            for run in batch.runs
            if run.state.is_final and run.last >= start
        )
        return min(count, COUNT_MAX)

    @property
    def in_flight_count(self) -> int:
        return self.end_offset - self.start_offset + 1 if self.batches else 0

    @property
    def gap_start(self) -> int | None:
        """Where the gaps begin, None where there are none."""
        gap = self.gap
        if gap is None or gap.end != self.end_offset:
            return None
        return max(gap.start, self.start_offset)

    def next_offset(self) -> int:
        """Where reading goes on: at the first record that a member can have."""
        if not self.batches or self.start_offset > self.batches[-1].last:
            self.may_have_free = False
            return self.end_offset
        if self.may_have_free:
            found = self._first_free()
            if found is not None:
                return found
            self.may_have_free = False
        return self.end_offset + 1

    def _first_free(self) -> int | None:
        gap = self.gap_start
        for batch in self.batches:
            if gap is not None:
                if batch.first > gap:
                    return gap
                gap = max(gap, batch.last + 1)
            for run in batch.runs:
                if run.is_free:
                    return run.first
        return None

    def has_free(self) -> bool:
        """Whether there are records in flight that a member can have."""
        return self.next_offset() <= self.end_offset and bool(self.batches)

    def can_acquire(self) -> bool:
        """Whether a member could have records, if there are any.

        Where too many are under way of which nobody has any, as after a long transaction that was
        aborted, nobody will say anything of them either: the start moves at once.
        """
        if self.next_offset() != self.end_offset + 1:
            return True
        most = self.settings().locks_max
        return self.in_flight_count < most or (self.move_start() and self.in_flight_count < most)

    def floor(self, offset: int) -> int:
        """The number of the last batch that begins at or before an offset; -1 if none does."""
        return bisect_right(self.batches, offset, key=_first_of) - 1

    def between(self, first: int, last: int) -> list[InFlightBatch]:
        """The batches that begin within two offsets, both included."""
        begin = bisect_left(self.batches, first, key=_first_of)
        end = bisect_right(self.batches, last, key=_first_of)
        return self.batches[begin:end]

    def add(self, run: Run) -> InFlightBatch:
        """Records that were not in flight are."""
        batch = InFlightBatch(run)
        insort(self.batches, batch, key=_first_of)
        return batch

    def fill_gap(self, offset: int) -> None:
        """What lies before an offset was given out: no gap is there."""
        gap = self.gap
        if gap is not None:
            start = max(offset, gap.start)  # what was given out before may be so again
            is_gap = gap.end == self.end_offset and start <= gap.end
            self.gap = Gap(gap.end, start) if is_gap else None

    def lock_until(self, now_ms: int) -> int:
        """Until when a member has records that it gets now."""
        until = now_ms + self.settings().lock_ms
        self.wake_at = until if self.wake_at is None else min(self.wake_at, until)
        return until

    # -- what members say

    def acknowledge(self, member_id: str, rows: Iterable[Acknowledgement], now_ms: int) -> Change:
        """Let acknowledgements of a member count, all of them or none.

        Raises KafkaError: INVALID_RECORD_STATE for records that it does not hold, INVALID_REQUEST for
        offsets that nobody does.
        """
        change = Change()
        try:
            for row in rows:
                if row.last >= self.start_offset:
                    self._acknowledge(change, member_id, row, now_ms)
        except KafkaError:
            self.not_stored(change, now_ms)
            raise
        return change

    def _acknowledge(
        self, change: Change, member_id: str, row: Acknowledgement, now_ms: int
    ) -> None:
        for batch in self._acknowledged(row):
            if batch.last < self.start_offset:
                continue
            if batch.is_whole:
                _check_holds(batch.runs[0], member_id)
                is_inside = row.first <= batch.first and batch.last <= row.last
                if is_inside and len(row.types) == 1 and not self._is_cut_by_start(batch):
                    self._settle_run(change, batch.runs[0], row.types[0], now_ms)
                    continue
                batch.is_whole = False
            for first, last, type_ in self._typed(row, batch):
                for run in batch.between(first, last):
                    if run.state is not ACQUIRED:
                        raise _wrong_state(
                            "The offset cannot be acknowledged. The offset is not acquired."
                        )
                    if run.member_id != member_id:
                        raise _wrong_state("Member is not the owner of offset")
                    self._settle_run(change, run, type_, now_ms)

    def _acknowledged(self, row: Acknowledgement) -> list[InFlightBatch]:
        """The batches that a row is about."""
        floor = self.floor(row.first)
        if floor < 0 and row.first < self.start_offset:
            floor = self.floor(self.start_offset)
        if floor < 0:
            raise _wrong_state(
                "Batch record not found. The request batch offsets are not found in the cache."
            )
        batches = self.between(self.batches[floor].first, row.last)
        for offset, which in ((row.first, "first"), (row.last, "last")):
            if batches[-1].last < offset:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"Batch record not found. The {which} offset in request is past acquired records.",
                )
        return batches

    def _is_cut_by_start(self, batch: InFlightBatch) -> bool:
        return batch.first < self.start_offset <= batch.last

    def _typed(self, row: Acknowledgement, batch: InFlightBatch) -> Iterator[tuple[int, int, int]]:
        """Offsets that have one type, those of a batch only."""
        first = max(row.first, self.start_offset, batch.first)
        last = min(row.last, batch.last)
        if len(row.types) == 1:
            yield first, last, row.types[0]
            return
        for type_, equal in groupby(row.types[first - row.first : last - row.first + 1]):
            end = first + sum(1 for _ in equal)
            yield first, end - 1, type_
            first = end

    def _settle_run(self, change: Change, run: Run, type_: int, now_ms: int) -> None:
        settings = self.settings()
        if type_ != RENEW:
            self._put(change, run, STATE_AFTER[type_])
        elif settings.renews:
            run.lock_until = self.lock_until(now_ms)
        else:
            raise _wrong_state("Renewing acquisition locks is not enabled for the group.")

    def _put(self, change: Change, run: Run, state: RecordState) -> None:
        """Give records a state on trial."""
        if state is AVAILABLE and run.deliveries >= self.settings().deliveries_max:
            state = ARCHIVED
        run.before = run.state, run.member_id
        run.state, run.member_id, run.change = state, NOBODY, change
        change.states.append(run.stored)

    def release(self, member_id: str) -> Change:
        """A member goes: what it holds can be given to others."""
        change = Change()
        for batch in self.batches:
            for run in self._halves(batch, lambda run: run.member_id == member_id):
                self._put(change, run, ARCHIVED if run.last < self.start_offset else AVAILABLE)
        return change

    def _halves(self, batch: InFlightBatch, concerns: Callable[[Run], bool]) -> Iterator[Run]:
        """The acquired runs of a batch that something concerns, each on one side of the start."""
        start = self.start_offset
        if self._is_cut_by_start(batch) and any(map(concerns, batch.runs)):
            batch.is_whole = False
            for _ in batch.between(start, batch.last):
                break
        for run in batch.runs:
            if run.state is ACQUIRED and concerns(run):
                yield run

    # -- what is stored

    def stored(self, change: Change) -> bool:
        """A change is stored; returns whether the start offset moved."""
        for batch in self._changed(change):
            for run in batch.runs:
                if run.change is change:
                    run.change = run.before = run.lock_until = None
                    self.may_have_free = self.may_have_free or run.state is AVAILABLE
            batch.join()
        return self.move_start()

    def not_stored(self, change: Change, now_ms: int) -> None:
        """A change could not be stored, or must not: members hold the records as before, as far as
        their time is not over."""
        for batch in self._changed(change):
            for run in batch.runs:
                if run.change is not change:
                    continue
                assert run.before is not None
                run.state, run.member_id = run.before
                run.change = run.before = None
                if run.lock_until is not None and run.lock_until <= now_ms:
                    run.release(self.settings().deliveries_max, is_past=False)
                self.may_have_free = self.may_have_free or run.state is AVAILABLE
        self._look_at_locks()

    def _changed(self, change: Change) -> list[InFlightBatch]:
        if not change.states or not self.batches:
            return []
        first = min(each.first for each in change.states)
        last = max(each.last for each in change.states)
        return self.batches[max(self.floor(first), 0) : self.floor(last) + 1]

    # -- time

    def expire(self, now_ms: int) -> list[PersisterStateBatch]:
        """Take back what members kept too long; returns what is to be stored of that."""
        states = []
        deliveries_max = self.settings().deliveries_max

        def is_over(run: Run) -> bool:
            return run.lock_until is not None and run.lock_until <= now_ms

        for batch in self.batches:
            for run in self._halves(batch, is_over):
                run.release(deliveries_max, is_past=run.last < self.start_offset)
                states.append(run.stored)
                self.may_have_free = self.may_have_free or run.state is AVAILABLE
        self._look_at_locks()
        return states

    def _look_at_locks(self) -> None:
        self.wake_at = min(
            (
                run.lock_until
                for batch in self.batches
                for run in batch.runs
                if run.lock_until is not None and run.state is ACQUIRED
            ),
            default=None,
        )

    # -- the start

    def move_start(self) -> bool:
        """Go on behind the records that the group is done with; returns whether there were such."""
        floor = self.floor(self.start_offset)
        if floor < 0 or not self._is_done_with_start(self.batches[floor]):
            return False
        done = self._done_until()
        if done is None:
            return False
        if done >= self.batches[-1].last:
            self.start_offset = self.end_offset = max(done + 1, self.start_offset)
            self.batches.clear()
            return True
        number = self.floor(done)
        if done == self.batches[number].last:
            number += 1
            gap = self.gap_start
            is_gap = gap is not None and gap <= done + 1
            start = done + 1 if is_gap else self.batches[number].first
        else:
            start = done + 1
        self.start_offset = max(start, self.start_offset)
        del self.batches[:number]
        return True

    def _is_done_with_start(self, batch: InFlightBatch) -> bool:
        """Whether that is so of the record at the start offset, or of what lies before it."""
        start = self.start_offset
        at_start = next(
            (run for run in batch.runs if run.first <= start <= run.last), batch.runs[-1]
        )
        return at_start.is_done

    def _done_until(self) -> int | None:
        done = None
        gap = self.gap_start
        for batch in self.batches:
            if gap is not None:
                if batch.first > gap:
                    break
                gap = max(gap, batch.last + 1)
            until = batch.done_until()
            if until >= batch.first:
                done = until
            if until < batch.last:
                break
        return done

    def log_starts_at(self, offset: int) -> None:
        """The log begins there by now: what is before is not given to anybody any more."""
        if offset <= self.start_offset:
            return
        if not self.batches:
            self.start_offset = self.end_offset = offset
            return
        if self.archive(self.start_offset, offset - 1, self.batches, AVAILABLE):
            self.may_have_free = True
        self.start_offset = offset
        self.end_offset = max(self.end_offset, offset)

    def archive(
        self, first: int, last: int, batches: Iterable[InFlightBatch], state: RecordState
    ) -> bool:
        """Give up those records within two offsets that are in one state; whether there were any."""
        found = False
        for batch in batches:
            if batch.first > last:
                break
            if batch.is_whole:
                if batch.runs[0].state is not state or batch.last < first:
                    continue
                batch.is_whole = first <= batch.first and batch.last <= last
            for run in batch.between(first, last):
                if run.state is state:
                    run.archive()
                    found = True
        return found


def _first_of(batch: InFlightBatch) -> int:
    return batch.first


def _check_holds(run: Run, member_id: str) -> None:
    """Raise INVALID_RECORD_STATE unless a member holds a whole batch."""
    if run.member_id == NOBODY:
        raise _wrong_state(NOT_ACQUIRED)
    if run.member_id != member_id:
        raise _wrong_state("Member is not the owner of batch record")


def _wrong_state(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD_STATE, message)
