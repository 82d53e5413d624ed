"""Values that consumer groups, share groups and streams groups have in common (KIP-848)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, TypeVar
from uuid import UUID

K = TypeVar("K")

Target: TypeAlias = Mapping[UUID, AbstractSet[int]]
"""Partitions by topic."""
Assigned: TypeAlias = Mapping[UUID, Mapping[int, int]]
"""Partitions by topic, each with the epoch in which its member got it."""
NOTHING: Mapping[UUID, dict[int, int]] = MappingProxyType({})
NO_TARGET: Mapping[UUID, frozenset[int]] = MappingProxyType({})
LEAVES, LEAVES_FOR_A_WHILE, JOINS = -1, -2, 0
"""Epochs of a heartbeat that say what a member wants; the second one is of static members."""
NO_EPOCH = -1
"""Epoch of a member or an assignment without a record."""
FIRST_EPOCH = 1
"""Of a group without records."""
NAME_LENGTH_MAX = 1_000
"""Of the ids that a member gives itself; clients send UUIDs."""
SUBSCRIPTION_MAX = 10_000
"""Topics that one member may name."""


class MemberState(Enum):
    """How far a member is; the values are those of its record."""

    STABLE = 0
    UNREVOKED = 1
    """It has to give partitions back, and has not said that it has."""
    UNRELEASED = 2
    """It waits for partitions that others have to give back."""
    UNKNOWN = 127
    """Of a later release; the member has to begin anew."""


class AssignedGroup(Protocol):
    """A group whose targets were made for one of its epochs."""

    def set_assignment_epoch(self, epoch: int, at_ms: int) -> None: ...


def put_assignment(group: AssignedGroup, key: object, value: Any) -> None:
    """Replay the record of the epoch for which the targets were made."""
    group.set_assignment_epoch(value.assignment_epoch, value.assignment_timestamp)


def delete_assignment(group: AssignedGroup, key: object) -> None:
    """Replay the tombstone of that record."""
    group.set_assignment_epoch(NO_EPOCH, 0)


def add_to(counts: dict[K, int], name: K, by: int) -> None:
    """Count something; what comes to nothing is let go."""
    count = counts.get(name, 0) + by
    if count:
        counts[name] = count
    else:
        del counts[name]


def changed_counts(
    counts: Mapping[str, int], less: Iterable[str], more: Iterable[str]
) -> dict[str, int]:
    """The counts with some names less and some more."""
    changed = dict(counts)
    for name in less:
        add_to(changed, name, -1)
    for name in more:
        add_to(changed, name, 1)
    return changed


class UnknownMemberState(Exception):
    """The state of a member is one of a later release: it has to begin anew without partitions."""
