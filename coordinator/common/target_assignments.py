"""Target assignments of large groups, computed and stored in pieces."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from itertools import islice
from typing import NamedTuple, Protocol, TypeVar

from .assignor import Targets
from .modern_group import Target
from .record import CoordinatorRecord
from .result import Now, Pieces, Result

AT_ONCE = 2_000
"""Partitions and members that are shared, or topics that are held against patterns, in the same turn
as the heartbeat that asks for it: a few milliseconds."""
RECORDS_AT_ONCE = 50
MEMBERS_AT_ONCE = 100
R = TypeVar("R")


def is_too_early(assigned_at_ms: int, interval_ms: int, now: Now) -> bool:
    """Whether a target is too young to be followed by another one; 0 is that of no target."""
    wait_ms = assigned_at_ms + interval_ms - now.log_ms
    return bool(assigned_at_ms) and 0 < wait_ms <= interval_ms


class TargetRecords(NamedTuple):
    """How targets of a kind of groups are recorded: that of one member, and their epoch."""

    target: Callable[[str, str, Target], CoordinatorRecord]
    epoch: Callable[[str, int, int], CoordinatorRecord]


class Assigning(Protocol):
    """A group whose targets are computed beside clients."""

    id: str
    targets: dict[str, Target]
    is_assigning: bool

    @property
    def members(self) -> Mapping[str, object]: ...


def store_targets(
    group: Assigning,
    targets: Targets,
    epoch: int,
    now: Now,
    is_there: Callable[[], bool],
    records: TargetRecords,
) -> Pieces:
    """Store the targets of a large group in pieces, and behind them that they hold.

    Parameters: `is_there` says whether the group still is the one of its name.
    """
    changed = iter(targets.items())
    while some := list(islice(changed, RECORDS_AT_ONCE)):
        result: Result[None] = Result()
        for member_id, target in some:
            if member_id in group.members and target != group.targets.get(member_id):
                result.records.append(records.target(group.id, member_id, target))
        result.on_failure = _give_up(group)
        yield result if result.records else None
        if not (is_there() and group.is_assigning):
            return
    group.is_assigning = False
    result = Result()
    result.records.append(records.epoch(group.id, epoch, now.log_ms))
    result.on_failure = _give_up(group)
    yield result


def is_still(groups: Mapping[str, object], group: Assigning) -> bool:
    """Whether a group still is the one of its name."""
    return groups.get(group.id) is group


def _give_up(group: Assigning) -> Callable[..., Result[None]]:
    def stop(code: object, now: Now) -> Result[None]:
        group.is_assigning = False  # the next heartbeat begins again
        return Result()

    return stop


def all_of(work: Generator[None, None, R]) -> R:
    """Do work that comes in pieces at once."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
