"""Target assignments of large groups, computed and stored in pieces."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from itertools import islice
from typing import Generic, NamedTuple, Protocol, TypeVar

from .record import CoordinatorRecord
from .result import Now, Pieces, Result

# Number of partitions, members or pattern-matched topics up to which a target assignment is
# computed within the heartbeat (a few milliseconds). Larger groups are processed in the background.
SYNCHRONOUS_WORK_MAX = 2_000
# Maximum number of target records per batch.
RECORDS_AT_ONCE = 50
# Members per piece of background work.
MEMBERS_AT_ONCE = 100
# Members and topics of their subscriptions per piece of background work.
SUBSCRIBED_AT_ONCE = 2_000
R = TypeVar("R")
# Type of a target: partitions or tasks.
T = TypeVar("T")


def is_within_interval(assigned_at_ms: int, interval_ms: int, now: Now) -> bool:
    """Return True if the assignment interval has not passed yet. A time of 0 means no target."""
    wait_ms = assigned_at_ms + interval_ms - now.log_ms
    return bool(assigned_at_ms) and 0 < wait_ms <= interval_ms


class TargetRecords(NamedTuple, Generic[T]):
    """Functions that create the target records of one group type.

    Attributes:
        target: Creates the target record of one member.
        epoch: Creates the record of the target assignment's epoch.
    """

    target: Callable[[str, str, T], CoordinatorRecord]
    epoch: Callable[[str, int, int], CoordinatorRecord]


class AssigningGroup(Protocol[T]):
    """A group whose target assignment is computed in the background."""

    id: str
    targets: dict[str, T]
    is_assigning: bool
    assignment_epoch: int

    @property
    def members(self) -> Mapping[str, object]: ...


def store_targets(
    group: AssigningGroup[T],
    targets: Mapping[str, T],
    epoch: int,
    now: Now,
    is_current: Callable[[], bool],
    records: TargetRecords[T],
) -> Pieces:
    """Store the target assignment of a large group in pieces, followed by the record of its epoch.

    Args:
        group: Group of the target assignment.
        targets: Targets by member ID.
        epoch: Group epoch for which the targets were computed.
        now: Current time.
        is_current: Returns True while the group still exists under its ID.
        records: Functions that create the records of the group type.
    """
    is_stored = True

    def cancel(code: object, now: Now) -> Result[None]:
        # The next heartbeat restarts the computation, maybe before this one continues.
        nonlocal is_stored
        is_stored = group.is_assigning = False
        return Result()

    changed = iter(targets.items())
    while batch := list(islice(changed, RECORDS_AT_ONCE)):
        result: Result[None] = Result()
        for member_id, target in batch:
            if member_id in group.members and target != group.targets.get(member_id):
                result.records.append(records.target(group.id, member_id, target))
        result.on_failure = cancel
        yield result if result.records else None
        if not (is_stored and is_current()):
            return
    group.is_assigning = False
    if epoch <= group.assignment_epoch:  # all members have left since the start
        return
    result = Result()
    result.records.append(records.epoch(group.id, epoch, now.log_ms))
    result.on_failure = cancel
    yield result


def is_current_group(groups: Mapping[str, object], group: AssigningGroup[T]) -> bool:
    """Return True if the group still exists under its ID."""
    return groups.get(group.id) is group


def run_to_end(work: Generator[None, None, R]) -> R:
    """Run work that is divided into pieces to its end, and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
