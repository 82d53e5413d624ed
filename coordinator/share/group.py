"""A share group (KIP-932) and its members: their data and queries on it.

Like a consumer group, it has a group epoch, a target for each member, and members that reconcile
independently. But a partition may be assigned to several members, so no member waits for a
revocation. A partition is assigned only if the share coordinator has initialized its state. The
initialization starts when a member subscribes to the topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, TypeAlias
from uuid import UUID

from ..common.modern_group import (
    FIRST_EPOCH,
    NO_TARGET,
    MemberState,
    Target,
    add_to,
    changed_counts,
)

PROTOCOL_TYPE = "share"


class ShareGroupState(StrEnum):
    """State of a share group, with the names of the protocol."""

    EMPTY = "Empty"
    # The group has members.
    STABLE = "Stable"


class SharedTopic(NamedTuple):
    """Partitions of a topic that have or will have a share-partition state."""

    name: str
    partitions: frozenset[int]


SharedTopics: TypeAlias = Mapping[UUID, SharedTopic]


class SharedState(NamedTuple):
    """Progress of the group's share-partition states: the content of one record."""

    initializing: SharedTopics = MappingProxyType({})
    initialized: SharedTopics = MappingProxyType({})
    # Names of topics whose states are being deleted, by topic ID.
    deleting: Mapping[UUID, str] = MappingProxyType({})

    @property
    def topic_ids(self) -> frozenset[UUID]:
        """IDs of all topics in this record."""
        return frozenset((*self.initializing, *self.initialized, *self.deleting))


NO_STATE = SharedState()


@dataclass(frozen=True, slots=True)
class ShareGroupMember:
    """A member of a share group.

    Attributes:
        previous_epoch: Also accepted in a heartbeat, because a response may have been lost.
        assigned: Partitions that the member may fetch.
    """

    id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Target = field(default_factory=lambda: NO_TARGET)

    def is_reconciled_to(self, epoch: int) -> bool:
        """Return True if the member has all partitions of the target of an epoch."""
        return self.state is MemberState.STABLE and self.epoch == epoch


