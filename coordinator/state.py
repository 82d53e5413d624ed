"""The state of one shard: what its partition of `__consumer_offsets` says, and what is volatile."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TypeAlias

from kbroker.protocol.group_metadata import OffsetCommitValue

from .deleted_topics import DeletedTopics
from .group import Group
from .pending import PendingOffsets, Place

GroupOffsets: TypeAlias = dict[Place, OffsetCommitValue]
"""Committed offsets of one group by (topic, partition)."""


OFFSETS_AT_ONCE = 100
"""Of one group, that are looked at or deleted in one piece: about a millisecond of work."""


class ShardState:
    """Groups, committed offsets and those of open transactions. All are written by `replay`.

    The volatile part of a group (see `Group`) is changed in place by the operations. A group that
    has offsets, pending ones too, is always in `groups`; one without members that was only ever
    used for offsets is called simple and has no protocol type.
    """

    __slots__ = ("deleted_topics", "ending", "groups", "offsets", "pending_offsets")

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.offsets: dict[str, GroupOffsets] = {}
        self.pending_offsets = PendingOffsets()
        self.ending: dict[int, Iterator[int]] = {}
        """What is left to do for the end of a transaction, by producer id."""
        self.deleted_topics = DeletedTopics()

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
