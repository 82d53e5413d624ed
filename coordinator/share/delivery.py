"""Delivery state of a share partition: acquired records, members and delivery counts (KIP-932).

The partition leader has one `ShareDelivery` per share group. Persistent changes are written to the
share coordinator: `acknowledge` and `release` return a `Change`, and the caller reports the outcome
with `confirm_change` or `undo_change`. The members that hold records are not persisted: a new
leader delivers these records again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from kbroker.protocol.errors import ErrorCode, KafkaError

from .dlq_records import CLIENT_REJECT, DELIVERY_COUNT_EXCEEDED, DeadLetters
from .in_flight import (
    ACQUIRED,
    ARCHIVED,
    ARCHIVING,
    AVAILABLE,
    NO_MEMBER,
    Change,
    InFlightBatch,
    RecordState,
    Run,
)
from .state_batches import PersisterStateBatch

# Acknowledgement types. GAP is an offset without a record for the member.
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
# State of a record after an acknowledgement.
STATE_AFTER = {
    GAP: ARCHIVED,
    ACCEPT: RecordState.ACKNOWLEDGED,
    RELEASE: AVAILABLE,
    REJECT: ARCHIVED,
}
# States that can be persisted.
STORED_STATES = frozenset(STATE_AFTER.values()) | {ARCHIVING}
# Maximum of a stored count.
COUNT_MAX = 2**31 - 1
NOT_ACQUIRED = "The batch cannot be acknowledged. The batch is not in the acquired state."


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """Current settings of one share group.

    Attributes:
        lock_ms: Duration of an acquisition lock (`share.record.lock.duration.ms`).
        deliveries_max: Maximum number of deliveries of a record (`share.delivery.count.limit`).
        locks_max: Maximum number of records in flight after the start offset
            (`share.partition.max.record.locks`).
        renews: True if members may renew locks (`share.renew.acknowledge.enable`, KIP-1222).
        has_dead_letter_queue: True if records that the group cannot process go to a dead-letter
            queue before they are archived (`errors.deadletterqueue.topic.name`, KIP-1191).
    """

    lock_ms: int = 30_000
    deliveries_max: int = 5
    locks_max: int = 2000
    renews: bool = True
    has_dead_letter_queue: bool = False


class Acknowledgement(NamedTuple):
    """Acknowledgement of the records from `first` to `last`: one type, or one per record."""

    first: int
    last: int
    types: Sequence[int]


@dataclass(slots=True)
class Gap:
    """Records between persisted ranges that no member has acquired yet.

    The gap is obsolete if the end offset is no longer `end`, where the persisted states ended.
    """

    end: int
    start: int


class ShareDelivery:
    """Records of one partition for one share group, beginning at its start offset.

    Args:
        start_offset: Share-partition start offset.
        states: Persisted states, sorted and disjoint.
        settings: Returns the current settings of the group.

    Attributes:
        batches: In-flight batches in offset order.
        wake_at: Time in ms of the monotonic clock, not later than the first lock expiry.
        may_have_free: True if records in flight may be available.

    Raises:
        KafkaError: UNKNOWN_SERVER_ERROR, if the persisted states are invalid.
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
        self._load_states(states)

    def _load_states(self, states: Iterable[PersisterStateBatch]) -> None:
        before, gap_start = self.start_offset - 1, None
        for each in states:
            if not before < each.first <= each.last or each.state not in STORED_STATES:
                raise KafkaError(
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                    f"persisted share-partition state is invalid: {each} follows offset {before}",
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

    # -- offsets

    @property
    def complete_count(self) -> int:
        """Number of finished records after the start offset (KIP-1226)."""
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
        """First offset of the gap, or None if there is no gap."""
        gap = self.gap
        if gap is None or gap.end != self.end_offset:
            return None
        return max(gap.start, self.start_offset)

    def next_offset(self) -> int:
        """Return the offset at which the next read begins: the first available record."""
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
        """Return True if records in flight are available."""
        return self.next_offset() <= self.end_offset and bool(self.batches)

    def can_acquire(self) -> bool:
        """Return True if a member may acquire records: released ones, or new ones within the limit.

        After a long aborted transaction, too many archived records may be in flight, and no member
        will acknowledge them. This method then moves the start offset past them.
        """
        if self.next_offset() != self.end_offset + 1:
            return True
        most = self.settings().locks_max
        return self.in_flight_count < most or (self.move_start() and self.in_flight_count < most)

    def floor(self, offset: int) -> int:
        """Return the index of the last batch that begins at or before an offset, or -1."""
        return bisect_right(self.batches, offset, key=_first_of) - 1

    def between(self, first: int, last: int) -> list[InFlightBatch]:
        """Return the batches that begin between two offsets (inclusive)."""
        begin = bisect_left(self.batches, first, key=_first_of)
        end = bisect_right(self.batches, last, key=_first_of)
        return self.batches[begin:end]

    def add(self, run: Run) -> InFlightBatch:
        """Add records to those in flight."""
        batch = InFlightBatch(run)
        insort(self.batches, batch, key=_first_of)
        return batch

    def fill_gap(self, offset: int) -> None:
        """Shrink the gap: records before `offset` were acquired."""
        gap = self.gap
        if gap is not None:
            start = max(offset, gap.start)  # released records may be acquired again
            is_gap = gap.end == self.end_offset and start <= gap.end
            self.gap = Gap(gap.end, start) if is_gap else None

    def lock_until(self, now_ms: int) -> int:
        """Return the lock expiry time of records that are acquired now."""
        until = now_ms + self.settings().lock_ms
        self.wake_at = until if self.wake_at is None else min(self.wake_at, until)
        return until

    # -- acknowledgements

    def acknowledge(self, member_id: str, rows: Iterable[Acknowledgement], now_ms: int) -> Change:
        """Apply a member's acknowledgements tentatively: either all of them or none.

        Raises:
            KafkaError: INVALID_RECORD_STATE for records that the member does not hold,
                INVALID_REQUEST for offsets that are not in flight.
        """
        change = Change()
        try:
            for row in rows:
                if row.last >= self.start_offset:
                    self._acknowledge(change, member_id, row, now_ms)
        except KafkaError:
            self.undo_change(change, now_ms)
            raise
        return change

    def _acknowledge(
        self, change: Change, member_id: str, row: Acknowledgement, now_ms: int
    ) -> None:
        for batch in self._covered_batches(row):
            if batch.last < self.start_offset:
                continue
            if batch.is_whole:
                _check_holder(batch.runs[0], member_id)
                is_inside = row.first <= batch.first and batch.last <= row.last
                if is_inside and len(row.types) == 1 and not self._is_cut_by_start(batch):
                    self._acknowledge_run(change, batch.runs[0], row.types[0], now_ms)
                    continue
                batch.is_whole = False
            for first, last, type_ in self._ranges_by_type(row, batch):
                for run in batch.between(first, last):
                    if run.state is not ACQUIRED:
                        raise _invalid_state(
                            "The offset cannot be acknowledged. The offset is not acquired."
                        )
                    if run.member_id != member_id:
                        raise _invalid_state("Member is not the owner of offset")
                    self._acknowledge_run(change, run, type_, now_ms)

    def _covered_batches(self, row: Acknowledgement) -> list[InFlightBatch]:
        """Return the batches that an acknowledgement covers."""
        floor = self.floor(row.first)
        if floor < 0 and row.first < self.start_offset:
            floor = self.floor(self.start_offset)
        if floor < 0:
            raise _invalid_state(
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

    def _ranges_by_type(
        self, row: Acknowledgement, batch: InFlightBatch
    ) -> Iterator[tuple[int, int, int]]:
        """Yield the offset ranges with one type that lie within a batch."""
        first = max(row.first, self.start_offset, batch.first)
        last = min(row.last, batch.last)
        if len(row.types) == 1:
            yield first, last, row.types[0]
            return
        for type_, equal in groupby(row.types[first - row.first : last - row.first + 1]):
            end = first + sum(1 for _ in equal)
            yield first, end - 1, type_
            first = end

    def _acknowledge_run(self, change: Change, run: Run, type_: int, now_ms: int) -> None:
        settings = self.settings()
        if type_ == REJECT:
            self._set_state(change, run, self._archived_state, CLIENT_REJECT)
        elif type_ != RENEW:
            self._set_state(change, run, STATE_AFTER[type_], DELIVERY_COUNT_EXCEEDED)
        elif settings.renews:
            run.lock_until = self.lock_until(now_ms)
        else:
            raise _invalid_state("Renewing acquisition locks is not enabled for the group.")

    def _set_state(self, change: Change, run: Run, state: RecordState, cause: str) -> None:
        """Change the state of records tentatively.

        Args:
            change: The change that gets the new state.
            run: The records.
            state: The new state. AVAILABLE means archived if the delivery limit is reached.
            cause: Reason if the records go to the dead-letter queue.
        """
        if state is AVAILABLE:
            state = self._state_after_failure(run)
        run.before = run.state, run.member_id
        run.state, run.member_id, run.change = state, NO_MEMBER, change
        change.add(run, cause)

    def _state_after_failure(self, run: Run) -> RecordState:
        """Return the state of records that a member did not process."""
        is_last = run.deliveries >= self.settings().deliveries_max
        return self._archived_state if is_last else AVAILABLE

    @property
    def _archived_state(self) -> RecordState:
        """State of records that the group gives up."""
        return ARCHIVING if self.settings().has_dead_letter_queue else ARCHIVED

    def release(self, member_id: str) -> Change:
        """Release the records of a member that leaves."""
        change = Change()
        for batch in self.batches:
            for run in self._acquired_runs(batch, lambda run: run.member_id == member_id):
                state = ARCHIVED if run.last < self.start_offset else AVAILABLE
                self._set_state(change, run, state, DELIVERY_COUNT_EXCEEDED)
        return change

    def _acquired_runs(
        self, batch: InFlightBatch, concerns: Callable[[Run], bool]
    ) -> Iterator[Run]:
        """Yield the acquired runs for which `concerns` is true, split at the start offset."""
        start = self.start_offset
        if self._is_cut_by_start(batch) and any(map(concerns, batch.runs)):
            batch.is_whole = False
            for _ in batch.between(start, batch.last):
                break
        for run in batch.runs:
            if run.state is ACQUIRED and concerns(run):
                yield run

    # -- persistence

    def confirm_change(self, change: Change) -> bool:
        """Make a persisted change final, and return True if the start offset moved."""
        for batch in self._changed_batches(change):
            for run in batch.runs:
                if run.change is change:
                    run.change = run.before = run.lock_until = None
                    self.may_have_free = self.may_have_free or run.state is AVAILABLE
            batch.merge_runs()
        return self.move_start()

    def undo_change(self, change: Change, now_ms: int) -> None:
        """Undo a change that was not persisted. Locks that have expired are released.

        Records for the dead-letter queue stay acquired until `expire`, whose states are persisted.
        """
        for batch in self._changed_batches(change):
            for run in batch.runs:
                if run.change is not change:
                    continue
                assert run.before is not None
                run.state, run.member_id = run.before
                run.change = run.before = None
                if run.lock_until is not None and run.lock_until <= now_ms:
                    state = self._state_after_failure(run)
                    if state is not ARCHIVING:
                        run.release(state)
                self.may_have_free = self.may_have_free or run.state is AVAILABLE
        self._update_wake_at()

    def _changed_batches(self, change: Change) -> list[InFlightBatch]:
        if not change.states or not self.batches:
            return []
        first = min(each.first for each in change.states)
        last = max(each.last for each in change.states)
        return self.batches[max(self.floor(first), 0) : self.floor(last) + 1]

    # -- dead-letter queue

    def unwritten_dead_letters(self) -> list[DeadLetters]:
        """Return the records of the loaded state that may be missing in the dead-letter queue.

        The cause is not persisted. As in Kafka, the delivery count tells it.
        """
        most = self.settings().deliveries_max
        return [
            DeadLetters(
                run.first,
                run.last,
                run.deliveries,
                DELIVERY_COUNT_EXCEEDED if run.deliveries >= most else CLIENT_REJECT,
            )
            for batch in self.batches
            for run in batch.runs
            if run.state is ARCHIVING
        ]

    def archive_dead_letters(self, letters: DeadLetters) -> Change:
        """Archive records after the dead-letter queue has got them, and return the final states."""
        archived = Change()
        for batch in self.batches[max(self.floor(letters.first), 0) :]:
            if batch.first > letters.last:
                break
            if batch.last < letters.first:
                continue
            batch.is_whole &= letters.first <= batch.first and batch.last <= letters.last
            for run in batch.between(letters.first, letters.last):
                if run.state is ARCHIVING and run.change is None:
                    run.archive()
                    archived.add(run, letters.cause)
            batch.merge_runs()
        return archived

    # -- time

    def expire(self, now_ms: int) -> Change:
        """Release records whose lock has expired, and return the new states, which are final."""
        expired = Change()

        def is_over(run: Run) -> bool:
            return run.lock_until is not None and run.lock_until <= now_ms

        for batch in self.batches:
            for run in self._acquired_runs(batch, is_over):
                is_past = run.last < self.start_offset
                run.release(ARCHIVED if is_past else self._state_after_failure(run))
                expired.add(run, DELIVERY_COUNT_EXCEEDED)
                self.may_have_free = self.may_have_free or run.state is AVAILABLE
        self._update_wake_at()
        return expired

    def _update_wake_at(self) -> None:
        self.wake_at = min(
            (
                run.lock_until
                for batch in self.batches
                for run in batch.runs
                if run.lock_until is not None and run.state is ACQUIRED
            ),
            default=None,
        )

    # -- start offset

    def move_start(self) -> bool:
        """Move the start offset past finished records, and return True if it moved."""
        floor = self.floor(self.start_offset)
        if floor < 0 or not self._is_start_finished(self.batches[floor]):
            return False
        done = self._last_finished_offset()
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

    def _is_start_finished(self, batch: InFlightBatch) -> bool:
        """Return True if the record at the start offset, or the last one before it, is finished."""
        start = self.start_offset
        at_start = next(
            (run for run in batch.runs if run.first <= start <= run.last), batch.runs[-1]
        )
        return at_start.is_done

    def _last_finished_offset(self) -> int | None:
        done = None
        gap = self.gap_start
        for batch in self.batches:
            if gap is not None:
                if batch.first > gap:
                    break
                gap = max(gap, batch.last + 1)
            until = batch.finished_until()
            if until >= batch.first:
                done = until
            if until < batch.last:
                break
        return done

    def archive_before_log_start(self, offset: int) -> None:
        """Archive records below the new log start offset."""
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
        """Archive the records between two offsets that have `state`; return True if any had it."""
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


def _check_holder(run: Run, member_id: str) -> None:
    """Check that a member holds a whole batch.

    Raises:
        KafkaError: INVALID_RECORD_STATE.
    """
    if run.member_id == NO_MEMBER:
        raise _invalid_state(NOT_ACQUIRED)
    if run.member_id != member_id:
        raise _invalid_state("Member is not the owner of batch record")


def _invalid_state(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD_STATE, message)
