"""Input and output types of the server-side assignors (KIP-848, KIP-932)."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple, TypeAlias
from uuid import UUID

from .modern_group import Target

# Partitions to assign per time slice (a fraction of a millisecond).
PARTITIONS_AT_ONCE = 200
# Target assignment by member ID: partitions by topic ID.
Targets: TypeAlias = "dict[str, dict[UUID, set[int]]]"
# Racks of the replicas of each partition of a topic; empty if they are unknown.
Racks: TypeAlias = Sequence[AbstractSet[str]]


class TopicShape(NamedTuple):
    """Partition count of a topic and the racks of each partition."""

    partitions: int
    racks: Racks = ()


class MemberSubscription(NamedTuple):
    """Member data for an assignor: the subscription, the previous target, instance ID and rack."""

    topics: frozenset[UUID]
    previous: Target
    instance_id: str | None = None
    rack: str | None = None


GroupSpec: TypeAlias = Mapping[str, MemberSubscription]
Topics: TypeAlias = Mapping[UUID, TopicShape]


def existing_subscriptions(
    group: GroupSpec, topics: AbstractSet[UUID]
) -> Generator[None, None, set[frozenset[UUID]]]:
    """Return the different subscriptions of a group, limited to existing topics, in pieces."""
    found: set[frozenset[UUID]] = set()
    seen: set[frozenset[UUID]] = set()
    for member in group.values():
        if member.topics not in seen:
            seen.add(member.topics)
            found.add(frozenset(member.topics & topics))
            yield
    return found
