"""Reconciliation: steps of a consumer group member from its assignment to its target (KIP-848).

Each heartbeat makes one step:

1. Partitions that are not in the target move from `assigned` to `revoking`. The member learns this
   from the shorter assignment. It keeps its epoch until it reports that it no longer owns them.
2. The member then moves to the epoch of the target and gets the partitions that no other member
   has. It gets the rest in later heartbeats, when other members have revoked them.

So no partition is assigned to two members at the same time. A slow member only delays the members
that wait for its partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import TypeAlias
from uuid import UUID

from ..common.modern_group import NOTHING, Assigned, MemberState, Target, UnknownMemberState
from .group import ConsumerGroupMember

# Partitions that a member reports as owned.
Owned: TypeAlias = Mapping[UUID, AbstractSet[int]]
# Returns the ID of the member to which a partition is assigned or that must still revoke it.
Holder: TypeAlias = Callable[[UUID, int], str | None]


def reconcile(
    member: ConsumerGroupMember,
    epoch: int,
    target: Target,
    subscribed: AbstractSet[UUID],
    owned: Owned | None,
    holder: Holder,
    *,
    has_new_subscription: bool,
) -> ConsumerGroupMember:
    """Return the member after its next step, or the same member if it has to wait.

    Args:
        member: The member, including the changes of its heartbeat.
        epoch: Group epoch for which the target was computed.
        target: Target of the member.
        subscribed: Topics of the member's current subscription. The target may be older.
        owned: Partitions that the member reports as owned; None if it reports nothing, as in most
            heartbeats.
        holder: Returns the member that has a partition.
        has_new_subscription: True if the subscription has changed.

    Raises:
        UnknownMemberState: The stored state is unknown and the member still owns partitions.
    """
    if member.state is MemberState.UNKNOWN:
        if owned is None or any(owned.values()):
            raise UnknownMemberState
        return _advance(member, epoch, epoch, target, subscribed, owned, holder)
    if member.state is MemberState.UNREVOKED and _owns_any(owned, member.revoking):
        return _unsubscribe(member, subscribed, owned) if has_new_subscription else member
    if member.is_reconciled_to(epoch):
        return _unsubscribe(member, subscribed, owned) if has_new_subscription else member
    return _advance(member, member.epoch, epoch, target, subscribed, owned, holder)


def _advance(
    member: ConsumerGroupMember,
    own_epoch: int,
    epoch: int,
    target: Target,
    subscribed: AbstractSet[UUID],
    owned: Owned | None,
    holder: Holder,
) -> ConsumerGroupMember:
    """Return the member after a step towards the target, as far as it is possible now."""
    target = {topic_id: target[topic_id] for topic_id in target if topic_id in subscribed}
    kept: dict[UUID, dict[int, int]] = {}
    revoking: dict[UUID, dict[int, int]] = {}
    for topic_id, partitions in member.assigned.items():
        stays = target.get(topic_id, frozenset())
        _put_unless_empty(
            kept, topic_id, {each: partitions[each] for each in partitions if each in stays}
        )
        _put_unless_empty(
            revoking, topic_id, {e: partitions[e] for e in partitions if e not in stays}
        )
    if revoking and _owns_any(owned, revoking):
        return _with_assignment(member, own_epoch, MemberState.UNREVOKED, kept, revoking)
    waits = False
    for topic_id, wanted in target.items():
        known = kept.get(topic_id, {})
        new = [each for each in sorted(wanted) if each not in known]
        # Partitions that this member has just revoked are free.
        free = [each for each in new if holder(topic_id, each) in (None, member.id)]
        waits = waits or len(free) < len(new)
        _put_unless_empty(kept, topic_id, known | dict.fromkeys(free, epoch))
    state = MemberState.UNRELEASED if waits else MemberState.STABLE
    return _with_assignment(member, epoch, state, kept, NOTHING)


def _unsubscribe(
    member: ConsumerGroupMember, subscribed: AbstractSet[UUID], owned: Owned | None
) -> ConsumerGroupMember:
    """Revoke partitions of unsubscribed topics before a new target is computed."""
    if all(topic_id in subscribed for topic_id in member.assigned):
        return member
    kept = {each: member.assigned[each] for each in member.assigned if each in subscribed}
    revoking = {topic_id: dict(partitions) for topic_id, partitions in member.revoking.items()}
    for topic_id, partitions in member.assigned.items():
        if topic_id not in subscribed:
            revoking.setdefault(topic_id, {}).update(partitions)
    if _owns_any(owned, revoking):
        return _with_assignment(member, member.epoch, MemberState.UNREVOKED, kept, revoking)
    return _with_assignment(member, member.epoch, member.state, kept, member.revoking)


def _with_assignment(
    member: ConsumerGroupMember,
    epoch: int,
    state: MemberState,
    assigned: Assigned,
    revoking: Assigned,
) -> ConsumerGroupMember:
    return member._replace(
        previous_epoch=member.epoch,
        epoch=epoch,
        state=state,
        assigned=assigned,
        revoking=revoking,
    )


def _owns_any(owned: Owned | None, revoking: Assigned) -> bool:
    """Return True if a member still owns partitions to revoke, or does not report any."""
    if owned is None:
        return True
    for topic_id, partitions in revoking.items():
        if not partitions.keys().isdisjoint(owned.get(topic_id, ())):
            return True
    return False


def _put_unless_empty(
    into: dict[UUID, dict[int, int]], topic_id: UUID, partitions: dict[int, int]
) -> None:
    if partitions:
        into[topic_id] = partitions
