"""A consumer group of KIP-848 and its members: the data, and the questions that it can answer.

A group has an *epoch*, which rises whenever partitions are to be shared anew: who reads what has
changed, or the topics have. The *target* says what each member shall have; it is computed for one
epoch of the group. Each member goes to its target by itself: it gives back first what is not its own
any more, and takes what others have given back. Its own epoch says how far it has come, and fences
it: an offset or a heartbeat of an older epoch is one of a member that has missed something.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from ..common.modern_group import (
    FIRST_EPOCH,
    LEAVES_FOR_A_WHILE,
    NO_TARGET,
    NOTHING,
    Assigned,
    MemberState,
    Target,
    add_to,
    changed_counts,
)


class ConsumerGroupState(StrEnum):
    """Where a group stands; the values are the names on the wire."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    """Its epoch is newer than its target."""
    RECONCILING = "Reconciling"
    """Members are on the way to their targets."""
    STABLE = "Stable"


class ResolvedRegularExpression(NamedTuple):
    """Topics that match a regular expression, as of `at_ms` (log time)."""

    topics: frozenset[str]
    version: int
    at_ms: int


class ClassicMemberMetadata(NamedTuple):
    """Classic-protocol metadata of a member (timeout in ms, preferred protocol first)."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class ConsumerGroupMember(NamedTuple):
    """One member. Timeouts are ms; `classic` is set while it uses the classic protocol.

    `assigned` is what it may use; what is in `revoking` it has been told to give back.
    """

    id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    topics: frozenset[str] = frozenset()
    pattern: str | None = None
    """A regular expression (RE2); None and "" are none."""
    classic: ClassicMemberMetadata | None = None
    epoch: int = 0
    previous_epoch: int = 0
    """Of which a heartbeat is taken as well, when it shows that the answer to it was lost."""
    state: MemberState = MemberState.STABLE
    assigned: Assigned = NOTHING
    revoking: Assigned = NOTHING

    @property
    def has_left_for_a_while(self) -> bool:
        return self.epoch == LEAVES_FOR_A_WHILE

    def is_reconciled_to(self, epoch: int) -> bool:
        """Whether it has all that the target of an epoch gives it."""
        return self.state is MemberState.STABLE and self.epoch == epoch

    def got_in(self, topic_id: UUID, partition: int) -> int | None:
        """The epoch in which it got a partition that it has or gives back; None of any other one."""
        for partitions in (self.assigned.get(topic_id), self.revoking.get(topic_id)):
            if partitions is not None and partition in partitions:
                return partitions[partition]
        return None


