"""In-flight records of a share partition: acquired or not yet finished (KIP-932)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from enum import IntEnum

from .dlq_records import DeadLetters
from .state_batches import PersisterStateBatch

# Maximum delivery count that can be stored and returned to clients.
DELIVERIES_MAX = 2**15 - 1
# Member ID of records that no member has acquired.
NO_MEMBER = ""


class RecordState(IntEnum):
    """Delivery state of a record. The values are those of the share-state log."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    # The record is being written to the dead-letter queue (KIP-1191).
    ARCHIVING = 3
    ARCHIVED = 4

    @property
    def is_final(self) -> bool:
        """True if the group has finished the record."""
        return self in (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


AVAILABLE, ACQUIRED = RecordState.AVAILABLE, RecordState.ACQUIRED
ARCHIVING, ARCHIVED = RecordState.ARCHIVING, RecordState.ARCHIVED


class Change:
    """Record states that have not been persisted yet.

    The states of an acknowledgement or a release are tentative: `ShareDelivery.confirm_change` makes
    them final, `ShareDelivery.undo_change` undoes them. The states of expired locks are final.

    Attributes:
        states: States to persist.
        dead_letters: Records to write to the dead-letter queue once the states are persisted.
    """

    __slots__ = ("dead_letters", "states")

    def __init__(self) -> None:
        self.states: list[PersisterStateBatch] = []
        self.dead_letters: list[DeadLetters] = []

    def add(self, run: Run, cause: str) -> None:
        """Add the new state of a run.

        Args:
            run: The run.
            cause: Reason for the dead-letter queue, which is used for state ARCHIVING only.
        """
        self.states.append(run.stored)
        if run.state is ARCHIVING:
            self.dead_letters.append(DeadLetters(run.first, run.last, run.deliveries, cause))


class Run:
    """Offsets from `first` to `last` (inclusive) that have the same state.

    Attributes:
        member_id: Member that has acquired the records.
        lock_until: Time at which the acquisition lock expires, in ms of the monotonic clock.
        change: Tentative change that contains the current state, or None if the state is final.
        before: State and member before `change`.
    """

    __slots__ = (
        "before",
        "change",
        "deliveries",
        "first",
        "last",
        "lock_until",
        "member_id",
        "state",
    )

    def __init__(
        self,
        first: int,
        last: int,
        state: RecordState,
        deliveries: int,
        member_id: str = NO_MEMBER,
        lock_until: int | None = None,
    ) -> None:
        self.first = first
        self.last = last
        self.state = state
        self.deliveries = deliveries
        self.member_id = member_id
        self.lock_until = lock_until
        self.change: Change | None = None
        self.before: tuple[RecordState, str] | None = None

    def __len__(self) -> int:
        return self.last - self.first + 1

    @property
    def is_free(self) -> bool:
        """True if a member can acquire the records."""
        return self.state is AVAILABLE and self.change is None

    @property
    def is_done(self) -> bool:
        """True if the group has finished the records and the share coordinator has stored this."""
        return self.state.is_final and self.change is None

    def acquire(self, member_id: str, lock_until: int) -> None:
        self.state = ACQUIRED
        self.deliveries = min(self.deliveries + 1, DELIVERIES_MAX)
        self.member_id = member_id
        self.lock_until = lock_until

    def archive(self) -> None:
        """Archive the records regardless of their state."""
        self.state = ARCHIVED
        self.member_id, self.lock_until = NO_MEMBER, None
        self.change = self.before = None

    def release(self, state: RecordState) -> None:
        """Expire the acquisition lock.

        Args:
            state: The new state.
        """
        self.state = state
        self.member_id, self.lock_until = NO_MEMBER, None

    def split(self, offset: int) -> Run:
        """Shorten this run to end before `offset`, and return the rest."""
        rest = Run(offset, self.last, self.state, self.deliveries, self.member_id, self.lock_until)
        rest.change, rest.before = self.change, self.before
        self.last = offset - 1
        return rest

    def has_same_state_as(self, other: Run) -> bool:
        return (
            self.change is other.change is None
            and self.state is other.state
            and self.deliveries == other.deliveries
            and self.member_id == other.member_id
            and self.lock_until == other.lock_until
        )

    @property
    def stored(self) -> PersisterStateBatch:
        """State of the run in the form in which it is persisted."""
        return PersisterStateBatch(self.first, self.last, int(self.state), self.deliveries)


class InFlightBatch:
    """Records that were first acquired together.

    Attributes:
        is_whole: True while all records have the same state, so that they are acquired together. If
            a part was acknowledged separately, the records are handled individually, as in Kafka.
            Records with the same state still share a run.
    """

    __slots__ = ("first", "is_whole", "last", "runs")

    def __init__(self, run: Run) -> None:
        self.first = run.first
        self.last = run.last
        self.runs = [run]
        self.is_whole = True

    def __len__(self) -> int:
        return self.last - self.first + 1

    def between(self, first: int, last: int) -> Iterator[Run]:
        """Yield the runs between two offsets (inclusive), split at these offsets.

        Each run is split when it is yielded. The caller may change a run before taking the next
        one.
        """
        runs = self.runs
        number = bisect_left(runs, first, key=_last_of)
        while number < len(runs) and runs[number].first <= last:
            run = runs[number]
            if run.first < first:
                number += 1
                run = run.split(first)
                runs.insert(number, run)
            if run.last > last:
                runs.insert(number + 1, run.split(last + 1))
            yield run
            number += 1

    def merge_runs(self) -> None:
        """Merge neighbouring runs with the same state."""
        merged = self.runs[:1]
        for run in self.runs[1:]:
            if merged[-1].has_same_state_as(run):
                merged[-1].last = run.last
            else:
                merged.append(run)
        self.runs = merged

    def finished_until(self) -> int:
        """Return the last offset of the finished prefix, or `first - 1` if it is empty."""
        last = self.first - 1
        for run in self.runs:
            if not run.is_done:
                break
            last = run.last
        return last


def _last_of(run: Run) -> int:
    return run.last
