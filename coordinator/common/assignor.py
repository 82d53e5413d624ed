"""Input and output of the assignors that run at the group coordinator (KIP-848, KIP-932)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple, TypeAlias
from uuid import UUID

from .modern_group import Target

PARTITIONS_AT_ONCE = 200
"""In one piece of work: a fraction of a millisecond."""
Targets: TypeAlias = "dict[str, dict[UUID, set[int]]]"
Racks: TypeAlias = Sequence[AbstractSet[str]]
"""Where the replicas of each partition of a topic are; empty when that is not known."""


class TopicShape(NamedTuple):
    """What an assignor needs to know of a topic."""

    partitions: int
    racks: Racks = ()


class MemberSubscription(NamedTuple):
    """Member data for an assignor: the subscription and the previous target."""

    topics: AbstractSet[UUID]
    had: Target
    instance_id: str | None = None
    rack: str | None = None


GroupSpec: TypeAlias = Mapping[str, MemberSubscription]
Topics: TypeAlias = Mapping[UUID, TopicShape]
