"""A share group of KIP-932 and its members: the data, and the questions that it can answer.

Like a consumer group it has an *epoch*, a *target* for each member, and members that go to their
targets by themselves. But a partition may be given to several members, so nobody has to wait until
somebody else gives it back. A member gets partitions only of which the group has a *state* with the
share coordinator; that is made as soon as somebody subscribes to their topic.
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
    """Where a group stands; the values are the names on the wire."""

    EMPTY = "Empty"
    STABLE = "Stable"
    """It has members."""


class SharedTopic(NamedTuple):
    """Partitions of a topic of which a group has a state, or is to have one."""

    name: str
    partitions: frozenset[int]


SharedTopics: TypeAlias = Mapping[UUID, SharedTopic]


class SharedState(NamedTuple):
    """How far a group is with the state of its share partitions: one record."""

    initializing: SharedTopics = MappingProxyType({})
    initialized: SharedTopics = MappingProxyType({})
    deleting: Mapping[UUID, str] = MappingProxyType({})
    """The names of topics of which the state goes, by id."""

    @property
    def topic_ids(self) -> frozenset[UUID]:
        """All topics that it says something of."""
        return frozenset((*self.initializing, *self.initialized, *self.deleting))


NO_STATE = SharedState()


@dataclass(frozen=True, slots=True)
class ShareGroupMember:
    """One member; `assigned` is what it may fetch."""

    id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    epoch: int = 0
    previous_epoch: int = -1
    """Of which a heartbeat is taken as well: the answer by which the epoch rose may be lost."""
    state: MemberState = MemberState.STABLE
    assigned: Target = field(default_factory=lambda: NO_TARGET)

    def is_reconciled_to(self, epoch: int) -> bool:
        """Whether it has all that the target of an epoch gives it."""
        return self.state is MemberState.STABLE and self.epoch == epoch


class ShareGroup:
    """One share group, as its records say.

    Members keep the order in which they came. Who subscribes to what and how many members have a
    partition is counted as it changes, because each heartbeat asks for it. The attributes under
    "volatile" are not kept anywhere, and begin anew after a restart.
    """

    __slots__ = (
        "_lacks",
        "assigned_at_ms",
        "assignment_epoch",
        "epoch",
        "has_shared_record",
        "heard_ms",
        "held",
        "id",
        "is_assigning",
        "is_settled",
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
        self.assigned_at_ms = 0
        """Log time of the target, 0 if there is none or its time is not known."""
        self.members: dict[str, ShareGroupMember] = {}
        self.targets: dict[str, Target] = {}
        self.shared = NO_STATE
        self.has_shared_record = False
        self.topics: dict[str, int] = {}
        """How many members subscribe to a topic."""
        self.held: dict[UUID, dict[int, int]] = {}
        """How many members have a partition in their targets."""
        # Volatile:
        self.heard_ms: dict[str, int] = {}
        """When each member was last heard of, in coordinator time."""
        self.topics_version = -1
        """The version of the cluster's topics that the group has seen."""
        self.is_assigning = False
        """A target is being computed beside clients."""
        self.is_settled = False
        """Nothing has changed since somebody looked for partitions that have no state."""
        self._lacks: bool | None = None

    @property
    def state(self) -> ShareGroupState:
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    # -- members

    def put(self, member: ShareGroupMember) -> None:
        """A member is new, or is different now."""
        old = self.members.get(member.id)
        self.members[member.id] = member
        if old is None or old.topics != member.topics:
            for topic in old.topics if old else ():
                add_to(self.topics, topic, -1)
            for topic in member.topics:
                add_to(self.topics, topic, 1)
            self._changed()

    def remove(self, member_id: str) -> None:
        """A member is gone, if it was one."""
        member = self.members.pop(member_id, None)
        if member is not None:
            for topic in member.topics:
                add_to(self.topics, topic, -1)
            self.heard_ms.pop(member_id, None)
            self._changed()

    def subscribes(self, topic: str) -> bool:
        """Whether a member reads a topic."""
        return topic in self.topics

    def topics_after(self, old: ShareGroupMember | None, new: ShareGroupMember | None) -> set[str]:
        """What is subscribed to by anybody when `new` has taken the place of `old`."""
        return set(
            changed_counts(self.topics, old.topics if old else (), new.topics if new else ())
        )

    def _changed(self) -> None:
        self._lacks = None
        self.is_settled = False

    # -- targets

    def set_assignment_epoch(self, epoch: int, at_ms: int) -> None:
        """The targets are those of an epoch, made at a log time."""
        self.assignment_epoch = epoch
        self.assigned_at_ms = at_ms

    def target_of(self, member_id: str) -> Target:
        """What a member shall have."""
        return self.targets.get(member_id, NO_TARGET)

    def put_target(self, member_id: str, target: Target) -> None:
        """A member shall have other partitions from now on."""
        self._count(self.target_of(member_id), -1)
        self.targets[member_id] = target
        self._count(target, 1)

    def drop_target(self, member_id: str) -> None:
        """A member shall have nothing any more."""
        self._count(self.targets.pop(member_id, NO_TARGET), -1)

    def _count(self, target: Target, by: int) -> None:
        for topic_id, partition in _partitions(target):
            add_to(self.held.setdefault(topic_id, {}), partition, by)
        for topic_id in target:
            if not self.held.get(topic_id, True):
                del self.held[topic_id]
        self._lacks = None

    # -- states of share partitions

    def put_shared(self, shared: SharedState) -> None:
        """The group has other states from now on."""
        self.shared = shared
        self.has_shared_record = True
        self._changed()

    def drop_shared(self) -> None:
        """The group has no states any more."""
        self.put_shared(NO_STATE)
        self.has_shared_record = False

    @property
    def lacks_partitions(self) -> bool:
        """Whether there are partitions that members may have and nobody has, or the other way round."""
        if self._lacks is None:
            self._lacks = bool(self.members) and any(
                self.subscribes(topic.name)
                and self.held.get(topic_id, {}).keys() != topic.partitions
                for topic_id, topic in self.shared.initialized.items()
            )
        return self._lacks


def _partitions(target: Target) -> Iterator[tuple[UUID, int]]:
    for topic_id, partitions in target.items():
        for partition in partitions:
            yield topic_id, partition


def partitions_of(topics: SharedTopics) -> Target:
    """The partitions of topics without their names."""
    return {topic_id: topic.partitions for topic_id, topic in topics.items()}


def together(one: SharedTopics, other: SharedTopics) -> dict[UUID, SharedTopic]:
    """The partitions of both; names are those of the other one."""
    both = dict(one)
    for topic_id, topic in other.items():
        known = both.get(topic_id)
        partitions = topic.partitions if known is None else topic.partitions | known.partitions
        both[topic_id] = topic._replace(partitions=partitions)
    return both


def without(one: SharedTopics, partitions: Target) -> dict[UUID, SharedTopic]:
    """What is left of topics when some partitions are taken away."""
    left = {}
    for topic_id, topic in one.items():
        rest = topic.partitions - partitions.get(topic_id, frozenset())
        if rest:
            left[topic_id] = topic._replace(partitions=rest)
    return left
