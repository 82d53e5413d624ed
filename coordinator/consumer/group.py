"""A consumer group (KIP-848) and its members: their data and queries on it.

The *group epoch* is bumped whenever a new assignment is needed, because subscriptions or topics
have changed. The *target assignment* is computed for one group epoch. Each member reconciles to its
target independently: it first revokes partitions, and then gets partitions that others have
revoked. The *member epoch* shows its progress and fences it: a commit or a heartbeat with an older
epoch comes from a member that has missed a change.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from ..common.modern_group import (
    FIRST_EPOCH,
    NO_TARGET,
    NOTHING,
    Assigned,
    MemberState,
    Target,
    add_to,
    changed_counts,
)
from ..common.static_members import drop_static, put_static


class ConsumerGroupState(StrEnum):
    """State of a consumer group, with the names of the protocol."""

    EMPTY = "Empty"
    # The group epoch is newer than the target assignment.
    ASSIGNING = "Assigning"
    # Members are reconciling to their targets.
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ResolvedRegularExpression(NamedTuple):
    """Topics that match a regular expression, as of `at_ms` (ms since 1970)."""

    topics: frozenset[str]
    version: int
    at_ms: int


class ClassicMemberMetadata(NamedTuple):
    """Classic-protocol metadata of a member (timeout in ms, preferred protocol first)."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class ConsumerGroupMember(NamedTuple):
    """A member of a consumer group. Timeouts are in milliseconds.

    Attributes:
        pattern: A regular expression in RE2 syntax; None or "" if there is no pattern.
        classic: Classic metadata, while the member uses the classic protocol.
        previous_epoch: Also accepted in a heartbeat that shows that its response was lost.
        assigned: Partitions that the member may use.
        revoking: Partitions that the member has been asked to revoke.
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
    classic: ClassicMemberMetadata | None = None
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Assigned = NOTHING
    revoking: Assigned = NOTHING

    def is_reconciled_to(self, epoch: int) -> bool:
        """Return True if the member has all partitions of the target of an epoch."""
        return self.state is MemberState.STABLE and self.epoch == epoch

    def assigned_in_epoch(self, topic_id: UUID, partition: int) -> int | None:
        """Return the epoch in which the member got a partition, or None if it does not have it."""
        for partitions in (self.assigned.get(topic_id), self.revoking.get(topic_id)):
            if partitions is not None and partition in partitions:
                return partitions[partition]
        return None


class ConsumerGroup:
    """A consumer group, as stored in its records.

    Members are ordered by the time when they joined. Aggregates over members (subscriptions,
    assignors, partition holders) are maintained incrementally, because each heartbeat reads them.
    The volatile attributes are not stored, and have their initial values after loading.
    """

    __slots__ = (
        "assigned_at_ms",
        "assignment_epoch",
        "assignors",
        "classic_count",
        "described",
        "epoch",
        "has_topics_record",
        "held",
        "id",
        "is_assigning",
        "is_resolving",
        "last_heartbeat_ms",
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
        # Time of the target assignment in ms since 1970, or 0 if there is none or its time is unknown.
        self.assigned_at_ms = 0
        self.members: dict[str, ConsumerGroupMember] = {}
        self.targets: dict[str, Target] = {}
        self.resolved: dict[str, ResolvedRegularExpression] = {}
        self.has_topics_record = False
        # Member IDs by instance ID.
        self.static_ids: dict[str, str] = {}
        # Number of members that subscribe to a topic by name.
        self.topics: dict[str, int] = {}
        self.patterns: dict[str, int] = {}
        self.assignors: dict[str, int] = {}
        # Number of members that use the classic protocol.
        self.classic_count = 0
        # Member to which each partition is assigned, or that must still revoke it.
        self.held: dict[UUID, dict[int, str]] = {}
        # Members that have not reached the epoch of the target assignment.
        self.unreconciled: set[str] = set()
        # Volatile:
        # Time of each member's last heartbeat, in ms of the monotonic clock.
        self.last_heartbeat_ms: dict[str, int] = {}
        # Version of the cluster's topics against which patterns were last resolved.
        self.patterns_version = -1
        # Version of the cluster's topics that the group has last processed.
        self.topics_version = -1
        # True while a target assignment is computed in the background.
        self.is_assigning = False
        # True while regular expressions are resolved in the background.
        self.is_resolving = False
        # Identity of each member's client, by member ID, if ACLs may hide topics from it.
        self.viewers: dict[str, Hashable] = {}
        # Topics that match a pattern and that a client may describe, by pattern and client
        # identity. `version` is the version of the cluster's topics.
        self.described: dict[tuple[str, Hashable], ResolvedRegularExpression] = {}

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
        """Add or update a member."""
        old = self.members.get(member.id)
        if old is not None:
            self._count(old, -1)
            if old.assigned != member.assigned or old.revoking != member.revoking:
                self._clear_holder(old)
                self._set_holder(member)
        else:
            self._set_holder(member)
        self.members[member.id] = member
        self._count(member, 1)
        put_static(self.static_ids, old, member)
        self._update_unreconciled(member)

    def remove(self, member_id: str) -> None:
        """Remove a member, if it exists."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count(member, -1)
            self._clear_holder(member)
            drop_static(self.static_ids, member)
            self.unreconciled.discard(member_id)
            self.last_heartbeat_ms.pop(member_id, None)
            self.viewers.pop(member_id, None)

    def static_member(self, instance_id: str | None) -> ConsumerGroupMember | None:
        member_id = None if instance_id is None else self.static_ids.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def is_full_for(self, member_id: str, instance_id: str | None, size_max: int) -> bool:
        """Return True if the group has no room for a member, unless it is a member already.

        A static member that joins again takes the place of its predecessor.
        """
        is_known = member_id in self.members or self.static_member(instance_id) is not None
        return len(self.members) >= size_max and not is_known

    def set_assignment_epoch(self, epoch: int, at_ms: int) -> None:
        """Set the epoch of the target assignment and the time at which it was computed (ms since 1970)."""
        self.assignment_epoch = epoch
        self.assigned_at_ms = at_ms
        self.unreconciled = {
            member.id for member in self.members.values() if not member.is_reconciled_to(epoch)
        }

    def target_of(self, member: ConsumerGroupMember) -> Target:
        """Return the target of a member; a returning static member has the target of its old ID."""
        target = self.targets.get(member.id)
        if target is None and member.instance_id is not None:
            target = self.targets.get(self.static_ids.get(member.instance_id, ""))
        return NO_TARGET if target is None else target

    def holder(self, topic_id: UUID, partition: int) -> str | None:
        """Return the ID of the member that has a partition or must still revoke it."""
        return self.held.get(topic_id, {}).get(partition)

    # -- subscriptions

    def subscribes(self, topic: str) -> bool:
        """Return True if a member subscribes to a topic."""
        return topic in self.topics or any(topic in each.topics for each in self.resolved.values())

    def drop_pattern(self, pattern: str) -> None:
        """Forget the topics of a pattern that no member has any more.

        Otherwise the next member with this pattern would find them known to its client, and they
        would never be stored for the group.
        """
        self.resolved.pop(pattern, None)
        for key in [each for each in self.described if each[0] == pattern]:
            del self.described[key]

    def topics_after(
        self,
        old: ConsumerGroupMember | None,
        new: ConsumerGroupMember | None,
        resolved: Mapping[str, ResolvedRegularExpression],
    ) -> set[str]:
        """Return all subscribed topics after `new` has replaced `old`."""
        counts = changed_counts(self.topics, old.topics if old else (), new.topics if new else ())
        patterns = changed_counts(
            self.patterns,
            (old.pattern,) if old and old.pattern else (),
            (new.pattern,) if new and new.pattern else (),
        )
        return _topics(counts, patterns, resolved)

    def topics_without(self, removed: Collection[ConsumerGroupMember]) -> set[str]:
        """Return all subscribed topics after the removal of members."""
        counts = changed_counts(self.topics, [t for each in removed for t in each.topics], ())
        return _topics(counts, self.patterns_without(removed), self.resolved)

    def patterns_without(self, removed: Collection[ConsumerGroupMember]) -> dict[str, int]:
        """Return the number of members with each pattern after the removal of members."""
        return changed_counts(self.patterns, [e.pattern for e in removed if e.pattern], ())

    def assignor_after(
        self, old: ConsumerGroupMember | None, new: ConsumerGroupMember | None
    ) -> str | None:
        """Return the most common assignor; in a tie, the alphabetically last one, as in Kafka."""
        counts = changed_counts(
            self.assignors,
            (old.assignor,) if old and old.assignor else (),
            (new.assignor,) if new and new.assignor else (),
        )
        return max(counts, key=lambda name: (counts[name], name), default=None)

    def topics_of(
        self, member: ConsumerGroupMember, resolved: Mapping[str, ResolvedRegularExpression]
    ) -> frozenset[str]:
        """Return the topics that a member subscribes to, by name or by its pattern.

        After a move of the coordinator, the client of a member is unknown until its next heartbeat.
        Until then, the member is assumed to subscribe to all topics that match its pattern and that
        any member with this pattern may describe.
        """
        if not member.pattern:
            return member.topics
        found = self.described.get((member.pattern, self.viewers.get(member.id)))
        found = found or resolved.get(member.pattern)
        return member.topics if found is None else member.topics | found.topics

    # -- aggregates over members

    def _count(self, member: ConsumerGroupMember, by: int) -> None:
        for topic in member.topics:
            add_to(self.topics, topic, by)
        if member.pattern:
            add_to(self.patterns, member.pattern, by)
        if member.assignor:
            add_to(self.assignors, member.assignor, by)
        if member.classic is not None:
            self.classic_count += by

    def _update_unreconciled(self, member: ConsumerGroupMember) -> None:
        if member.is_reconciled_to(self.assignment_epoch):
            self.unreconciled.discard(member.id)
        else:
            self.unreconciled.add(member.id)

    def _set_holder(self, member: ConsumerGroupMember) -> None:
        for topic_id, partition in _partitions(member):
            self.held.setdefault(topic_id, {})[partition] = member.id

    def _clear_holder(self, member: ConsumerGroupMember) -> None:
        for topic_id, partition in _partitions(member):
            holders = self.held.get(topic_id)
            # Another member already has the partition if a damaged log lacks the record with which
            # this member revoked it.
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
    """Return True if both assignments have the same partitions, regardless of the epochs."""
    if one is other:
        return True
    return one.keys() == other.keys() and all(one[key].keys() == other[key].keys() for key in one)


def _topics(
    names: Iterable[str],
    patterns: Iterable[str],
    resolved: Mapping[str, ResolvedRegularExpression],
) -> set[str]:
    """Return the topics that are subscribed to by name or by a resolved pattern."""
    topics = set(names)
    for pattern in patterns:
        found = resolved.get(pattern)
        if found is not None:
            topics |= found.topics
    return topics
