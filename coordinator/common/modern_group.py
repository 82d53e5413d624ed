"""Types and helpers shared by consumer groups, share groups and streams groups (KIP-848)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, TypeVar
from uuid import UUID

K = TypeVar("K")

# Partitions by topic ID.
Target: TypeAlias = Mapping[UUID, AbstractSet[int]]
# Partitions by topic ID, each with the epoch in which the member got it.
Assigned: TypeAlias = Mapping[UUID, Mapping[int, int]]
NOTHING: Mapping[UUID, dict[int, int]] = MappingProxyType({})
NO_TARGET: Mapping[UUID, frozenset[int]] = MappingProxyType({})
# Member epochs with which a heartbeat leaves (permanently, or temporarily as a static member) or
# joins the group.
LEAVE_GROUP_MEMBER_EPOCH, LEAVE_GROUP_STATIC_MEMBER_EPOCH, JOIN_GROUP_MEMBER_EPOCH = -1, -2, 0
# Epoch of a member or an assignment that has no record.
NO_EPOCH = -1
# Epoch of a group that has no records.
FIRST_EPOCH = 1
# Maximum length, in characters, of an ID that a member chooses. Clients send UUIDs.
NAME_LENGTH_MAX = 1_000
# Maximum number of topics in the subscription of one member.
SUBSCRIPTION_MAX = 10_000


class MemberState(Enum):
    """Reconciliation state of a member, with the values of the member record."""

    STABLE = 0
    # The member must revoke partitions and has not confirmed the revocation yet.
    UNREVOKED = 1
    # The member waits for partitions that other members must revoke first.
    UNRELEASED = 2
    # The state was written by a later release; the member must rejoin.
    UNKNOWN = 127


class AssignedGroup(Protocol):
    """A group with a target assignment that was computed for one of the group's epochs."""

    def set_assignment_epoch(self, epoch: int, at_ms: int) -> None: ...


def put_assignment(group: AssignedGroup, key: object, value: Any) -> None:
    """Replay the record of the target assignment's epoch."""
    group.set_assignment_epoch(value.assignment_epoch, value.assignment_timestamp)


def delete_assignment(group: AssignedGroup, key: object) -> None:
    """Replay the tombstone of the target assignment's epoch."""
    group.set_assignment_epoch(NO_EPOCH, 0)


def add_to(counts: dict[K, int], name: K, by: int) -> None:
    """Change a count, and remove the entry if the count becomes 0."""
    count = counts.get(name, 0) + by
    if count:
        counts[name] = count
    else:
        del counts[name]


def changed_counts(
    counts: Mapping[str, int], less: Iterable[str], more: Iterable[str]
) -> dict[str, int]:
    """Return a copy of `counts` with some names decremented and others incremented."""
    changed = dict(counts)
    for name in less:
        add_to(changed, name, -1)
    for name in more:
        add_to(changed, name, 1)
    return changed


class UnknownMemberState(Exception):
    """A member's stored state was written by a later release; the member must rejoin."""
