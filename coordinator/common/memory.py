"""Memory that group members and committed offsets use on one node, and its limits.

Each shard counts the memory of its own state. The node has one limit for the members of all its
groups and one for all committed offsets. Sizes are estimates: the bytes that clients sent, plus a
fixed number of bytes for the surrounding objects.

The limit rejects a member if the address of its client would then use more bytes than remain free.
So one address gets at most half of the limit, and other addresses can always add members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from kbroker.protocol import consumer_group_metadata as consumer
from kbroker.protocol import share_group_metadata as share
from kbroker.protocol import streams_group_metadata as streams
from kbroker.protocol.group_metadata import GroupMetadataKey, OffsetCommitValue

from .record import OFFSETS_SERDE, CoordinatorRecord

GROUP_BYTES: Final = 2048  # one group without members
MEMBER_BYTES: Final = 2048  # one member with its timers, without the data that its client sent
EXPECTED_BYTES: Final = 512  # one member ID that was returned to a client (KIP-394)
PROTOCOL_BYTES: Final = 160  # one protocol that a classic member supports
TOPIC_BYTES: Final = 200  # one topic in the subscription of a member
OFFSET_BYTES: Final = 400  # one committed offset, without its strings
TRANSACTIONAL_ID_BYTES: Final = 1024  # one transactional ID, without its name
TASK_OFFSET_BYTES: Final = 200  # one task offset that a member of a streams group has reported
TOPOLOGY_FACTOR: Final = 4  # bytes in memory per byte of a stored topology
SHARED_FACTOR: Final = 16  # bytes in memory per stored byte of a share group's partitions
UNLIMITED: Final = 2**63

RECORD, TOPOLOGY, SHARED, TASK_OFFSETS = 0, 1, 2, 3
# A part of a group: a member (by member ID), the `RECORD` of the group itself, its `TOPOLOGY`, the
# partitions of a share group that have a share state (`SHARED`), or (`TASK_OFFSETS`, member ID).
Item: TypeAlias = str | int | tuple[int, str]


_GROUP_KEYS = (
    consumer.ConsumerGroupMetadataKey,
    share.ShareGroupMetadataKey,
    streams.StreamsGroupMetadataKey,
)
_MEMBER_VALUES = (
    consumer.ConsumerGroupMemberMetadataValue,
    share.ShareGroupMemberMetadataValue,
    streams.StreamsGroupMemberMetadataValue,
)
# Key types of the records that clients can make large or numerous.
_COUNTED = (
    GroupMetadataKey,
    *_GROUP_KEYS,
    consumer.ConsumerGroupMemberMetadataKey,
    share.ShareGroupMemberMetadataKey,
    share.ShareGroupStatePartitionMetadataKey,
    streams.StreamsGroupMemberMetadataKey,
    streams.StreamsGroupTopologyKey,
)


class MemoryLimit:
    """A limit on the bytes of one kind that all coordinators of a node use together.

    Args:
        limit: Maximum in bytes.
        on_rejection: Called each time the limit rejects an operation.
    """

    __slots__ = ("_on_rejection", "_used_by_host", "limit", "used")

    def __init__(
        self, limit: int = UNLIMITED, on_rejection: Callable[[], None] = lambda: None
    ) -> None:
        self.limit = limit
        self.used = 0
        self._used_by_host: Counter[str] = Counter()
        self._on_rejection = on_rejection

    def permits(self, growth: int, host: str | None = None) -> bool:
        """Return True if the limit permits `growth` more bytes; a growth <= 0 is always permitted.

        Args:
            growth: Number of additional bytes.
            host: Address of the client that would use them, or None if they belong to no address.
        """
        if growth <= 0:
            return True
        free = self.limit - self.used - growth
        if free >= 0 and (host is None or self._used_by_host[host] + growth <= free):
            return True
        self._on_rejection()
        return False

    def change(self, by: int, host: str | None = None) -> None:
        """Add bytes to the count; `by` is negative if memory was freed."""
        self.used += by
        if host is not None:
            self._used_by_host[host] += by
            if not self._used_by_host[host]:
                del self._used_by_host[host]


class GroupMemory(NamedTuple):
    """Memory limits of one node for group members and for committed offsets."""

    members: MemoryLimit
    offsets: MemoryLimit


class ItemMemory(NamedTuple):
    """Bytes used by one item of a group.

    Attributes:
        host: Address of the client, or None if the record does not contain it.
    """

    group_id: str
    item: Item
    host: str | None
    size: int


class ShardMemory:
    """Memory used by the state of one shard, counted against the limits of its node."""

    __slots__ = ("_groups", "_is_closed", "_offsets", "limits")

    def __init__(self, limits: GroupMemory) -> None:
        self.limits = limits
        self._groups: dict[str, dict[Item, ItemMemory]] = {}
        self._offsets = 0
        self._is_closed = False

    # -- members

    def size_of(self, group_id: str, item: Item) -> int:
        """Return the bytes that an item uses, or 0 if the item does not exist."""
        held = self._groups.get(group_id, {}).get(item)
        return 0 if held is None else held.size

    def hold(self, group_id: str, item: Item, host: str | None, size: int) -> None:
        """Set the number of bytes that an item uses.

        If `host` is None, the bytes count for the client of another item of the group.
        """
        if self._is_closed:
            return
        items = self._groups.setdefault(group_id, {})
        if host is None:
            host = next((each.host for each in items.values()), "")
        self._release(items.get(item))
        items[item] = ItemMemory(group_id, item, host, size)
        self.limits.members.change(size, host)

    def drop(self, group_id: str, item: Item) -> None:
        """Remove an item of a group."""
        items = self._groups.get(group_id)
        if items is not None:
            self._release(items.pop(item, None))
            if not items:
                del self._groups[group_id]

    def drop_group(self, group_id: str) -> None:
        """Remove a group with all its items."""
        for held in self._groups.pop(group_id, {}).values():
            self._release(held)

    def _release(self, held: ItemMemory | None) -> None:
        if held is not None:
            self.limits.members.change(-held.size, held.host)

    # -- records

    def replay(self, record: CoordinatorRecord) -> None:
        """Update the count for a group record."""
        held = item_memory(record)
        if held is not None:
            if record.value is None:
                self.drop(held.group_id, held.item)
                if isinstance(held.item, str):
                    self.drop(held.group_id, (TASK_OFFSETS, held.item))
            else:
                self.hold(held.group_id, held.item, held.host, held.size)

    def growth(self, records: Iterable[CoordinatorRecord]) -> int:
        """Return the bytes by which unstored records would increase member memory."""
        held = map(item_memory, records)
        return sum(
            each.size - self.size_of(each.group_id, each.item) for each in held if each is not None
        )

    # -- offsets

    def change_offsets(self, by: int) -> None:
        """Add bytes of committed offsets to the count; `by` is negative if memory was freed."""
        if not self._is_closed:
            self._offsets += by
            self.limits.offsets.change(by)

    def close(self) -> None:
        """Release all memory of the shard; later changes are not counted."""
        for group_id in tuple(self._groups):
            self.drop_group(group_id)
        self.change_offsets(-self._offsets)
        self._is_closed = True


def group_bytes(group_id: str) -> int:
    """Return the bytes in memory of a group that has offsets, without the offsets."""
    return GROUP_BYTES + len(group_id)


def task_offset_bytes(offsets: Mapping[str, Mapping[int, int]]) -> int:
    """Return the bytes in memory of task offsets by subtopology ID and partition."""
    return sum(
        TASK_OFFSET_BYTES * (1 + len(partitions)) + len(each)
        for each, partitions in offsets.items()
    )


def offset_bytes(topic: str, value: OffsetCommitValue) -> int:
    """Return the bytes in memory of a committed offset."""
    return OFFSET_BYTES + len(topic) + len(value.metadata)


def item_memory(record: CoordinatorRecord) -> ItemMemory | None:
    """Return the memory that a record of `__consumer_offsets` uses.

    Returns:
        The item and its size, or None for record types that are small or not sent by clients.
    """
    key, value = record.key, record.value
    if not isinstance(key, _COUNTED):
        return None
    stored_key, stored_value = OFFSETS_SERDE.encode(record)
    size = 0 if stored_value is None else len(stored_value)
    if isinstance(key, GroupMetadataKey):
        return ItemMemory(key.group, RECORD, None, size and GROUP_BYTES + len(stored_key) + size)
    if isinstance(key, streams.StreamsGroupTopologyKey):
        return ItemMemory(key.group_id, TOPOLOGY, None, TOPOLOGY_FACTOR * size)
    if isinstance(key, share.ShareGroupStatePartitionMetadataKey):
        return ItemMemory(key.group_id, SHARED, None, SHARED_FACTOR * size)
    if isinstance(key, _GROUP_KEYS):
        return ItemMemory(key.group_id, RECORD, None, size and GROUP_BYTES + len(stored_key))
    if value is None:
        return ItemMemory(key.group_id, key.member_id, None, 0)
    assert isinstance(value, _MEMBER_VALUES)
    topics = 0
    if not isinstance(value, streams.StreamsGroupMemberMetadataValue):
        topics = len(value.subscribed_topic_names)
    size += MEMBER_BYTES + len(stored_key) + TOPIC_BYTES * topics
    return ItemMemory(key.group_id, key.member_id, value.client_host, size)
