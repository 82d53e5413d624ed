"""Target assignments of share groups (KIP-932)."""

from __future__ import annotations

from collections.abc import Collection, Generator
from collections.abc import Set as AbstractSet
from functools import partial
from uuid import UUID

from ..common.assignor import MemberSubscription, Targets
from ..common.modern_group import NO_TARGET, Target
from ..common.record import CoordinatorRecord
from ..common.result import Now, Pieces
from ..common.settings import ShareGroupSettings
from ..common.target_assignments import (
    MEMBERS_AT_ONCE,
    SUBSCRIBED_AT_ONCE,
    SYNCHRONOUS_WORK_MAX,
    TargetRecords,
    is_current_group,
    is_within_interval,
    run_to_end,
    store_targets,
)
from ..common.topics import KnownTopics
from ..state import ShardState
from .assignor import Assignable, assign_simply
from .group import ShareGroup, ShareGroupMember
from .records import target_epoch_record, target_record


class ShareStep:
    """Changes of a share group by one heartbeat.

    Attributes:
        group: The group before the step. It may not be in the state yet.
        records: Records to store.
        before, member: The member before the step (empty if it is new) and after it.
        epoch: Group epoch after the step.
        topics: Topics to which members subscribe after the step.
        work: Work to do in the background once the records are stored.
    """

    __slots__ = ("before", "epoch", "group", "member", "records", "topics", "work")

    def __init__(self, group: ShareGroup, records: list[CoordinatorRecord]) -> None:
        self.group = group
        self.records = records
        self.before = self.member = ShareGroupMember("")
        self.epoch = group.epoch
        self.topics: AbstractSet[str] = frozenset()
        self.work: Pieces | None = None

    @property
    def is_new(self) -> bool:
        """True if the group does not contain the member yet."""
        return self.member.id not in self.group.members

    def members(self) -> list[ShareGroupMember]:
        """Return all members after the step."""
        others = [each for each in self.group.members.values() if each.id != self.member.id]
        return [*others, self.member]


class ShareTargetAssignments:
    """Target assignments of the share groups of one shard."""

    def __init__(self, state: ShardState, topics: KnownTopics) -> None:
        self._state = state
        self._topics = topics

    def update_target(
        self, step: ShareStep, now: Now, settings: ShareGroupSettings
    ) -> tuple[int, Target]:
        """Return the epoch and the target of the member, computing a new target if it is due."""
        group = step.group
        known = group.target_of(step.member.id)
        if step.epoch <= group.assignment_epoch or group.is_assigning:
            return group.assignment_epoch, known
        if is_within_interval(group.assigned_at_ms, settings.assignment_interval_ms, now):
            return group.assignment_epoch, known
        members = step.members()
        topics = self._assignable(group, step.topics)
        size = sum(map(len, topics.values())) + sum(len(each.topics) for each in members)
        if size > SYNCHRONOUS_WORK_MAX:
            step.work = self._compute_in_background(group.id, now)
            return group.assignment_epoch, known
        targets = run_to_end(self._compute_targets(group, members, topics))
        for member_id, target in targets.items():
            if target != group.targets.get(member_id):
                step.records.append(target_record(group.id, member_id, target))
        step.records.append(target_epoch_record(group.id, step.epoch, now.log_ms))
        return step.epoch, targets[step.member.id]

    def _assignable(self, group: ShareGroup, names: AbstractSet[str]) -> Assignable:
        """Return the assignable partitions: those that have an initialized state."""
        topics: dict[UUID, Collection[int]] = {}
        for topic_id, shape in self._topics.shapes_of(names).items():
            topic = group.shared.initialized.get(topic_id)
            topics[topic_id] = (
                ()
                if topic is None
                else [each for each in topic.partitions if each < shape.partitions]
            )
        return topics

    def _compute_targets(
        self, group: ShareGroup, members: Collection[ShareGroupMember], topics: Assignable
    ) -> Generator[None, None, Targets]:
        """Run the assignor in pieces."""
        previous = dict(group.targets)
        ids: dict[frozenset[str], frozenset[UUID]] = {}
        subscribers: dict[str, MemberSubscription] = {}
        work = 0
        for member in members:
            if member.topics not in ids:
                ids[member.topics] = self._topics.ids_of(member.topics)
                work += len(member.topics)
            subscribers[member.id] = MemberSubscription(
                ids[member.topics], previous.get(member.id, NO_TARGET), None, member.rack_id
            )
            work += SUBSCRIBED_AT_ONCE // MEMBERS_AT_ONCE
            if work >= SUBSCRIBED_AT_ONCE:
                work = 0
                yield
        return (yield from assign_simply(subscribers, topics))

    def _compute_in_background(self, group_id: str, now: Now) -> Pieces:
        """Compute the target of a large group in pieces, for the group epoch at the start."""
        group = self._state.find_group(group_id, ShareGroup)
        if group is None or group.is_assigning:
            return
        group.is_assigning = True
        epoch = group.epoch
        topics = self._assignable(group, group.topics.keys())
        targets = yield from self._compute_targets(group, tuple(group.members.values()), topics)
        is_current = partial(is_current_group, self._state.groups, group)
        records = TargetRecords(target_record, target_epoch_record)
        yield from store_targets(group, targets, epoch, now, is_current, records)
