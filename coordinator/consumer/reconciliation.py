"""How a member of a consumer group gets from what it has to its target (KIP-848).

Each step is made by a heartbeat. What a member has and its target does not is taken from `assigned`
and goes to `revoking`; the member is told by the shorter assignment. It stays in its epoch until it
reports that it owns none of it any more. Then it is in the epoch of the target, and gets what of it
nobody else has; the rest comes in later heartbeats, as others give it back. So no partition is ever
assigned to two members, and one slow member holds up those alone that wait for its partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import TypeAlias
from uuid import UUID

from ..common.modern_group import NOTHING, Assigned, MemberState, Target, UnknownMemberState
from .group import ConsumerGroupMember

Owned: TypeAlias = Mapping[UUID, AbstractSet[int]]
"""What a member says that it owns."""
Holder: TypeAlias = Callable[[UUID, int], str | None]
"""Which member has a partition, or has to give it back."""


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
    """The member after the next step towards its target; the same one when it has to wait.

    Parameters:
      member: As it is, with what its heartbeat has changed.
      epoch, target: What it shall have, and the epoch of the group for which that was computed.
      subscribed: The topics that it reads now. The target may be of a time when it read others.
      owned: What it says that it owns; None when it says nothing, as in most heartbeats.
      holder: Who has a partition.
      has_new_subscription: It reads other topics than before.

    Raises UnknownMemberState.
    """
    if member.state is MemberState.UNKNOWN:
        if owned is None or any(owned.values()):
            raise UnknownMemberState
        return _next(member, epoch, epoch, target, subscribed, owned, holder)
    if member.state is MemberState.UNREVOKED and _owns_any(owned, member.revoking):
        return _unsubscribe(member, subscribed, owned) if has_new_subscription else member
    if member.is_reconciled_to(epoch):
        return _unsubscribe(member, subscribed, owned) if has_new_subscription else member
    return _next(member, member.epoch, epoch, target, subscribed, owned, holder)


def _next(
    member: ConsumerGroupMember,
    own_epoch: int,
    epoch: int,
    target: Target,
    subscribed: AbstractSet[UUID],
    owned: Owned | None,
    holder: Holder,
) -> ConsumerGroupMember:
    """The step to what the target says, as far as it can be made now."""
    target = {topic_id: target[topic_id] for topic_id in target if topic_id in subscribed}
    kept: dict[UUID, dict[int, int]] = {}
    revoking: dict[UUID, dict[int, int]] = {}
    for topic_id, partitions in member.assigned.items():
        stays = target.get(topic_id, frozenset())
        _put(kept, topic_id, {each: partitions[each] for each in partitions if each in stays})
        _put(revoking, topic_id, {e: partitions[e] for e in partitions if e not in stays})
    if revoking and _owns_any(owned, revoking):
        return _changed(member, own_epoch, MemberState.UNREVOKED, kept, revoking)
    waits = False
    for topic_id, wanted in target.items():
        known = kept.get(topic_id, {})
        new = [each for each in sorted(wanted) if each not in known]
        # What it has just given back itself is free.
        free = [each for each in new if holder(topic_id, each) in (None, member.id)]
        waits = waits or len(free) < len(new)
        _put(kept, topic_id, known | dict.fromkeys(free, epoch))
    state = MemberState.UNRELEASED if waits else MemberState.STABLE
    return _changed(member, epoch, state, kept, NOTHING)


def _unsubscribe(
    member: ConsumerGroupMember, subscribed: AbstractSet[UUID], owned: Owned | None
) -> ConsumerGroupMember:
    """Take back what the member does not read any more, before there is a target that says so."""
    if all(topic_id in subscribed for topic_id in member.assigned):
        return member
    kept = {each: member.assigned[each] for each in member.assigned if each in subscribed}
    revoking = {topic_id: dict(partitions) for topic_id, partitions in member.revoking.items()}
    for topic_id, partitions in member.assigned.items():
        if topic_id not in subscribed:
            revoking.setdefault(topic_id, {}).update(partitions)
    if _owns_any(owned, revoking):
        return _changed(member, member.epoch, MemberState.UNREVOKED, kept, revoking)
    return _changed(member, member.epoch, member.state, kept, member.revoking)


def _changed(
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
    """Whether a member still has something to give back; it does unless it says otherwise."""
    if owned is None:
        return True
    for topic_id, partitions in revoking.items():
        if not partitions.keys().isdisjoint(owned.get(topic_id, ())):
            return True
    return False


def _put(into: dict[UUID, dict[int, int]], topic_id: UUID, partitions: dict[int, int]) -> None:
    if partitions:
        into[topic_id] = partitions
