"""State of one shard: the content of its `__consumer_offsets` partition, and volatile data."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TypeAlias, TypeVar

from kbroker.protocol.group_metadata import OffsetCommitValue

from .classic.group import ClassicGroup
from .common.deleted_topics import DeletedTopics
from .common.memory import ShardMemory
from .common.pending import PendingTransactionalOffsets, TopicPartition
from .consumer.group import ConsumerGroup
from .share.group import ShareGroup
from .streams.group import StreamsGroup

# Committed offsets of one group by (topic, partition).
GroupOffsets: TypeAlias = dict[TopicPartition, OffsetCommitValue]
CommittingGroup: TypeAlias = ClassicGroup | ConsumerGroup | StreamsGroup
AnyGroup: TypeAlias = CommittingGroup | ShareGroup

G = TypeVar("G", ClassicGroup, ConsumerGroup, ShareGroup, StreamsGroup)

# Offsets of one group to check or delete per piece (about 1 ms of work).
OFFSETS_AT_ONCE = 100


class ShardState:
    """Groups, committed offsets and pending offsets of one shard. `replay` writes all of them.

    Operations change the volatile part of a group in place (see `ClassicGroup`). If a group ID has
    committed or pending offsets, the group exists. A group that never had members and was only used
    for offsets is a *simple* group: a classic group without a protocol type.
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
        # Groups of all types by group ID.
        self.groups: dict[str, AnyGroup] = {}
        self.offsets: dict[str, GroupOffsets] = {}
        self.pending_offsets = PendingTransactionalOffsets(memory)
        # Remaining work for transactions that are ending, by producer ID.
        self.ending: dict[int, Iterator[int]] = {}
        self.deleted_topics = DeletedTopics()

    def find_group(self, group_id: str, group_type: type[G]) -> G | None:
        """Return the group of an ID, or None if there is none or it has another type."""
        group = self.groups.get(group_id)
        return group if isinstance(group, group_type) else None

    def has_empty_classic_group(self, group_id: str) -> bool:
        """Return True if the group of an ID is a classic group without members."""
        group = self.find_group(group_id, ClassicGroup)
        return group is not None and group.is_empty

    def committing_group(self, group_id: str) -> CommittingGroup | None:
        """Return a group of a type that commits offsets, or None if there is none of that ID."""
        group = self.groups.get(group_id)
        return None if isinstance(group, ShareGroup) else group

    def groups_of(self, group_type: type[G]) -> Iterator[G]:
        """Return the existing groups of a type."""
        groups = tuple(self.groups.values())
        return (group for group in groups if isinstance(group, group_type))

    def committing_groups(self) -> Iterator[CommittingGroup]:
        """Return the existing groups of the types that commit offsets."""
        groups = tuple(self.groups.values())
        return (group for group in groups if not isinstance(group, ShareGroup))

    def add_group(self, group: G) -> G:
        """Add a group, replacing an existing group of the same ID."""
        self.groups.pop(group.id, None)
        self.groups[group.id] = group
        return group

    def remove_group(self, group_id: str) -> None:
        """Remove a modern group. Its remaining offsets then belong to a simple group."""
        del self.groups[group_id]
        if self.topic_partitions(group_id):
            self.ensure_simple_group(group_id)

    def ensure_simple_group(self, group_id: str) -> None:
        """Create a simple group for offsets, if no group of that ID exists."""
        if group_id not in self.groups:
            group = self.add_group(ClassicGroup(group_id, self.memory))
            group.stored = True

    def topic_partitions(self, group_id: str) -> Collection[TopicPartition]:
        """Return the partitions in which a group has committed or pending offsets."""
        committed = self.offsets.get(group_id, {})
        pending = self.pending_offsets.topic_partitions(group_id)
        return dict.fromkeys((*committed, *pending)).keys() if pending else committed.keys()

    def values(self, group_id: str, topic_partition: TopicPartition) -> list[OffsetCommitValue]:
        """Return the committed and pending offsets of a group for one partition."""
        committed = self.offsets.get(group_id, {}).get(topic_partition)
        pending = self.pending_offsets.values(group_id, topic_partition)
        return pending if committed is None else [committed, *pending]