class ConsumerGroup:
    """One consumer group, as its records say.

    Members keep the order in which they came. What members have in common (subscriptions, assignors,
    who holds which partition) is counted as they change, because each heartbeat asks for it. The
    attributes under "volatile" are not kept anywhere, and begin anew after a restart.
    """

    __slots__ = (
        "assigned_at_ms",
        "assignment_epoch",
        "assignors",
        "classic_count",
        "described",
        "epoch",
        "has_topics_record",
        "heard_ms",
        "held",
        "id",
        "is_assigning",
        "is_resolving",
        "members",
        "metadata_hash",
        "patterns",
        "patterns_version",
        "resolved",
        "static_ids",
        "targets",
        "topics",
        "topics_version",
        "unreconciled",
        "viewers",
    )

    def __init__(self, group_id: str) -> None:
        self.id = group_id
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.assigned_at_ms = 0
        """Log time of the target, 0 if there is none or its time is not known."""
        self.members: dict[str, ConsumerGroupMember] = {}
        self.targets: dict[str, Target] = {}
        self.resolved: dict[str, ResolvedRegularExpression] = {}
        self.has_topics_record = False
        self.static_ids: dict[str, str] = {}
        """Instance id to member id."""
        self.topics: dict[str, int] = {}
        """How many members subscribe to a topic by its name."""
        self.patterns: dict[str, int] = {}
        self.assignors: dict[str, int] = {}
        self.classic_count = 0
        """How many members use the classic protocol."""
        self.held: dict[UUID, dict[int, str]] = {}
        """Who has each partition, or has to give it back."""
        self.unreconciled: set[str] = set()
        """Members that are not stable at the epoch of the target."""
        # Volatile:
        self.heard_ms: dict[str, int] = {}
        """When each member was last heard of, in coordinator time."""
        self.patterns_version = -1
        """As `topics_version`, when patterns were held against the topics."""
        self.topics_version = -1
        """The version of the cluster's topics that the group has seen."""
        self.is_assigning = False
        """A target is being computed beside clients."""
        self.is_resolving = False
        """Regular expressions are being resolved beside clients."""
        self.viewers: dict[str, Hashable] = {}
        """Client on whose behalf each member asks, by member ID, where topics may be hidden from it."""
        self.described: dict[tuple[str, Hashable], ResolvedRegularExpression] = {}
        """Topics of a pattern that a client may describe; `version` is that of the cluster's topics."""

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if self.unreconciled:
            return ConsumerGroupState.RECONCILING
        return ConsumerGroupState.STABLE

    # -- members

    def put(self, member: ConsumerGroupMember) -> None:
        """A member is new, or is different now."""
        old = self.members.get(member.id)
        if old is not None:
            self._count(old, -1)
            if old.assigned != member.assigned or old.revoking != member.revoking:
                self._release(old)
                self._hold(member)
            if old.instance_id is not None and old.instance_id != member.instance_id:
                self._drop_static(old)
        else:
            self._hold(member)
        self.members[member.id] = member
        self._count(member, 1)
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member.id
        self._note_progress(member)

    def remove(self, member_id: str) -> None:
        """A member is gone, if it was one."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count(member, -1)
            self._release(member)
            self._drop_static(member)
            self.unreconciled.discard(member_id)
            self.heard_ms.pop(member_id, None)
            self.viewers.pop(member_id, None)

    def static_member(self, instance_id: str | None) -> ConsumerGroupMember | None:
        member_id = None if instance_id is None else self.static_ids.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def set_assignment_epoch(self, epoch: int, at_ms: int) -> None:
        """The targets are those of an epoch, made at a log time."""
        self.assignment_epoch = epoch
        self.assigned_at_ms = at_ms
        self.unreconciled = {
            member.id for member in self.members.values() if not member.is_reconciled_to(epoch)
        }

    def target_of(self, member: ConsumerGroupMember) -> Target:
        """What a member shall have; one that takes the place of a static member has its target."""
        target = self.targets.get(member.id)
        if target is None and member.instance_id is not None:
            target = self.targets.get(self.static_ids.get(member.instance_id, ""))
        return NO_TARGET if target is None else target

    def holder(self, topic_id: UUID, partition: int) -> str | None:
        """The id of the member that has a partition, or has to give it back."""
        return self.held.get(topic_id, {}).get(partition)

    # -- subscriptions

    def subscribes(self, topic: str) -> bool:
        """Whether a member reads a topic."""
        return topic in self.topics or any(topic in each.topics for each in self.resolved.values())

    def topics_after(
        self,
        old: ConsumerGroupMember | None,
        new: ConsumerGroupMember | None,
        resolved: Mapping[str, ResolvedRegularExpression],
    ) -> set[str]:
        """What is subscribed to by anybody when `new` has taken the place of `old`."""
        counts = changed_counts(self.topics, old.topics if old else (), new.topics if new else ())
        patterns = changed_counts(
            self.patterns,
            (old.pattern,) if old and old.pattern else (),
            (new.pattern,) if new and new.pattern else (),
        )
        topics = set(counts)
        for pattern in patterns:
            found = resolved.get(pattern)
            if found is not None:
                topics |= found.topics
        return topics

    def assignor_after(
        self, old: ConsumerGroupMember | None, new: ConsumerGroupMember | None
    ) -> str | None:
        """The assignor that most members ask for; of two, `uniform` among equals, as in Kafka."""
        counts = changed_counts(
            self.assignors,
            (old.assignor,) if old and old.assignor else (),
            (new.assignor,) if new and new.assignor else (),
        )
        return max(counts, key=lambda name: (counts[name], name), default=None)

    def read_by(
        self, member: ConsumerGroupMember, resolved: Mapping[str, ResolvedRegularExpression]
    ) -> frozenset[str]:
        """Return the topics that a member subscribes to, by name or by its pattern.

        A member whose client is not known yet, after a move of the coordinator, is taken to read
        what any member with its pattern may describe.
        """
        if not member.pattern:
            return member.topics
        found = self.described.get((member.pattern, self.viewers.get(member.id)))
        found = found or resolved.get(member.pattern)
        return member.topics if found is None else member.topics | found.topics

    # -- what members have in common

    def _count(self, member: ConsumerGroupMember, by: int) -> None:
        for topic in member.topics:
            add_to(self.topics, topic, by)
        if member.pattern:
            add_to(self.patterns, member.pattern, by)
        if member.assignor:
            add_to(self.assignors, member.assignor, by)
        if member.classic is not None:
            self.classic_count += by

    def _note_progress(self, member: ConsumerGroupMember) -> None:
        if member.is_reconciled_to(self.assignment_epoch):
            self.unreconciled.discard(member.id)
        else:
            self.unreconciled.add(member.id)

    def _drop_static(self, member: ConsumerGroupMember) -> None:
        # A static member that came back has another id, and its name by now.
        if member.instance_id is not None and self.static_ids.get(member.instance_id) == member.id:
            del self.static_ids[member.instance_id]

    def _hold(self, member: ConsumerGroupMember) -> None:
        for topic_id, partition in _partitions(member):
            self.held.setdefault(topic_id, {})[partition] = member.id

    def _release(self, member: ConsumerGroupMember) -> None:
        for topic_id, partition in _partitions(member):
            holders = self.held.get(topic_id)
            # In a log that was cut short somebody else may have it already.
            if holders is not None and holders.get(partition) == member.id:
                del holders[partition]
                if not holders:
                    del self.held[topic_id]


def _partitions(member: ConsumerGroupMember) -> Iterator[tuple[UUID, int]]:
    for part in (member.assigned, member.revoking):
        for topic_id, partitions in part.items():
            for partition in partitions:
                yield topic_id, partition


def same_partitions(one: Assigned, other: Assigned) -> bool:
    """Whether two members have the same partitions, whenever they got them."""
    if one is other:
        return True
    return one.keys() == other.keys() and all(one[key].keys() == other[key].keys() for key in one)
