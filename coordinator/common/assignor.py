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


class Subscriber(NamedTuple):
    """A member as an assignor sees it, and what it was to have before."""

    topics: AbstractSet[UUID]
    had: Target
    instance_id: str | None = None
    rack: str | None = None


Group: TypeAlias = Mapping[str, Subscriber]
Topics: TypeAlias = Mapping[UUID, TopicShape]
