"""The state of one shard: what its partition of `__consumer_offsets` says, and what is volatile."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TypeAlias, TypeVar

from kbroker.protocol.group_metadata import OffsetCommitValue

from .classic.group import ClassicGroup
from .common.deleted_topics import DeletedTopics
from .common.memory import ShardMemory
from .common.pending import PendingTransactionalOffsets, Place
from .consumer.group import ConsumerGroup
from .share.group import ShareGroup
from .streams.group import StreamsGroup

GroupOffsets: TypeAlias = dict[Place, OffsetCommitValue]
"""Committed offsets of one group by (topic, partition)."""
CommittingGroup: TypeAlias = ClassicGroup | ConsumerGroup | StreamsGroup
AnyGroup: TypeAlias = CommittingGroup | ShareGroup

G = TypeVar("G", ClassicGroup, ConsumerGroup, ShareGroup, StreamsGroup)

OFFSETS_AT_ONCE = 100
"""Of one group, that are looked at or deleted in one piece: about a millisecond of work."""


class ShardState:
    """Groups, committed offsets and those of open transactions. All are written by `replay`.

    The volatile part of a group (see `ClassicGroup`) is changed in place by the operations. If there are
    offsets for a group, also pending ones, the group exists. A group without members that was only
    ever used for offsets is a classic group without a protocol type, and is called simple.
    """

    __slots__ = (
        "deleted_topics",
        "ending",
        "groups",
        "memory",
        "offsets",
        "pending_offsets",
    )

    def __init__(self, memory: ShardMemory) -> None:
        self.memory = memory
        self.groups: dict[str, AnyGroup] = {}
        """Groups of all types by name."""
        self.offsets: dict[str, GroupOffsets] = {}
        self.pending_offsets = PendingTransactionalOffsets(memory)
        self.ending: dict[int, Iterator[int]] = {}
        """What is left to do for the end of a transaction, by producer id."""
        self.deleted_topics = DeletedTopics()

    def classic_group(self, group_id: str) -> ClassicGroup | None:
        """Return a classic group; None if there is none of that name."""
        group = self.groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def consumer_group(self, group_id: str) -> ConsumerGroup | None:
        """Return a consumer group (KIP-848); None if there is none of that name."""
        group = self.groups.get(group_id)
        return group if isinstance(group, ConsumerGroup) else None

    def share_group(self, group_id: str) -> ShareGroup | None:
        """Return a share group (KIP-932); None if there is none of that name."""
        group = self.groups.get(group_id)
        return group if isinstance(group, ShareGroup) else None

    def streams_group(self, group_id: str) -> StreamsGroup | None:
        """Return a streams group (KIP-1071); None if there is none of that name."""
        group = self.groups.get(group_id)
        return group if isinstance(group, StreamsGroup) else None

    def committing_group(self, group_id: str) -> CommittingGroup | None:
        """Return a group of a type that commits offsets; None if there is none of that name."""
        group = self.groups.get(group_id)
        return None if isinstance(group, ShareGroup) else group

    def groups_of(self, group_type: type[G]) -> Iterator[G]:
        """Return the groups of a type that exist now."""
        groups = tuple(self.groups.values())
        return (group for group in groups if isinstance(group, group_type))

    def committing_groups(self) -> Iterator[CommittingGroup]:
        """Return the groups of types that commit offsets that exist now."""
        groups = tuple(self.groups.values())
        return (group for group in groups if not isinstance(group, ShareGroup))

    def begin(self, group: G) -> G:
        """Add a group in the place of the one of its name, if there is one."""
        self.groups.pop(group.id, None)
        self.groups[group.id] = group
        return group

    def end(self, group_id: str) -> None:
        """Remove a group of a newer type; offsets that it has belong to a simple group then."""
        del self.groups[group_id]
        if self.places(group_id):
            self.begin_simple_group(group_id)

    def begin_simple_group(self, group_id: str) -> None:
        """A group that is not known yet has offsets."""
        if group_id not in self.groups:
            group = self.begin(ClassicGroup(group_id, self.memory))
            group.stored = True

    def places(self, group_id: str) -> Collection[Place]:
        """The partitions in which a group has offsets, committed or pending."""
        committed = self.offsets.get(group_id, {})
        pending = self.pending_offsets.places(group_id)
        return dict.fromkeys((*committed, *pending)).keys() if pending else committed.keys()

    def values(self, group_id: str, place: Place) -> list[OffsetCommitValue]:
        """What a group has committed for one partition, pending offsets too."""
        committed = self.offsets.get(group_id, {}).get(place)
        pending = self.pending_offsets.values(group_id, place)
        return pending if committed is None else [committed, *pending]
