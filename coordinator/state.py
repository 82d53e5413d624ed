"""The state of one shard: what its partition of `__consumer_offsets` says, and what is volatile."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TypeAlias

from kbroker.protocol.group_metadata import OffsetCommitValue

from .classic.group import Group
from .common.deleted_topics import DeletedTopics
from .common.memory import ShardMemory
from .common.pending import PendingOffsets, Place
from .consumer.group import ConsumerGroup
from .share.group import ShareGroup
from .streams.group import StreamsGroup

GroupOffsets: TypeAlias = dict[Place, OffsetCommitValue]
"""Committed offsets of one group by (topic, partition)."""
CommittingGroup: TypeAlias = Group | ConsumerGroup | StreamsGroup
AnyGroup: TypeAlias = CommittingGroup | ShareGroup

OFFSETS_AT_ONCE = 100
"""Of one group, that are looked at or deleted in one piece: about a millisecond of work."""


class ShardState:
    """Groups, committed offsets and those of open transactions. All are written by `replay`.

    The volatile part of a group (see `Group`) is changed in place by the operations. A group is of
    one kind, and one that has offsets, pending ones too, is always in one of `groups`, `consumer_groups`
    and `streams_groups`; one without members that was only ever used for offsets is called simple and
    has no protocol type.
    """

    __slots__ = (
        "consumer_groups",
        "deleted_topics",
        "ending",
        "groups",
        "memory",
        "offsets",
        "pending_offsets",
        "share_groups",
        "streams_groups",
    )

    def __init__(self, memory: ShardMemory) -> None:
        self.memory = memory
        self.groups: dict[str, Group] = {}
        """Classic groups."""
        self.consumer_groups: dict[str, ConsumerGroup] = {}
        """Groups of KIP-848."""
        self.share_groups: dict[str, ShareGroup] = {}
        """Groups of KIP-932."""
        self.streams_groups: dict[str, StreamsGroup] = {}
        """Groups of KIP-1071."""
        self.offsets: dict[str, GroupOffsets] = {}
        self.pending_offsets = PendingOffsets(memory)
        self.ending: dict[int, Iterator[int]] = {}
        """What is left to do for the end of a transaction, by producer id."""
        self.deleted_topics = DeletedTopics()

    def any_group(self, group_id: str) -> AnyGroup | None:
        """A group of any kind."""
        return self.committing_group(group_id) or self.share_groups.get(group_id)

    def committing_group(self, group_id: str) -> CommittingGroup | None:
        """A group of a kind that commits offsets."""
        return (
            self.groups.get(group_id)
            or self.consumer_groups.get(group_id)
            or self.streams_groups.get(group_id)
        )

    def committing_group_ids(self) -> tuple[str, ...]:
        """Of all groups of those kinds, as they are now."""
        return (*self.groups, *self.consumer_groups, *self.streams_groups)

    def begin_share_group(self, group_id: str) -> ShareGroup:
        """A group is a share group from now on, whatever it was."""
        self.groups.pop(group_id, None)
        self.consumer_groups.pop(group_id, None)
        group = self.share_groups[group_id] = ShareGroup(group_id)
        return group

    def end_share_group(self, group_id: str) -> None:
        """A group is no share group any more; what offsets it has belong to a simple one."""
        del self.share_groups[group_id]
        if self.places(group_id):
            self.begin_simple_group(group_id)

    def begin_consumer_group(self, group_id: str) -> ConsumerGroup:
        """A group is a consumer group from now on, whatever it was."""
        self.groups.pop(group_id, None)
        self.share_groups.pop(group_id, None)
        group = self.consumer_groups[group_id] = ConsumerGroup(group_id)
        return group

    def end_consumer_group(self, group_id: str) -> None:
        """A group is no consumer group any more; what offsets it has belong to a simple one."""
        del self.consumer_groups[group_id]
        if self.places(group_id):
            self.begin_simple_group(group_id)

    def begin_streams_group(self, group_id: str) -> StreamsGroup:
        """A group is a streams group from now on, whatever it was."""
        self.groups.pop(group_id, None)
        group = self.streams_groups[group_id] = StreamsGroup(group_id)
        return group

    def end_streams_group(self, group_id: str) -> None:
        """As `end_consumer_group`."""
        del self.streams_groups[group_id]
        if self.places(group_id):
            self.begin_simple_group(group_id)

    def begin_simple_group(self, group_id: str) -> None:
        """A group that is not known yet has offsets."""
        if self.any_group(group_id) is None:
            group = self.groups[group_id] = Group(group_id, self.memory)
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