class ShareGroup:
    """A share group, as stored in its records.

    Members are ordered by the time when they joined. Subscriptions and the number of members per
    partition are maintained incrementally, because each heartbeat reads them. The volatile
    attributes are not stored, and have their initial values after loading.
    """

    __slots__ = (
        "_lacks_partitions",
        "assigned_at_ms",
        "assignment_epoch",
        "epoch",
        "has_shared_record",
        "held",
        "id",
        "is_assigning",
        "is_initialization_checked",
        "last_heartbeat_ms",
        "members",
        "metadata_hash",
        "shared",
        "targets",
        "topics",
        "topics_version",
    )

    def __init__(self, group_id: str) -> None:
        self.id = group_id
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.assignment_epoch = FIRST_EPOCH
        # Time of the target assignment in ms since 1970, or 0 if there is none or its time is unknown.
        self.assigned_at_ms = 0
        self.members: dict[str, ShareGroupMember] = {}
        self.targets: dict[str, Target] = {}
        self.shared = NO_STATE
        self.has_shared_record = False
        # Number of members that subscribe to a topic.
        self.topics: dict[str, int] = {}
        # Number of members that have a partition in their target.
        self.held: dict[UUID, dict[int, int]] = {}
        # Volatile:
        # Time of each member's last heartbeat, in ms of the monotonic clock.
        self.last_heartbeat_ms: dict[str, int] = {}
        # Version of the cluster's topics that the group has last processed.
        self.topics_version = -1
        # True while a target assignment is computed in the background.
        self.is_assigning = False
        # True if nothing has changed since the last search for partitions without a state.
        self.is_initialization_checked = False
        self._lacks_partitions: bool | None = None

    @property
    def state(self) -> ShareGroupState:
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    # -- members

    def put(self, member: ShareGroupMember) -> None:
        """Add or update a member."""
        old = self.members.get(member.id)
        self.members[member.id] = member
        if old is None or old.topics != member.topics:
            for topic in old.topics if old else ():
                add_to(self.topics, topic, -1)
            for topic in member.topics:
                add_to(self.topics, topic, 1)
            self._drop_cached_checks()

    def remove(self, member_id: str) -> None:
        """Remove a member, if it exists."""
        member = self.members.pop(member_id, None)
        if member is not None:
            for topic in member.topics:
                add_to(self.topics, topic, -1)
            self.last_heartbeat_ms.pop(member_id, None)
            self._drop_cached_checks()

    def subscribes(self, topic: str) -> bool:
        """Return True if a member subscribes to a topic."""
        return topic in self.topics

    def topics_after(self, old: ShareGroupMember | None, new: ShareGroupMember | None) -> set[str]:
        """Return all subscribed topics after `new` has replaced `old`."""
        return set(
            changed_counts(self.topics, old.topics if old else (), new.topics if new else ())
        )

    def _drop_cached_checks(self) -> None:
        self._lacks_partitions = None
        self.is_initialization_checked = False

    # -- targets

    def set_assignment_epoch(self, epoch: int, at_ms: int) -> None:
        """Set the epoch of the target assignment and the time at which it was computed (ms since 1970)."""
        self.assignment_epoch = epoch
        self.assigned_at_ms = at_ms

    def target_of(self, member_id: str) -> Target:
        """Return the target of a member."""
        return self.targets.get(member_id, NO_TARGET)

    def put_target(self, member_id: str, target: Target) -> None:
        """Set the target of a member."""
        self._count_target(self.target_of(member_id), -1)
        self.targets[member_id] = target
        self._count_target(target, 1)

    def drop_target(self, member_id: str) -> None:
        """Remove the target of a member."""
        self._count_target(self.targets.pop(member_id, NO_TARGET), -1)

    def _count_target(self, target: Target, by: int) -> None:
        for topic_id, partition in _partitions(target):
            add_to(self.held.setdefault(topic_id, {}), partition, by)
        for topic_id in target:
            if not self.held.get(topic_id, True):
                del self.held[topic_id]
        self._lacks_partitions = None

    # -- states of share partitions

    def put_shared(self, shared: SharedState) -> None:
        """Set the share-partition states of the group."""
        self.shared = shared
        self.has_shared_record = True
        self._drop_cached_checks()

    def drop_shared(self) -> None:
        """Remove the share-partition states of the group."""
        self.put_shared(NO_STATE)
        self.has_shared_record = False

    @property
    def lacks_partitions(self) -> bool:
        """True if the targets do not match the partitions that have an initialized state."""
        if self._lacks_partitions is None:
            self._lacks_partitions = bool(self.members) and any(
                self.subscribes(topic.name)
                and self.held.get(topic_id, {}).keys() != topic.partitions
                for topic_id, topic in self.shared.initialized.items()
            )
        return self._lacks_partitions


def _partitions(target: Target) -> Iterator[tuple[UUID, int]]:
    for topic_id, partitions in target.items():
        for partition in partitions:
            yield topic_id, partition


def partitions_of(topics: SharedTopics) -> Target:
    """Return the partitions of topics, without the topic names."""
    return {topic_id: topic.partitions for topic_id, topic in topics.items()}


def merge_topics(one: SharedTopics, other: SharedTopics) -> dict[UUID, SharedTopic]:
    """Return the union of two sets of partitions; names are those of `other`."""
    both = dict(one)
    for topic_id, topic in other.items():
        known = both.get(topic_id)
        partitions = topic.partitions if known is None else topic.partitions | known.partitions
        both[topic_id] = topic._replace(partitions=partitions)
    return both


def subtract_partitions(one: SharedTopics, partitions: Target) -> dict[UUID, SharedTopic]:
    """Return the topics without some of their partitions."""
    left = {}
    for topic_id, topic in one.items():
        rest = topic.partitions - partitions.get(topic_id, frozenset())
        if rest:
            left[topic_id] = topic._replace(partitions=rest)
    return left
