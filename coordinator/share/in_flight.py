"""Records that a share group has been given out of a partition and is not done with (KIP-932)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from enum import IntEnum

from .state_batches import PersisterStateBatch

DELIVERIES_MAX = 2**15 - 1
"""As they are told and stored."""
NOBODY = ""
"""Member id of records that no member holds."""


class RecordState(IntEnum):
    """How far a share group is with a record; the numbers are those of stored states."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4

    @property
    def is_final(self) -> bool:
        """Whether the group is done with the record."""
        return self in (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


AVAILABLE, ACQUIRED = RecordState.AVAILABLE, RecordState.ACQUIRED
ARCHIVED = RecordState.ARCHIVED


class Change:
    """States that records have on trial until they are stored: `states` is what to store.

    It comes into force by `ShareDelivery.stored`, or is undone by `ShareDelivery.not_stored`.
    """

    __slots__ = ("states",)

    def __init__(self) -> None:
        self.states: list[PersisterStateBatch] = []


class Run:
    """Offsets from `first` to `last`, both included, of which the same is known.

    `member_id` holds them until `lock_until` (coordinator time, ms). `change` is what their state is
    a part of that is not stored yet, `before` the state and the member before it.
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
        member_id: str = NOBODY,
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
        """Whether a member can have the records."""
        return self.state is AVAILABLE and self.change is None

    @property
    def is_done(self) -> bool:
        """Whether the group is done with the records, and that is stored or need not be."""
        return self.state.is_final and self.change is None

    def acquire(self, member_id: str, lock_until: int) -> None:
        self.state = ACQUIRED
        self.deliveries = min(self.deliveries + 1, DELIVERIES_MAX)
        self.member_id = member_id
        self.lock_until = lock_until

    def archive(self) -> None:
        """Whatever was going on: nobody gets the records any more."""
        self.state = ARCHIVED
        self.member_id, self.lock_until = NOBODY, None
        self.change = self.before = None

    def release(self, deliveries_max: int, *, is_past: bool) -> None:
        """The member's time is over. `is_past`: the records are no longer in the log."""
        gives_up = is_past or self.deliveries >= deliveries_max
        self.state = ARCHIVED if gives_up else AVAILABLE
        self.member_id, self.lock_until = NOBODY, None

    def cut(self, offset: int) -> Run:
        """End before `offset`; returns the rest."""
        rest = Run(offset, self.last, self.state, self.deliveries, self.member_id, self.lock_until)
        rest.change, rest.before = self.change, self.before
        self.last = offset - 1
        return rest

    def says_the_same_as(self, other: Run) -> bool:
        return (
            self.change is other.change is None
            and self.state is other.state
            and self.deliveries == other.deliveries
            and self.member_id == other.member_id
            and self.lock_until == other.lock_until
        )

    @property
    def stored(self) -> PersisterStateBatch:
        """As it is stored."""
        return PersisterStateBatch(self.first, self.last, int(self.state), self.deliveries)


class InFlightBatch:
    """Records that were first given out together.

    As long as the same is known of all of them they are given out together again: `is_whole`. What
    once was treated in part is looked at record by record, as in Kafka; records of which the same is
    known are one run all the same.
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
        """The runs within two offsets, both included, cut at them.

        Each is cut when it is taken, and what is done with one does not disturb the next.
        """
        runs = self.runs
        number = bisect_left(runs, first, key=_last_of)
        while number < len(runs) and runs[number].first <= last:
            run = runs[number]
            if run.first < first:
                number += 1
                run = run.cut(first)
                runs.insert(number, run)
            if run.last > last:
                runs.insert(number + 1, run.cut(last + 1))
            yield run
            number += 1

    def join(self) -> None:
        """Make neighbours of which the same is known one run."""
        joined = self.runs[:1]
        for run in self.runs[1:]:
            if joined[-1].says_the_same_as(run):
                joined[-1].last = run.last
            else:
                joined.append(run)
        self.runs = joined

    def done_until(self) -> int:
        """The offset up to which the group is done with the records; one below the first if not."""
        last = self.first - 1
        for run in self.runs:
            if not run.is_done:
                break
            last = run.last
        return last


def _last_of(run: Run) -> int:
    return run.last
